r"""Following a threshold online, from the proposals that every visit of a row draws anyway.

A row's T is to hold a share: mean_q share(log w + T) = target, where share(u) is the acceptance probability for
`Rate`, and 1[u >= 0] for a quantile. The first T of a row is solved for on fresh draws. Then, with y the mean log w of
the N proposals of a visit, m the row's level of log w as it was known before, and e = y - m its surprise,

    m <- m + e (v + D) / (v + D + s^2 / N)                        a Kalman filter of the level
    T <- T - e (c + D) / (v + D + s^2 / N) - step (mean share - target) / slope

v is the variance of m, s^2 that of the row's log w under q, and D that of how far a level moves between two visits; c
is the part of v that T has missed as well, 0 while nothing moves, since T was solved for on draws of its own. D / s^2
is one number for all rows. It is measured from the surprises themselves, as what their squares have in excess of
v + s^2 / N, and counts as 0 unless it is more than chance: while nothing moves, T moves by the last term alone, a
Robbins-Monro step that decays as 1 / visits.

A *stranger* is a row whose past is no guide: D exceeds a quarter of s^2, or too few rows have been visited twice to
tell. Its T is solved for on fresh draws at each visit. So it is for rows whose model improves fast, for minibatches and
draws of shared latents that move log w as a whole, and for batches whose rows are other datapoints every time. So it
is, once, for a row whose target has moved away under a schedule. The error that all T have in common, followed or
solved for, `lead` takes away: a Robbins-Monro step for all rows together, in units of each row's s.

Nothing winds up: T stops rising where all possible proposals are accepted anyway, as in a row that cannot reach its
target for want of them, which has no part in `lead` either; and one proposal that is far worse than all before it, or a
visit with a wild spread, moves s by a bounded factor.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from relbo._check import checked_rows, is_every_row, is_int, is_number, require
from relbo.thresholds.base import Reading

ENOUGH = 12.0
"""u at which all but six in a million are accepted: T does not rise where all possible proposals are there."""
ALL_BUT = 0.99999
"""Share of the possible proposals that a row accepts at the least where more of them are not to be had."""
TOO_HIGH = 5.0
"""Level of u, with 2.4 standard deviations on top, above which T is no longer steered but solved for."""


class Gains(eqx.Module):
    """How fast thresholds that are followed online move; the defaults hold on every model that was tried.

    Example:
        >>> relbo.Rate(0.5, gains=relbo.Gains(floor=0.01)).gains.floor
        0.01
    """

    floor: float = 0.002
    """Least Robbins-Monro step: what has moved is forgotten after 1 / floor visits."""
    memory: float = 200.0
    """Visits that what rows have in common is a mean over; at least those of ten batches."""
    own: float = 20.0
    """Visits that a row's own variance of log w is a mean over, with what rows have in common in place of few draws."""
    fewest: float = 20.0
    """Visits of rows that were visited before, below which every row is a stranger."""
    stranger: float = 0.25
    """A level that moves by more than this share of the variance of log w between visits makes its row a stranger."""
    chance: float = 2.0
    """Standard errors by which levels have to move more than nothing to be taken to move."""
    lead: float = 0.2
    """Greatest step of what is common to all rows."""
    retarget: float = 0.25
    """A target whose logit has moved this far under a schedule makes T be solved for anew."""
    outlier: float = 20.0
    """Greatest factor by which one visit may exceed the variance of log w that was known before."""

    def __check_init__(self) -> None:
        for name in ("floor", "memory", "own", "fewest", "stranger", "chance", "lead", "retarget", "outlier"):
            value = getattr(self, name)
            require(is_number(value, above=0), f"Gains: {name}", "a finite number > 0", value)


