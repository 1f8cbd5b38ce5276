"""`Rate`: thresholds that hold a target acceptance rate."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._check import checked_rows, is_int, is_real, require
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.rejection import LogProbs
from relbo.thresholds.base import AbstractThreshold, fresh_log_weights, solve_where
from relbo.types import Batch, Pair

LEVEL_WEIGHT = 0.02
"""Least weight of one batch in the running mean of log w: a memory of some 50 steps."""
FEWEST_VISITS = 50
"""Visits of rows that a running mean rests on at the least: those of small datasets need a memory too."""
SPREAD_WEIGHT = 0.5
"""Weight of one visit in a row's spread."""
LEAD_GAIN, LEAD_LIMIT = 0.2, 1.0
"""How fast the common lead grows while the acceptance rate is off its target, and how far, in spreads."""
TRUSTED_SPREADS = 1.0
"""Between two visits T falls by at most this many spreads: a row that lags behind must not starve."""
ALMOST_ALL = 1 - 1e-6
"""Acceptance rate that stands for 1, which `Soft` reaches only at infinity."""


class RateState(NamedTuple):
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
    """Running mean of the spreads of recent batches: a row's own rests on S draws, and one in a tail inflates it."""
    step: Int[Array, ""]
    """Steps taken."""


class Rate(AbstractThreshold[RateState]):
    r"""T(x) that holds the mean acceptance probability Z_R(x) at a target z.

    At a row's first visit T is solved from `num_draws` separate draws. Later visits cost nothing: the row follows
    the S proposals that every visit draws first (iid from q whatever happens to them), by

        T <- T - gain (mean a - z),       gain = spread / (4 z (1 - z)),

    projected on T_hat +- spread, where T_hat solves mean a = z on those S proposals alone: the projection brings a
    row back at once when the model has left it behind. Between two visits T moves with what all rows share:

    - the `level`, a running mean of log w, so that the acceptance does not drift while the bound rises;
    - the `lead`, an integral controller on the mean acceptance of whole batches, in units of each row's spread. It
      removes what the rows' own steps leave over on average: the bias of the projection, which few proposals make
      large, and the lag behind a steady drift.

    Args:
        z: target acceptance rate in (0, 1).
        num_draws: draws from q behind the first T of a row, and behind `solve`.
    """

    z: float = eqx.field(static=True, default=0.5)
    num_draws: int = eqx.field(static=True, default=100)

    def __check_init__(self) -> None:
        require(is_real(self.z) and 0 < self.z < 1, "Rate: z", "a number in (0, 1)", self.z)
        require(is_int(self.num_draws, at_least=1), "Rate: num_draws", "an integer >= 1", self.num_draws)

    def init(self, num_data: int) -> RateState:
        """No row has been visited."""
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        return RateState(
            value=jnp.full(num_data, jnp.nan),
            level_then=jnp.zeros(num_data),
            spread=jnp.ones(num_data),
            visited=jnp.zeros(num_data, jnp.int32),
            level=jnp.zeros(()),
            lead=jnp.zeros(()),
            typical_spread=jnp.ones(()),
            step=jnp.zeros((), jnp.int32),
        )

    def lookup(
        self, key: PRNGKeyArray, pair: Pair, state: RateState, batch: Batch, acceptance: AbstractAcceptance
    ) -> tuple[Float[Array, " b"], RateState]:
        """Solves T for the rows seen for the first time; moves the others with what all rows share."""
        index = checked_rows(batch.index, state.value.shape[0])
        spread = jnp.minimum(state.spread[index], state.typical_spread)
        shared = state.lead * spread - (state.level - state.level_then[index])
        known = state.value[index] + jnp.maximum(shared, -TRUSTED_SPREADS * spread)
        return solve_where(jnp.isnan(known), known, self, key, pair, batch, acceptance), state

    def follow(
        self,
        state: RateState,
        batch: Batch,
        t: Float[Array, " b"],
        first: LogProbs,
        acceptance: AbstractAcceptance,
    ) -> RateState:
        """One step of each visited row towards its target, and of the common level."""
        index = batch.index
        log_w = jnp.where(jnp.isneginf(first.log_p), -jnp.inf, first.log_p - first.log_q).astype(t.dtype)
        possible = jnp.isfinite(log_w)
        count = jnp.maximum(jnp.sum(possible, axis=-1), 1).astype(t.dtype)
        mean = jnp.sum(jnp.where(possible, log_w, 0), axis=-1) / count
        deviation = jnp.where(possible, log_w - mean[:, None], 0)
        seen = jnp.sqrt(jnp.sum(deviation**2, axis=-1) / jnp.maximum(count - 1, 1))

        is_first = jnp.isnan(state.value[index])
        spread = jnp.where(is_first, seen, state.spread[index] + SPREAD_WEIGHT * (seen - state.spread[index]))
        spread = jnp.maximum(spread, 1.0)

        u = log_odds_of(first.log_p, first.log_q, t[:, None]).astype(t.dtype)
        accepted = jnp.mean(jnp.exp(acceptance.log_prob(u)), axis=-1)
        error = (accepted - self.z) / (4 * self.z * (1 - self.z))
        t_hat = jax.vmap(lambda f: solve_rate(f, self.z, acceptance))(log_w)
        moved = jnp.clip(t - spread * error, t_hat - spread, t_hat + spread)
        # a fresh solution rests on num_draws draws: keep it rather than follow S of them
        new_t = jnp.where(is_first | ~jnp.any(possible, axis=-1), t, moved)

        # a running mean over an epoch, or over 50 steps if that is less; a plain average over the first steps
        share = index.shape[0] / state.value.shape[0]
        least = min(max(LEVEL_WEIGHT, share), index.shape[0] / FEWEST_VISITS, 1.0)
        weight = jnp.maximum(1 / (state.step.astype(t.dtype) + 1), least)
        level = state.level + weight * (jnp.mean(mean) - state.level)
        typical = state.typical_spread + weight * (jnp.mean(jnp.maximum(seen, 1.0)) - state.typical_spread)
        lead = state.lead - LEAD_GAIN * jnp.mean(jnp.where(is_first, 0, error))
        return RateState(
            value=state.value.at[index].set(new_t),
            level_then=state.level_then.at[index].set(level),
            spread=state.spread.at[index].set(spread),
            visited=state.visited.at[index].set(state.step),
            level=level,
            lead=jnp.clip(lead, -LEAD_LIMIT, LEAD_LIMIT),
            typical_spread=typical,
            step=state.step + 1,
        )

    def solve(
        self, key: PRNGKeyArray, pair: Pair, x: PyTree, acceptance: AbstractAcceptance | None = None
    ) -> Float[Array, ""]:
        """T at which the mean acceptance over `num_draws` draws from q is z."""
        log_w = fresh_log_weights(key, pair, x, self.num_draws)
        return self.from_log_weights(log_w, Soft() if acceptance is None else acceptance)

    def from_log_weights(self, log_w: Float[Array, " n"], acceptance: AbstractAcceptance) -> Float[Array, ""]:
        """T at which the mean acceptance over these draws is z."""
        return solve_rate(log_w, self.z, acceptance)

    def age(self, state: RateState, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """Steps since the last visit."""
        return state.step - state.visited[index]


def solve_rate(
    log_w: Float[Array, " n"], rate: float, acceptance: AbstractAcceptance, num_steps: int = 50
) -> Float[Array, ""]:
    """T with mean_i a(log w_i + T) = rate, by bisection.

    The mean grows with T, and T lies between level(rate) - max log w and level(rate) - min log w. Impossible draws
    count as never accepted; if they leave less than `rate`, the T that accepts all others is returned: +inf if there
    are none.
    """
    possible = jnp.isfinite(log_w)
    low = acceptance.level(rate) - jnp.max(jnp.where(possible, log_w, -jnp.inf))
    # beside impossible draws the others may have to be accepted at any rate up to 1
    top = jnp.where(jnp.all(possible), acceptance.level(rate), acceptance.level(max(rate, ALMOST_ALL)))
    high = top.astype(log_w.dtype) - jnp.min(jnp.where(possible, log_w, jnp.inf))

    def halve(_: Array | int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        too_low = jnp.mean(jnp.exp(acceptance.log_prob(log_w + middle))) < rate
        return jnp.where(too_low, middle, low), jnp.where(too_low, high, middle)

    low, high = jax.lax.fori_loop(0, num_steps, halve, (low, high))
    return jnp.where(jnp.any(possible), 0.5 * (low + high), jnp.inf)
