"""The usual plots of a calibration; needs Matplotlib, which relbo does not import by itself."""

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binom

from relbo.calibration.uniformity import simultaneous_band

if TYPE_CHECKING:
    from relbo.calibration.result import Calibration

INK, BLUE, ORANGE, GREY = "#222222", "#1f5fa8", "#d1620a", "#8a8a8a"
BINS = 20
PROBABILITY = 0.99


class Picture(Figure):
    """A figure that a notebook shows by itself: others are shown only once pyplot has drawn one."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()


def draw(found: "Calibration") -> Figure:
    """Two panels for each source: a histogram of ranks, and distribution functions minus that of uniform ranks."""
    sources = list(found.ranks)
    figure = Picture(figsize=(7.2, 0.4 + 1.75 * len(sources)), layout="constrained", dpi=140)
    panels = figure.subplots(len(sources), 2, squeeze=False, sharex="col", sharey="col")
    for source, (left, right) in zip(sources, panels, strict=True):
        values = found.p_values(source)
        worst = min(values, key=lambda name: values[name])
        _histogram(left, found, source, worst)
        _functions(right, found, source, worst)
        left.set_ylabel(source, fontsize=9)
        right.set_title(f"p = {found.p_value(source):.2g}, least uniform: {worst}", fontsize=8)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=7, color=GREY)
    panels[-1][0].set_xlabel("rank / L, least uniform statistic", fontsize=8)
    panels[-1][1].set_xlabel("rank / L; share of ranks below, minus uniform", fontsize=8)
    return figure


def _histogram(axes: Any, found: "Calibration", source: str, worst: str) -> None:
    ranks = found.ranks[source][:, found.statistics.index(worst)]
    num_states = found.num_samples + 1
    edges = np.linspace(0, num_states, min(BINS, num_states) + 1).round()
    counts, _ = np.histogram(ranks, edges - 0.5)
    share = np.diff(edges) / num_states
    place, width = edges[:-1] / num_states, share
    low, high = binom.ppf([[0.005], [0.995]], len(ranks), share[None])
    axes.bar(place, counts / (len(ranks) * share), width, align="edge", color=BLUE, alpha=0.75)
    for ends in (low, high):
        axes.step(
            [*place, 1], [*(ends / (len(ranks) * share)), ends[-1] / (len(ranks) * share[-1])], where="post", color=GREY
        )
    axes.axhline(1, color=INK, linewidth=0.8)


def _functions(axes: Any, found: "Calibration", source: str, worst: str) -> None:
    ranks = found.ranks[source]
    band = simultaneous_band(len(ranks), found.num_samples, PROBABILITY)
    axes.fill_between(
        band.position, band.lower - band.position, band.upper - band.position, color=GREY, alpha=0.25, linewidth=0
    )
    for name, column in zip(found.statistics, ranks.T, strict=True):
        below = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=found.num_samples + 1))]) / len(column)
        style = {"color": ORANGE, "linewidth": 1.5, "zorder": 3} if name == worst else {"color": BLUE, "linewidth": 0.6}
        axes.plot(band.position, below - band.position, **style)
    axes.axhline(0, color=INK, linewidth=0.8)