class FollowState(NamedTuple):
    """Thresholds of all rows, and what is known about their log weights.

    Example:
        >>> relbo.Rate(0.5).init(num_data=4).value.shape
        (4,)
    """

    value: Float[Array, " n"]
    """T of each row as of its last visit, less `lead` times s; NaN if it is to be solved for."""
    mean: Float[Array, " n"]
    """Level of log w of each row, m, in nats."""
    error: Float[Array, " n"]
    """Variance of that level, v."""
    common: Float[Array, " n"]
    """c, the part of v that is an error of T as well."""
    variance: Float[Array, " n"]
    """s^2 of each row, at least 1: T means little on a finer scale than a nat."""
    visits: Int[Array, " n"]
    """Visits of each row since T was solved for; 0 before the first."""
    visited: Int[Array, " n"]
    """Step of each row's last visit."""
    target: Float[Array, " n"]
    """The share for which each row's T was solved."""
    lead: Float[Array, ""]
    """What is added to the T of every row, followed or solved for, in units of its s."""
    spread: Float[Array, ""]
    """Running mean of s over rows, where a new row starts: single rows may have any."""
    drift: Float[Array, ""]
    """D / s^2, running mean of the excess of squared surprises."""
    drift_square: Float[Array, ""]
    """Running mean of the squares of that excess."""
    num_visits: Float[Array, ""]
    """Visits of rows behind `spread`."""
    num_again: Float[Array, ""]
    """Visits of rows behind `drift`."""
    step: Int[Array, ""]
    """Steps taken."""
    num_data: Int[Array, ""]
    """Rows in all; the arrays above may be those of some of them."""


def start(num_data: int) -> FollowState:
    """No row has been visited."""
    require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
    dtype = jnp.result_type(float)  # said, or the arrays are weakly typed up to the first step: a second compilation
    return FollowState(
        value=jnp.full(num_data, jnp.nan, dtype),
        mean=jnp.zeros(num_data),
        error=jnp.zeros(num_data),
        common=jnp.zeros(num_data),
        variance=jnp.ones(num_data),
        visits=jnp.zeros(num_data, jnp.int32),
        visited=jnp.zeros(num_data, jnp.int32),
        target=jnp.full(num_data, 0.5, dtype),
        lead=jnp.zeros(()),
        spread=jnp.ones(()),
        drift=jnp.zeros(()),
        drift_square=jnp.zeros(()),
        num_visits=jnp.zeros(()),
        num_again=jnp.zeros(()),
        step=jnp.zeros((), jnp.int32),
        num_data=jnp.asarray(num_data, jnp.int32),
    )


def moves_by(state: FollowState, gains: Gains) -> Float[Array, ""]:
    """D / s^2 as far as it is more than chance."""
    spread = jnp.maximum(state.drift_square - state.drift**2, 0)
    error = jnp.sqrt(spread / jnp.clip(state.num_again, 1, gains.memory))
    return jnp.maximum(state.drift - gains.chance * error, 0)


def read(
    state: FollowState,
    index: Int[Array, " b"],
    gains: Gains,
    *,
    target: Float[Array, ""],
    rejects: Array | bool,
) -> Reading:
    """T of the rows, or +inf as long as nothing is to be rejected; new rows, strangers and old targets are due."""
    index = checked_rows(index, state.value.shape[0])
    strangers = (state.num_again < gains.fewest) | (moves_by(state, gains) > gains.stranger)
    own = _own(state, index)
    target = target.astype(own.target.dtype)
    moved = jnp.abs(_logit(target) - _logit(own.target)) > gains.retarget
    correction = own.lead * jnp.sqrt(_variance(own))
    return Reading(
        t=jnp.where(rejects, own.value + correction, jnp.inf),
        due=rejects & (jnp.isnan(own.value) | strangers | moved),
        age=own.step - own.visited,
        correction=correction,
    )


