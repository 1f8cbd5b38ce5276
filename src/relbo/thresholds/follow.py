r"""Following a threshold online, from the proposals that every visit of a row draws anyway.

A row's T is to hold a share: mean_q share(log w + T) = target, where share(u) is the acceptance probability for
`Rate`, and 1[u >= 0] for a quantile. At a visit the row moves by

    T <- T - gain (mean share - target),       gain = spread / (4 target (1 - target)),

projected on T_hat +- spread, where T_hat solves for the target on the proposals of the visit alone: the projection
brings a row back at once when the model has left it behind. Between two visits T moves with what all rows share:

- the `level`, a running mean of log w, so that the share does not drift while the bound rises;
- the `lead`, an integral controller on the mean share of whole batches, in units of each row's spread. It removes what
  the rows' own steps leave over on average: the bias of the projection, which few proposals make large, and the lag
  behind a steady drift.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from relbo._check import checked_rows, is_int, is_number, require
from relbo.thresholds.base import Reading


class Gains(eqx.Module):
    """How fast thresholds that are followed online move; the defaults hold on every model that was tried."""

    level: float = 0.02
    """Least weight of one batch in the running mean of log w: a memory of some 50 steps."""
    fewest_visits: float = 50.0
    """Visits of rows that a running mean rests on at the least: those of small datasets need a memory too."""
    spread: float = 0.5
    """Weight of one visit in a row's spread."""
    lead: float = 0.2
    """How fast the common lead grows while the share is off its target."""
    lead_limit: float = 1.0
    """How far it grows, in spreads."""
    fall: float = 1.0
    """Between two visits T falls by at most this many spreads: a row that lags behind must not starve."""

    def __check_init__(self) -> None:
        for name in ("level", "fewest_visits", "spread", "lead", "lead_limit", "fall"):
            value = getattr(self, name)
            require(is_number(value, above=0), f"Gains: {name}", "a finite number > 0", value)


class FollowState(NamedTuple):
    """Thresholds of all rows, relative to the level of log w that all rows share."""

    value: Float[Array, " n"]
    """T of each row as of its last visit; NaN before the first."""
    level_then: Float[Array, " n"]
    """`level` as of each row's last visit."""
    spread: Float[Array, " n"]
    """Running standard deviation of log w under q, in nats, at least 1."""
    visited: Int[Array, " n"]
    """Step of each row's last visit."""
    level: Float[Array, ""]
    """Running mean of log w over recent batches, in nats."""
    lead: Float[Array, ""]
    """What every row's T is moved by before a visit, in units of its spread."""
    typical_spread: Float[Array, ""]
    """Running mean of the spreads of recent batches: a row's own rests on few draws, and one in a tail inflates it."""
    step: Int[Array, ""]
    """Steps taken."""


def start(num_data: int) -> FollowState:
    """No row has been visited."""
    require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
    return FollowState(
        value=jnp.full(num_data, jnp.nan),
        level_then=jnp.zeros(num_data),
        spread=jnp.ones(num_data),
        visited=jnp.zeros(num_data, jnp.int32),
        level=jnp.zeros(()),
        lead=jnp.zeros(()),
        typical_spread=jnp.ones(()),
        step=jnp.zeros((), jnp.int32),
    )


def current(state: FollowState, index: Int[Array, " b"], gains: Gains) -> Float[Array, " b"]:
    """T of the rows, moved with what all rows share since their last visit; NaN before their first."""
    spread = jnp.minimum(state.spread[index], state.typical_spread)
    shared = state.lead * spread - (state.level - state.level_then[index])
    return state.value[index] + jnp.maximum(shared, -gains.fall * spread)


def read(state: FollowState, index: Int[Array, " b"], gains: Gains, *, rejects: Array | bool) -> Reading:
    """T of the rows, or +inf as long as nothing is to be rejected; rows seen for the first time are due."""
    index = checked_rows(index, state.value.shape[0])
    t = jnp.where(rejects, current(state, index, gains), jnp.inf)
    return Reading(t, jnp.isnan(t), state.step - state.visited[index])


def update(
    state: FollowState,
    index: Int[Array, " b"],
    t: Float[Array, " b"],
    log_w: Float[Array, "b n"],
    gains: Gains,
    *,
    target: Float[Array, ""],
    share: Callable[[Float[Array, "b n"]], Float[Array, "b n"]],
    solve: Callable[[Float[Array, "b n"]], Float[Array, " b"]],
    rejects: Array | bool,
) -> FollowState:
    """One step of each visited row towards its target, and of what all rows share.

    Args:
        state: before the step.
        index: rows of the batch.
        t: the T that the step used; without rejection the rows' own T is followed all the same.
        log_w: log weights of the first proposals of each row.
        gains: how fast.
        target: the share to hold, in (0, 1).
        share: of u = log w + T.
        solve: from log weights to the T that holds the target on them.
        rejects: whether the step rejected anything, or had T = +inf.
    """
    log_w = log_w.astype(t.dtype)
    possible = jnp.isfinite(log_w)
    count = jnp.maximum(jnp.sum(possible, axis=-1), 1).astype(t.dtype)
    mean = jnp.sum(jnp.where(possible, log_w, 0), axis=-1) / count
    deviation = jnp.where(possible, log_w - mean[:, None], 0)
    seen = jnp.sqrt(jnp.sum(deviation**2, axis=-1) / jnp.maximum(count - 1, 1))

    is_first = jnp.isnan(state.value[index])
    spread = jnp.where(is_first, seen, state.spread[index] + gains.spread * (seen - state.spread[index]))
    spread = jnp.maximum(spread, 1.0)

    t_hat = solve(log_w)
    own = jnp.where(is_first, t_hat, current(state, index, gains))
    t = jnp.where(rejects, t, own)
    u = jnp.where(jnp.isneginf(log_w), -jnp.inf, log_w + t[:, None])
    error = (jnp.mean(share(u), axis=-1) - target) / (4 * target * (1 - target))
    moved = jnp.clip(t - spread * error, t_hat - spread, t_hat + spread)
    # a fresh solution rests on many draws: keep it rather than follow a few of them
    new_t = jnp.where(is_first | ~jnp.any(possible, axis=-1), t, moved)

    # a running mean over an epoch, or over 50 steps if that is less; a plain average over the first steps
    part = index.shape[0] / state.value.shape[0]
    least = jnp.minimum(jnp.maximum(gains.level, part), jnp.minimum(index.shape[0] / gains.fewest_visits, 1.0))
    weight = jnp.maximum(1 / (state.step.astype(t.dtype) + 1), least)
    level = state.level + weight * (jnp.mean(mean) - state.level)
    typical = state.typical_spread + weight * (jnp.mean(jnp.maximum(seen, 1.0)) - state.typical_spread)
    lead = state.lead - gains.lead * jnp.mean(jnp.where(is_first, 0, error))
    return FollowState(
        value=state.value.at[index].set(new_t),
        level_then=state.level_then.at[index].set(level),
        spread=state.spread.at[index].set(spread),
        visited=state.visited.at[index].set(state.step),
        level=level,
        lead=jnp.clip(lead, -gains.lead_limit, gains.lead_limit),
        typical_spread=typical,
        step=state.step + 1,
    )
