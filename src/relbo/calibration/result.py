"""What a calibration found: ranks, p-values, words and a picture."""

import dataclasses
import functools
from typing import Any

import numpy as np

from relbo._check import require
from relbo.calibration.uniformity import uniformity_p_value

LEVEL = 0.01
"""Below this p-value draws are called wrong; of right ones one in a hundred is."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Ranks of what the model had drawn among what each source draws, and what they say.

    A source is where draws of z come from: "q", "r at 0.1", "exact posterior". If it draws from the posterior of the
    model, then its ranks are uniform on 0..L, for every statistic. The converse does not hold: other draws may have
    uniform ranks of these statistics, or ranks that N simulations cannot tell from uniform ones.

    Example:
        >>> ranks = {"q": np.array([[0, 3], [2, 1], [1, 0], [3, 2]])}
        >>> found = Calibration(ranks, ("z", "log p(x, z)"), 3, {"q": 1.0})
        >>> found.p_value("q") > 0.9, found.passes("q")
        (True, True)
    """

    ranks: dict[str, np.ndarray]
    """Source -> (simulations, statistics) ranks from 0 to `num_samples`."""
    statistics: tuple[str, ...]
    """What was ranked."""
    num_samples: int
    """L, draws of each source in each simulation."""
    proposals_per_draw: dict[str, float | None]
    """What a draw of each source costs; None where the posterior was enumerated."""

    def p_values(self, source: str) -> dict[str, float]:
        """The exact p-value of each statistic: how often right draws have ranks as uneven as these."""
        require(source in self.ranks, "source", f"one of {', '.join(self.ranks)}", source)
        return self._p_values[source]

    def p_value(self, source: str) -> float:
        """One p-value for all statistics: the smallest times their number (Bonferroni), valid however they depend."""
        return min(1.0, min(self.p_values(source).values()) * len(self.statistics))

    def passes(self, source: str, level: float = LEVEL) -> bool:
        """Whether the ranks give no reason to doubt the draws of a source, at this level."""
        return self.p_value(source) >= level

    def summary(self) -> str:
        """A line for each source: its cost, its p-value and the statistic that speaks loudest."""
        width = max(len(source) for source in self.ranks)
        lines = [f"{'draws from':{width}}  proposals/draw   p-value   least uniform"]
        for source in self.ranks:
            values = self.p_values(source)
            worst = min(values, key=lambda name: values[name])
            cost, p = self.proposals_per_draw[source], self.p_value(source)
            verdict = "no reason to doubt" if p >= LEVEL else "wrong"
            paid = "enumerated" if cost is None else f"{cost:.1f}"
            lines.append(f"{source:{width}}  {paid:>14}  {p:8.2g}   {worst} -> {verdict}")
        size = len(next(iter(self.ranks.values())))
        lines.append(
            f"{size} simulations, {self.num_samples} draws each, {len(self.statistics)} statistics; p-values are "
            "exact, corrected for the number of statistics."
        )
        return "\n".join(lines)

    def figure(self) -> Any:
        """A Matplotlib figure: for each source the histogram of its least uniform ranks, and all its rank functions."""
        from relbo.calibration.picture import draw

        return draw(self)

    @functools.cached_property
    def _p_values(self) -> dict[str, dict[str, float]]:
        return {
            source: {
                name: uniformity_p_value(column, self.num_samples)
                for name, column in zip(self.statistics, ranks.T, strict=True)
            }
            for source, ranks in self.ranks.items()
        }
