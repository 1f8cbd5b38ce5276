r"""`Posterior`: draws from r, the proposals that they were taken from, and what both are worth.

Two estimates of a posterior expectation come out of the same proposals. The draws from r are plain draws: their mean
estimates E_r[f], which is not yet E[f | x], by KL(r || p). All proposals, weighed by w = p / q, estimate E[f | x]
itself and waste none: the rejection step is averaged out, as Rao and Blackwell would have it (Casella and Robert 1996).
The largest weights are smoothed (Vehtari et al. 2024) where nearly all of them are distinct; the tied weights of
discrete z stay as they are.
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from relbo._table import html_table
from relbo.pareto import largest_reliable, smoothed

FEW = 50
"""Effective draws below which an importance estimate says little."""
FAR = 0.1
"""Nats between r and the posterior that show in plain means of the draws."""


@dataclasses.dataclass(frozen=True)
class Proposed:
    """Proposals, accepted or not: independent draws from q."""

    z: PyTree
    """(rows, proposals, ...) draws from q; of a NumPyro program, values of its sites by name."""
    log_weights: np.ndarray
    """(rows, proposals) normalised log p / q, smoothed where they have a tail."""
    axes: dict[str, int | None] | None = None
    """Of a NumPyro program: where the row stands in the value of a site; None if the whole program is one row."""

    def expectation(self, function: Callable[[PyTree], Any]) -> PyTree:
        """The weighed mean of `function(z)`, z being one draw of one row."""
        values = jax.vmap(jax.vmap(function))(self.z)
        return jax.tree.map(self._mean, values)

    def moments(self) -> tuple[PyTree, PyTree]:
        """Means and standard deviations of z, in the shape of one draw."""
        means = jax.tree.map(self._mean, self.z)

        def spread(z: Any, mean: np.ndarray) -> np.ndarray:
            return np.sqrt(self._mean((np.asarray(z, np.float64) - mean[:, None]) ** 2))

        spreads = jax.tree.map(spread, self.z, means)
        return self._as_sites(means), self._as_sites(spreads)

    def by_name(self) -> dict[str, np.ndarray]:
        """(1, proposals, ...) values by name, as ArviZ takes them."""
        if self.axes is None:
            return _by_name(self.z)
        draws = {name: np.asarray(value) for name, value in self.z.items()}
        return {
            name: value if (a := self.axes[name]) is None else np.moveaxis(value, 0, a)[None]
            for name, value in draws.items()
        }

    def _mean(self, values: Any) -> np.ndarray:
        weights = np.exp(self.log_weights)
        return np.einsum("rk,rk...->r...", weights, np.asarray(values, np.float64))

    def _as_sites(self, tree: Any) -> Any:
        if self.axes is None:
            return tree
        return {
            name: value[0] if (a := self.axes[name]) is None else np.moveaxis(value, 0, a)
            for name, value in tree.items()
        }


@dataclasses.dataclass(frozen=True)
class Posterior:
    """Draws from r and what is known about them.

    A row is what was accepted or rejected by itself: a datapoint or, of a NumPyro program, a row of the plate of the
    local latents, or the whole program.

    Example:
        >>> draws = relbo.posterior(key, pair, x, rate=0.5, num_samples=20)
        >>> draws.log_weights.shape, draws.kl.shape
        ((4, 20), (4,))
    """

    z: PyTree
    """(rows, draws, ...) draws from r."""
    acceptance: np.ndarray
    """(S-1)/(n-1) for each row, n the proposals up to its S-th acceptance: unbiased for the acceptance rate."""
    log_evidence: np.ndarray
    """Log of the mean weight p / q of all proposals, for each row, in nats. Its expectation lies *below* log p(x)."""
    log_evidence_error: np.ndarray
    """Standard error of `log_evidence`, widened by the skewness of the weights; inf where it cannot be known."""
    kl: np.ndarray
    """Estimate of KL(r || p(z | x)) for each row, in nats. Its expectation lies *below* the true value."""
    ess: np.ndarray
    """Effective sample size of the draws, if weighed by what separates them from the posterior, p / (q a)."""
    ess_before: np.ndarray
    """The same for plain draws from the proposal, weighed by p / q, as a share of the number of draws."""
    pareto_k: np.ndarray
    """Shape of the tail of the weights p / q of all proposals, before rejection; above 0.7 nothing here is reliable.
    NaN where ties, as of discrete z, or too few proposals leave it unknown, -inf where all weights are equal."""
    num_proposals: np.ndarray
    """Draws from the proposal that each row paid for up to its last draw from r, n."""
    num_weighed: int
    """Proposals of each row behind `log_evidence` and `pareto_k`."""
    exhausted: np.ndarray
    """Rows that ran out of proposals; their draws are not from r, and the figures that rest on them are NaN."""
    threshold: np.ndarray
    """T of each row, in nats."""
    log_weights: np.ndarray
    """(rows, draws) log p / (q a) of each draw, for estimates that weigh what is left."""
    proposals: Proposed | None = None
    """Proposals that were kept, as many as memory allows; None if that is none."""
    samples: dict[str, Any] | None = None
    """Of a NumPyro program: (draws, ...) values of its latent and deterministic sites, as `MCMC.get_samples()`."""

    def expectation(self, function: Callable[[PyTree], Any]) -> PyTree:
        """E[function(z) | x] of each row from all proposals that were kept, by importance sampling.

        The largest weights are Pareto-smoothed, those of discrete z, which are tied, are plain: `verdict` says which.

        Args:
            function: takes one draw of one row: a z or, of a NumPyro program, a dictionary of sites (all of them where
                the whole program is one row, else the latents of the row). JAX must be able to trace it.

        Returns:
            What the function returns, with the row as first axis.
        """
        return self._kept().expectation(function)

    @property
    def mean(self) -> PyTree:
        """Posterior means from all proposals that were kept; of a NumPyro program, by site and in its shape."""
        return self._kept().moments()[0]

    @property
    def sd(self) -> PyTree:
        """Posterior standard deviations, likewise."""
        return self._kept().moments()[1]

    @property
    def verdict(self) -> list[str]:
        """For each row, in words, whether its draws and estimates can be relied on; "plain weights" if not smoothed."""
        return [self._verdict(row) for row in range(self.exhausted.shape[0])]

    def summary(self) -> str:
        """The figures as text, means over the rows that are not exhausted."""
        rows, draws = self.log_weights.shape
        kept = ~self.exhausted
        possible = ~np.isneginf(self.log_evidence)
        evidence = np.sum(self.log_evidence[possible]) if possible.any() else -np.inf
        error = np.sqrt(np.sum(np.square(self.log_evidence_error[possible])))
        left_out = "" if possible.all() else f", without {np.sum(~possible)} row(s) of impossible proposals"

        def mean(figure: np.ndarray) -> float:
            return float(np.mean(figure[kept])) if kept.any() else float("nan")

        known = self.pareto_k[~np.isnan(self.pareto_k)]
        largest = f"{np.max(known):.2f}" if known.size else "unknown"
        said = [f"{word} ({count} of {rows} rows)" for word, count in collections.Counter(self.verdict).most_common()]
        return "\n".join(
            [
                f"draws from r            {draws} for each of {rows} row(s), {int(np.sum(self.exhausted))} exhausted",
                f"acceptance rate         {mean(self.acceptance):.3f}",
                f"proposals               {int(np.sum(self.num_proposals))}, weighed {self.num_weighed} a row",
                f"log evidence            {evidence:.3f} +- {error:.3f} (biased downwards{left_out})",
                f"KL(r || posterior)      {mean(self.kl):.4f} nats (biased downwards)",
                f"effective sample size   {mean(self.ess):.0f}, before {mean(self.ess_before):.0f}",
                f"largest Pareto k-hat    {largest}, of p / q before rejection",
                *(f"verdict                 {line}" for line in said),
            ]
        )

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return html_table({line[:24].strip(): line[24:] for line in self.summary().splitlines()})

    def to_arviz(self, *, weighted: bool = False) -> Any:
        """An ArviZ `InferenceData` with one chain: draws, and their log weights as sample statistics.

        Args:
            weighted: the proposals that were kept in place of the draws from r, with their normalised log
                weights; ArviZ does not weigh by itself.
        """
        try:
            import arviz
        except ImportError as error:
            error.add_note("to_arviz needs ArviZ: install it with `pip install arviz`.")
            raise
        if weighted:
            return arviz.from_dict(
                posterior=self._kept().by_name(), sample_stats={"log_weight": _draw_first(self._kept().log_weights)}
            )
        if self.samples is not None:
            values = {name: np.asarray(value)[None] for name, value in self.samples.items()}
        else:
            values = _by_name(self.z)
        return arviz.from_dict(posterior=values, sample_stats={"log_weight": _draw_first(self.log_weights)})

    def _kept(self) -> Proposed:
        if self.proposals is None:
            raise ValueError(
                "expectations need proposals that were kept, got none, since they would not fit into memory. Ask for "
                "fewer rows at a time."
            )
        return self.proposals

    def _verdict(self, row: int) -> str:
        k, size = self.pareto_k[row], self.num_weighed
        effective = self.ess_before[row] / self.log_weights.shape[1] * size
        if self.exhausted[row]:
            return "ran out of proposals: no draws from r"
        if size < 25:
            return "too few proposals to judge"
        if k > largest_reliable(size):
            return "q misses the tails: not reliable"
        if effective < FEW:
            return "few proposals count: not reliable"
        if not np.isfinite(self.log_evidence_error[row]):
            return "q may miss the tails: draw more proposals to know"
        plain = "" if k > -np.inf else " (plain weights)"
        if self.kl[row] > FAR:
            return f"weighed expectations are fine{plain}, but r is not yet the posterior: lower the rate or the floor"
        return f"fine{plain}"


def weighed(log_weights: np.ndarray) -> np.ndarray:
    """Smoothed and normalised log weights of each row, (rows, proposals)."""
    return np.stack([smoothed(row) for row in log_weights])


def _draw_first(values: Any) -> np.ndarray:
    return np.swapaxes(np.asarray(values), 0, 1)[None]


def _by_name(tree: PyTree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"z" + jax.tree_util.keystr(path): _draw_first(leaf) for path, leaf in leaves}
