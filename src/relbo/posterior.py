r"""`posterior`: draws from the resampled posterior r of every datapoint, and what they are worth.

A draw of the proposal is accepted with probability a(z) = w / (w + e^-T), w = p(x, z) / q(z | x). What is kept follows

    r(z) proportional to q(z) a(z),

which lies between q (T = +inf) and the posterior (T = -inf), closer to the posterior the more is rejected: KL(r || p)
falls with T (Grover et al. 2018, Theorem 1).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from relbo import bounds
from relbo._check import checked_key, checked_pair, is_int, num_datapoints, require
from relbo._options import check
from relbo._tree import numbers_as_arrays
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.evaluate import as_input
from relbo.pareto import khat
from relbo.rejection import draw_accepted
from relbo.streams import split_streams
from relbo.thresholds import AbstractThreshold, as_threshold
from relbo.types import AnyPair, Number
from relbo.view import view_of

LANES = 20_000
"""Draws that are sought at once."""


@dataclasses.dataclass(frozen=True)
class Posterior:
    """Draws from r and what is known about them.

    A row is what was accepted or rejected by itself: a datapoint or, of a NumPyro program, a row of the plate of the
    local latents, or the whole program.
    """

    z: PyTree
    """(rows, draws, ...) draws from r."""
    acceptance: np.ndarray
    """(S-1)/(N-1) for each row: the unbiased estimate of the acceptance rate."""
    log_evidence: np.ndarray
    """Estimate of log p(x) of each row in nats. Its expectation lies *below* log p(x)."""
    log_evidence_error: np.ndarray
    """Standard error of `log_evidence`, by the delta method."""
    kl: np.ndarray
    """Estimate of KL(r || p(z | x)) for each row, in nats. Its expectation lies *below* the true value."""
    ess: np.ndarray
    """Effective sample size of the draws, if weighed by what separates them from the posterior, p / (q a)."""
    ess_before: np.ndarray
    """The same for plain draws from the proposal, weighed by p / q, as a share of the number of draws."""
    pareto_k: np.ndarray
    """Shape of the tail of the weights p / (q a) of the draws; above 0.7 estimates from them are not to be trusted."""
    pareto_k_before: np.ndarray
    """The same for the weights p / q of plain draws from the proposal."""
    num_proposals: np.ndarray
    """Draws from the proposal that each row paid for, N."""
    exhausted: np.ndarray
    """Rows that ran out of proposals; their draws are not from r, and the figures that rest on them are NaN."""
    threshold: np.ndarray
    """T of each row, in nats."""
    log_weights: np.ndarray
    """(rows, draws) log p / (q a) of each draw, for estimates that weigh what is left."""
    samples: dict[str, Any] | None = None
    """Of a NumPyro program: (draws, ...) values of its latent and deterministic sites, as `MCMC.get_samples()`."""

    def summary(self) -> str:
        """The figures as text, means over the rows that are not exhausted."""
        rows, draws = self.log_weights.shape
        kept = ~self.exhausted
        error = np.sqrt(np.sum(np.square(self.log_evidence_error[kept])))

        def mean(figure: np.ndarray) -> float:
            return float(np.mean(figure[kept])) if kept.any() else float("nan")

        def largest(figure: np.ndarray) -> str:
            known = figure[kept & ~np.isnan(figure)]
            return f"{np.max(known):.2f}" if known.size else "unknown"

        return "\n".join(
            [
                f"draws from r            {draws} for each of {rows} row(s), {int(np.sum(self.exhausted))} exhausted",
                f"acceptance rate         {mean(self.acceptance):.3f}",
                f"proposals               {int(np.sum(self.num_proposals))}",
                f"log evidence            {np.sum(self.log_evidence[kept]):.3f} +- {error:.3f} (biased downwards)",
                f"KL(r || posterior)      {mean(self.kl):.4f} nats (biased downwards)",
                f"effective sample size   {mean(self.ess):.0f}, before {mean(self.ess_before):.0f}",
                f"largest Pareto k-hat    {largest(self.pareto_k)}, before {largest(self.pareto_k_before)}",
            ]
        )

    def to_arviz(self) -> Any:
        """An ArviZ `InferenceData` with one chain: draws, and their log weights as sample statistics."""
        try:
            import arviz
        except ImportError as error:
            error.add_note("to_arviz needs ArviZ: install it with `pip install arviz`.")
            raise
        if self.samples is not None:
            values = {name: np.asarray(value)[None] for name, value in self.samples.items()}
        else:
            leaves = jax.tree_util.tree_leaves_with_path(self.z)
            values = {
                "z" + jax.tree_util.keystr(path): np.swapaxes(np.asarray(leaf), 0, 1)[None] for path, leaf in leaves
            }
        weights = np.swapaxes(self.log_weights, 0, 1)[None]
        return arviz.from_dict(posterior=values, sample_stats={"log_weight": weights})


class Settings(NamedTuple):
    """What decides how draws from r are sought."""

    threshold: AbstractThreshold
    acceptance: AbstractAcceptance
    num_samples: int
    num_draws: int
    max_rounds: int
    throw: bool


def settings_of(
    threshold: AbstractThreshold | Number | str | None,
    rate: Number | None,
    acceptance: AbstractAcceptance | None,
    num_samples: int,
    num_draws: int,
    max_rounds: int,
    *,
    throw: bool,
) -> Settings:
    """The checked settings of `posterior` and of `relbo.numpyro.resample`."""
    require(is_int(num_samples, at_least=2), "num_samples", "an integer >= 2", num_samples)
    require(is_int(num_draws, at_least=2), "num_draws", "an integer >= 2", num_draws)
    rule, accept = numbers_as_arrays(
        (as_threshold(threshold, rate, num_draws=num_draws), Soft() if acceptance is None else acceptance)
    )
    return Settings(rule, accept, num_samples, num_draws, max_rounds, throw)


def draw_rows(key: PRNGKeyArray, pair: AnyPair, x: PyTree, settings: Settings) -> dict[str, Any]:
    """Draws from r for all rows of a batch, with the fields of `Posterior` that are arrays of the device."""
    key_pilot, key_sample = jax.random.split(key)
    view, acceptance, size = view_of(pair, x), settings.acceptance, settings.num_samples
    log_w = view.log_weights(key_pilot, settings.num_draws)
    t = settings.threshold.solve(log_w, acceptance)
    accepted = draw_accepted(
        view,
        split_streams(key_sample),
        t,
        acceptance,
        num_samples=size,
        max_rounds=settings.max_rounds,
        throw=settings.throw,
    )
    signal = bounds.signal(accepted.log_probs.log_p - accepted.log_probs.log_q, t, acceptance)
    log_z = bounds.log_z_counted(size, accepted.num_proposals).astype(signal.dtype)
    # neither the counts nor the draws of a row that gave up say what they say of the others
    signal = jnp.where(accepted.exhausted[:, None], jnp.nan, signal)
    log_z = jnp.where(accepted.exhausted, jnp.nan, log_z)
    return {
        "z": accepted.z,
        "acceptance": jnp.exp(log_z),
        "log_evidence": bounds.log_mean_exp(signal) + log_z,
        "log_evidence_error": jnp.sqrt(bounds.relative_variance(signal) + (1 - jnp.exp(log_z)) / size),
        "kl": bounds.kl_from_signal(signal),
        "ess": bounds.effective_sample_size(signal),
        "ess_before": bounds.effective_sample_size(log_w) * (size / settings.num_draws),
        "num_proposals": accepted.num_proposals,
        "exhausted": accepted.exhausted,
        "threshold": t,
        "log_weights": signal,
        "log_weights_before": log_w,
    }


def assemble(figures: dict[str, Any], **more: Any) -> Posterior:
    """The result on the host; fitting tails is a matter of a few hundred numbers."""
    z = figures["z"]
    host: dict[str, Any] = {name: np.asarray(value) for name, value in figures.items() if name != "z"}
    before = host.pop("log_weights_before")
    return Posterior(
        z=z,
        **host,
        pareto_k=np.array([khat(row) for row in host["log_weights"]]),
        pareto_k_before=np.array([khat(row) for row in before]),
        **more,
    )


_draw_rows = eqx.filter_jit(draw_rows)


def posterior(
    key: PRNGKeyArray,
    pair: AnyPair,
    x: PyTree,
    *,
    rate: Number | None = None,
    threshold: AbstractThreshold | Number | str | None = None,
    num_samples: int = 1_000,
    num_draws: int = 1_000,
    acceptance: AbstractAcceptance | None = None,
    max_rounds: int = 1_000,
    throw: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Posterior:
    """Draws from r for every datapoint, whoever trained the pair.

    Args:
        key: randomness.
        pair: model and proposal.
        x: datapoints, the first axis of every leaf running over them.
        rate: acceptance rate to aim at, in (0, 1): the smaller, the closer r is to the posterior.
        threshold: a threshold, a number (T itself) or words such as "quantile:0.9", instead.
        num_samples: S >= 2, draws for each datapoint.
        num_draws: plain draws from the proposal behind T and the figures "before".
        acceptance: the acceptance function, `relbo.Soft()` by default.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not it is flagged in `exhausted`.
        on_progress: called with the number of rows done since the last call.

    Returns:
        A `Posterior`.

    Example:
        >>> draws = relbo.posterior(key, pair, x, rate=0.1)
        >>> print(draws.summary())
    """
    checked_key(key, "posterior: key")
    checked_pair(pair, "posterior: pair")
    check("posterior: ", num_samples=num_samples, num_draws=num_draws, max_rounds=max_rounds)
    is_known = acceptance is None or isinstance(acceptance, AbstractAcceptance)
    require(is_known, "posterior: acceptance", "an acceptance such as Soft(), Hard() or Always()", acceptance)
    settings = settings_of(threshold, rate, acceptance, num_samples, num_draws, max_rounds, throw=throw)
    total = num_datapoints(x, "posterior: x")
    size = view_of(pair, x).rows_at_once(LANES // num_samples)
    parts = []
    for start in range(0, total, size):
        # equal blocks, one compilation: the last one is padded by repeating its last row
        rows = np.minimum(np.arange(start, start + size), total - 1)
        block = jax.tree.map(lambda v, rows=rows: as_input(v[rows]), x)
        keep = min(size, total - start)
        found = _draw_rows(jax.random.fold_in(key, start), pair, block, settings)
        parts.append(jax.tree.map(lambda v, keep=keep: np.asarray(v)[:keep], found))
        if on_progress is not None:
            on_progress(keep)
    return assemble(jax.tree.map(lambda *v: np.concatenate(v), *parts))