def update(
    state: FollowState,
    index: Int[Array, " b"],
    t: Float[Array, " b"],
    log_w: Float[Array, "b n"],
    gains: Gains,
    *,
    target: Float[Array, ""],
    share: Callable[[Float[Array, "b n"]], Float[Array, "b n"]],
    fresh_draws: int,
    rejects: Array | bool,
) -> FollowState:
    """One step of each visited row towards its target, and of what all rows share.

    Args:
        state: before the step.
        index: rows of the batch.
        t: the T that the step used, +inf for a row that ran out of proposals.
        log_w: log weights of the first proposals of each row.
        gains: how fast.
        target: the share to hold, in (0, 1).
        share: of u = log w + T.
        fresh_draws: draws behind a T that was solved for.
        rejects: whether the step rejected anything, or had T = +inf; nothing is learned then.
    """
    log_w = log_w.astype(t.dtype)
    reading = read(state, index, gains, target=target, rejects=rejects)
    own = _own(state, index)
    size, count, mean, seen_variance = _moments(log_w)
    seen = count > 0
    known = seen & (own.visits > 0)
    before = jnp.where(reading.due, t, reading.t)  # of a row that ran out, what made it run out, if that is known
    ran_out = rejects & jnp.isposinf(t)
    variance = _variance(own)
    spread = jnp.sqrt(variance)
    seen_variance = jnp.minimum(seen_variance, gains.outlier * variance)

    # the level, and how far it moved
    drift = moves_by(state, gains) * variance
    surprise = jnp.where(known, mean - own.mean, 0)
    noise = variance / count.clip(1)
    total = own.error + drift + noise
    to_level = jnp.where(known, (own.error + drift) / total, 1)
    missed = jnp.where(known & ~reading.due, own.common + drift, 0)
    excess = surprise**2 - own.error - jnp.where(count > 1, seen_variance, variance) / count.clip(1)
    level = own.mean + to_level * (mean - own.mean)

    # towards the target
    slope = target * (1 - target) * jnp.minimum(2 / spread, 1)
    u = jnp.where(jnp.isneginf(log_w), -jnp.inf, log_w + before[:, None])
    # a visit without any possible proposal counts as well: without it the share would be biased. A row that ran out
    # at a T that was solved for, which the fallback has hidden, had next to no share, unless T = +inf was the solution:
    # then there are impossible proposals.
    no_share = ran_out & reading.due & (count == size)
    shares = jnp.where(no_share, 0, jnp.mean(share(u), axis=-1))
    error = jnp.where(jnp.isfinite(before) | no_share, (shares - target) / slope, 0)
    is_high = jnp.min(jnp.where(jnp.isneginf(log_w), jnp.inf, log_w + before[:, None]), axis=-1) > ENOUGH
    # nor where proposals are impossible and the level is so high that what is missing is not to be had: such a row
    # would climb for ever, and pull all others along
    least = share((own.mean - 3 * spread + before)[:, None])[:, 0]
    is_full = (own.visits > 0) & (count < size) & (least > ALL_BUT)
    error = jnp.where((is_high & seen & ~ran_out) | is_full, jnp.maximum(error, 0), error)
    gain = jnp.maximum(1 / (own.visits.astype(t.dtype) + fresh_draws / size), gains.floor)
    change = surprise * missed / total + jnp.clip(gain * error, -spread, spread)
    # rows that are in every batch correct themselves as often as all rows together could
    others = jnp.maximum(1 - index.shape[0] / state.num_data.astype(t.dtype), 0)
    weight = jnp.where(reading.due, 1, others)
    common = jnp.maximum(1 / (state.num_visits + 50), gains.floor) * index.shape[0]

    # what rows have in common, by one pass over them, and their own variance
    relative = excess / variance
    varied = count > 1
    sums = _sums(
        weight * error / spread,
        varied,
        jnp.where(varied, jnp.sqrt(seen_variance.clip(1)), 0),
        known,
        jnp.where(known, relative, 0),
        jnp.where(known, relative**2, 0),
    )
    lead = state.lead - jnp.minimum(common, gains.lead) * sums[0] / index.shape[0]
    memory = jnp.maximum(gains.memory, 10.0 * index.shape[0])
    num_visits, by_visits = _weight(state.num_visits, sums[1], memory)
    num_again, by_again = _weight(state.num_again, sums[3], memory)
    mean_spread = sums[2] / sums[1].clip(1)
    mean_excess, mean_square = sums[4:] / sums[3].clip(1)
    freedom = (count - 1).clip(0)
    trust = freedom / (4 + jnp.minimum(own.visits.astype(t.dtype) + 1, gains.own) * freedom)
    new_variance = jnp.maximum(variance + trust * (seen_variance - variance), 1)
    # what the lead has learned serves this row as well: without that it would have nothing to stop at where every
    # row is in every batch
    new = jnp.where(reading.due, before, before - jnp.where(ran_out, surprise - spread, change))
    # far above what any share but 1 needs: only a fresh solution brings it back in time
    is_lost = (ran_out & reading.due) | (~ran_out & (error > 0) & (level + before > TOO_HIGH + 2.4 * spread))
    new = jnp.where(is_lost, jnp.nan, new - state.lead * jnp.sqrt(new_variance))

    # only the rows of the batch are written: a choice between the old state and the new would be a pass over all rows
    def put(old: Array, new: Array) -> Array:
        if is_every_row(index, old.shape[0]):  # a scatter is a loop over its rows on a CPU
            return learn(old, new)
        return old.at[index].set(jnp.where(rejects, new.astype(old.dtype), old[index]))

    def learn(old: Array, new: Array) -> Array:
        return jnp.where(rejects, new.astype(old.dtype), old)

    return FollowState(
        value=put(state.value, new),
        mean=put(state.mean, jnp.where(seen, level, own.mean)),
        error=put(state.error, jnp.where(known, to_level * noise, jnp.where(seen, noise, 0))),
        common=put(state.common, missed * (1 - to_level)),
        variance=put(state.variance, new_variance),
        visits=put(state.visits, jnp.where(reading.due, 1, own.visits + 1)),
        visited=put(state.visited, jnp.broadcast_to(state.step, index.shape)),
        target=put(state.target, jnp.where(reading.due, target.astype(own.target.dtype), own.target)),
        lead=learn(state.lead, jnp.clip(lead, -3, 3)),
        spread=learn(state.spread, state.spread + by_visits * (mean_spread - state.spread)),
        drift=learn(state.drift, state.drift + by_again * (mean_excess - state.drift)),
        drift_square=learn(state.drift_square, state.drift_square + by_again * (mean_square - state.drift_square)),
        num_visits=learn(state.num_visits, num_visits),
        num_again=learn(state.num_again, num_again),
        step=state.step + 1,
        num_data=state.num_data,
    )


