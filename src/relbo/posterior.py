r"""`posterior`: draws from the resampled posterior r of every datapoint, and what they are worth.

A draw of the proposal is accepted with probability a(z) = w / (w + e^-T), w = p(x, z) / q(z | x). What is kept follows

    r(z) proportional to q(z) a(z),

which lies between q (T = +inf) and the posterior (T = -inf), closer to the posterior the more is rejected: KL(r || p)
falls with T (Grover et al. 2018, Theorem 1).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from relbo import bounds
from relbo._check import checked_key, checked_pair, checked_x, is_int, num_datapoints, require
from relbo._options import check
from relbo._tree import numbers_as_arrays
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.devices import as_mesh, map_blocks
from relbo.evaluate import as_input
from relbo.pareto import khat, log_mean_error
from relbo.rejection import sample
from relbo.streams import split_streams
from relbo.thresholds import AbstractThreshold, Rate, as_threshold
from relbo.thresholds.base import solved
from relbo.types import AnyPair, Number
from relbo.view import BatchView, Proposals, view_of
from relbo.worth import Posterior as Posterior
from relbo.worth import Proposed, weighed

LANES = 20_000
"""Draws that are sought at once."""
AT_ONCE = 2_000
"""Draws of each row whose densities are evaluated at once."""
MOST = 1_000_000
"""Draws of one row in one call."""
KEEP_BYTES = 2**28
"""Memory for proposals that are kept."""


class Settings(NamedTuple):
    """What decides how draws from r are sought."""

    threshold: AbstractThreshold
    acceptance: AbstractAcceptance
    num_samples: int
    num_draws: int
    max_rounds: int
    throw: bool
    num_expected: int
    """Proposals of a row that its draws should need; S where no rate is known."""


def settings_of(
    threshold: AbstractThreshold | Number | str | None,
    rate: Any,
    acceptance: AbstractAcceptance | None,
    num_samples: int,
    num_draws: int,
    max_rounds: int,
    *,
    throw: bool,
) -> Settings:
    """The checked settings of `posterior` and of `relbo.numpyro.resample`."""
    for name, value in (("num_samples", num_samples), ("num_draws", num_draws)):
        require(is_int(value, at_least=2), name, "an integer >= 2", value)
        require(value <= MOST, name, f"at most {MOST:,} in one call; draw more in others, with other keys", value)
    require(np.ndim(rate) == 0, "rate", "one number for all rows", rate)
    rule = as_threshold(threshold, rate, num_draws=num_draws)
    expected = num_samples
    if isinstance(rule, Rate):
        require(not callable(rule.rate), "rate", "a number outside training; give a schedule's last value", rule.rate)
        aim: Any = rule.rate
        expected = math.ceil(num_samples / float(aim))
    rule, accept = numbers_as_arrays((rule, Soft() if acceptance is None else acceptance))
    return Settings(rule, accept, num_samples, num_draws, max_rounds, throw, expected)


def budget_of(settings: Settings, num_rows: int) -> int:
    """Proposals of each row that are evaluated first, and all kept: those that its draws should need, if few enough."""
    return min(settings.num_expected, max(settings.num_samples, LANES // num_rows))


def draw_rows(
    key: PRNGKeyArray, pair: AnyPair, x: PyTree, settings: Settings, budget: int | None = None
) -> dict[str, Any]:
    """Draws from r for all rows of a batch, and the proposals behind them.

    Proposals are the pilot draws behind T and the first `budget` of each row's stream, by default S: all of them are
    independent draws from q, whatever was accepted later.
    """
    budget = settings.num_samples if budget is None else budget
    key_pilot, key_sample = jax.random.split(key)
    view, acceptance, size = view_of(pair, x), settings.acceptance, settings.num_samples
    streams = split_streams(key_sample)
    # evaluated together: a program is then compiled once for both
    drawn = view.draw(key_pilot, settings.num_draws), view.draw(streams.propose, budget)
    proposals = _evaluated(view, jax.tree.map(lambda *v: jnp.concatenate(v, axis=1), *drawn))
    first = jax.tree.map(lambda v: v[:, settings.num_draws :], proposals)
    log_w_all = log_odds_of(*proposals.log_probs, jnp.zeros(()))
    log_w = log_w_all[:, : settings.num_draws]
    t = solved(settings.threshold, log_w, acceptance)
    places = sample(
        view,
        streams,
        first,
        t,
        acceptance,
        num_samples=size,
        max_rounds=settings.max_rounds,
        throw=settings.throw,
    )
    order = jnp.argsort(~places.used, axis=1, stable=True)[:, :size]
    row = jnp.arange(t.shape[0])[:, None]
    z, log_probs = jax.tree.map(lambda v: v[row, order], (places.z, places.log_probs))
    # where the S-th acceptance stood, for rows that had it within the budget
    is_late = places.exhausted | (places.num_proposals > budget)
    num_proposals = jnp.where(is_late, places.num_proposals, order[:, -1].astype(jnp.int32) + 1)
    signal = bounds.signal(log_probs.log_p - log_probs.log_q, t, acceptance)
    log_z = bounds.log_z_counted(size, num_proposals).astype(signal.dtype)
    # neither the counts nor the draws of a row that gave up say what they say of the others
    signal = jnp.where(places.exhausted[:, None], jnp.nan, signal)
    return {
        "z": z,
        "acceptance": jnp.where(places.exhausted, jnp.nan, jnp.exp(log_z)),
        "kl": bounds.kl_from_signal(signal),
        "ess": bounds.effective_sample_size(signal),
        "num_proposals": num_proposals,
        "exhausted": places.exhausted,
        "threshold": t,
        "log_weights": signal,
        "proposals": proposals.z,
        "log_weights_before": log_w_all,
    }


def _evaluated(view: Any, z: PyTree) -> Proposals:
    # whole-batch programs would need all of the data for every draw at once: so many draws at a time
    num_draws = jax.tree.leaves(z)[0].shape[1]
    if num_draws <= AT_ONCE:
        return Proposals(z, view.log_densities(z))
    padding = -num_draws % AT_ONCE

    def blocks(v: Array) -> Array:
        filled = jnp.concatenate([v, jnp.repeat(v[:, -1:], padding, axis=1)], axis=1)
        return jnp.moveaxis(filled.reshape(v.shape[0], -1, AT_ONCE, *v.shape[2:]), 1, 0)

    def joined(v: Array) -> Array:
        return jnp.moveaxis(v, 0, 1).reshape(v.shape[1], -1)[:, :num_draws]

    return Proposals(z, jax.tree.map(joined, jax.lax.map(view.log_densities, jax.tree.map(blocks, z))))


def assemble(figures: dict[str, Any], axes: dict[str, int | None] | None = None, **more: Any) -> Posterior:
    """The result on the host; tails are a matter of a few hundred numbers a row."""
    z, kept = figures["z"], figures["proposals"]
    host: dict[str, Any] = {n: np.asarray(value) for n, value in figures.items() if n not in ("z", "proposals")}
    before = host.pop("log_weights_before")
    num_draws, num_weighed = host["log_weights"].shape[1], before.shape[1]
    num_kept = 0 if kept is None else jax.tree.leaves(kept)[0].shape[1]
    proposed = Proposed(kept, weighed(before[:, :num_kept]), axes) if num_kept else None
    top = np.max(before, axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(before.astype(np.float64) - np.where(np.isfinite(top), top, 0))
    total, squares = np.sum(weights, axis=1), np.sum(weights**2, axis=1)
    with np.errstate(divide="ignore"):  # a row whose proposals are all impossible has an evidence of 0
        log_evidence = np.log(total / num_weighed) + np.where(np.isfinite(top), top, 0)[:, 0]
    return Posterior(
        z=z,
        **host,
        log_evidence=log_evidence,
        log_evidence_error=np.array([log_mean_error(row) for row in before]),
        ess_before=total**2 / np.where(squares == 0, 1, squares) * (num_draws / num_weighed),
        pareto_k=np.array([khat(row) for row in before]),
        num_weighed=num_weighed,
        proposals=proposed,
        **more,
    )


def bytes_of(z: PyTree) -> int:
    """What one draw of one row takes."""
    return sum(math.prod(leaf.shape[2:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(z))


def num_kept(bytes_each: int, num_rows: int, available: int) -> int:
    """How many of the proposals of each row are kept."""
    return min(available, KEEP_BYTES // max(1, bytes_each * num_rows))


class _Fixed(NamedTuple):
    pair: AnyPair
    settings: Settings
    budget: int


def _draw_block(fixed: _Fixed, block: tuple[PRNGKeyArray, PyTree]) -> dict[str, Any]:
    return draw_rows(block[0], fixed.pair, block[1], fixed.settings, fixed.budget)


def _blocks(key: PRNGKeyArray, x: PyTree, total: int, size: int) -> Iterator[tuple[PRNGKeyArray, PyTree]]:
    # equal blocks, one compilation: the last one is padded by repeating its last row
    for start in range(0, total, size):
        rows = np.minimum(np.arange(start, start + size), total - 1)
        yield jax.random.fold_in(key, start), jax.tree.map(lambda v, rows=rows: as_input(v[rows]), x)


def posterior(
    key: PRNGKeyArray,
    pair: AnyPair,
    x: PyTree,
    *,
    rate: Any = None,
    threshold: AbstractThreshold | Number | str | None = None,
    num_samples: int = 1_000,
    num_draws: int = 1_000,
    acceptance: AbstractAcceptance | None = None,
    max_rounds: int = 1_000,
    throw: bool = True,
    on_progress: Callable[[int], None] | None = None,
    mesh: Mesh | int | None = None,
) -> Posterior:
    """Draws from r for every datapoint, whoever trained the pair.

    Args:
        key: randomness.
        pair: model and proposal.
        x: datapoints, the first axis of every leaf running over them.
        rate: acceptance rate to aim at, in (0, 1): the smaller, the closer r is to the posterior.
        threshold: a threshold, a number (T itself) or words such as "quantile:0.9", instead.
        num_samples: S >= 2, draws for each datapoint.
        num_draws: plain draws from the proposal behind T; they serve the weighed estimates too.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not it is flagged in `exhausted`.
        on_progress: called with the number of rows done since the last call.
        mesh: devices that share the datapoints, or how many of JAX's; the draws do not depend on it.

    Returns:
        A `Posterior`.

    Example:
        >>> draws = relbo.posterior(key, pair, x, rate=0.1, num_samples=100)
        >>> print(draws.summary())
        draws from r            100 for each of 4 row(s), 0 exhausted
        acceptance rate         0...
        ...
    """
    checked_key(key, "posterior: key")
    checked_pair(pair, "posterior: pair")
    check(max_rounds=max_rounds)
    # NumPy's integers would be traced
    num_samples = int(num_samples) if is_int(num_samples, at_least=2) else num_samples
    num_draws = int(num_draws) if is_int(num_draws, at_least=2) else num_draws
    is_known = acceptance is None or isinstance(acceptance, AbstractAcceptance)
    require(is_known, "posterior: acceptance", "an acceptance such as Soft(), Hard() or Always()", acceptance)
    settings = settings_of(threshold, rate, acceptance, num_samples, num_draws, max_rounds, throw=throw)
    total = num_datapoints(x, "posterior: x")
    checked_x(pair, x, "posterior: x")
    # a batch program takes all its rows together
    budget = budget_of(settings, total if isinstance(view_of(pair, x), BatchView) else 1)
    size = view_of(pair, x).rows_at_once(LANES // budget)
    parts: list[Any] = []
    fixed = _Fixed(pair, settings, budget)
    for found in map_blocks(_draw_block, as_mesh(mesh, "posterior: mesh"), fixed, _blocks(key, x, total, size)):
        keep = min(size, total - size * len(parts))
        most = num_kept(bytes_of(found["proposals"]), total, settings.num_draws + budget)
        # copied: a part would keep the whole in memory
        found["proposals"] = jax.tree.map(lambda v, most=most: v[:, :most].copy(), found["proposals"])
        parts.append(jax.tree.map(lambda v, keep=keep: v[:keep], found))
        if on_progress is not None:
            on_progress(keep)
    return assemble(jax.tree.map(lambda *v: np.concatenate(v), *parts))