def _logit(share: Array) -> Array:
    return jnp.log(share) - jnp.log1p(-share)


def _own(state: FollowState, index: Int[Array, " b"]) -> FollowState:
    """The state of the rows of a batch."""
    if is_every_row(index, state.value.shape[0]):
        return state
    return FollowState(*[leaf[index] if leaf.ndim == 1 else leaf for leaf in state])


def _variance(own: FollowState) -> Float[Array, " b"]:
    return jnp.where(own.visits > 0, own.variance, own.spread**2)


def _moments(log_w: Float[Array, "b n"]) -> tuple[int, Array, Array, Array]:
    possible = jnp.isfinite(log_w)
    count = jnp.sum(possible, axis=-1).astype(log_w.dtype)
    mean = jnp.sum(jnp.where(possible, log_w, 0), axis=-1) / count.clip(1)
    squares = jnp.sum(jnp.where(possible, log_w - mean[:, None], 0) ** 2, axis=-1)
    return log_w.shape[1], count, mean, squares / (count - 1).clip(1)


def _sums(first: Float[Array, " b"], *others: Array) -> Float[Array, " n"]:
    """Sums over rows. A reduction is two or three instructions of XLA's, and a step of a small program has hundreds."""
    return jnp.sum(jnp.stack([first, *[one.astype(first.dtype) for one in others]]), axis=1)


def _weight(before: Array, new: Float[Array, ""], memory: Array) -> tuple[Array, Array]:
    # a plain mean over the first visits, then over as many as the memory holds
    total = before + new
    return total, new / jnp.clip(total, 1, memory)
