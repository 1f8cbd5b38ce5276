r"""Thresholds T(x): how much compute each datapoint's posterior is worth.

T enters through u = log p - log q + T, so a larger T accepts more. The T used in a step never depends on that
step's own draws: rows are refreshed from separate draws before the step, or follow the draws after it. T is a
constant under differentiation (docs/errata.md, E15).

- `Fixed`: one number.
- `Quantile`: the paper's heuristic, a quantile of log q - log p that is refreshed now and then.
- `Rate`: a target acceptance rate, followed online at no cost.
"""

import abc
import math
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._check import checked_rows, is_int, is_real, one_number_each, require
from relbo._types import Batch, Pair
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.rejection import LogProbs, row_keys
from relbo.rejection_batch import fresh_log_weights_batch, is_batched

State = TypeVar("State")


class AbstractThreshold(eqx.Module, Generic[State]):
    """How T(x) is chosen, kept per datapoint and renewed."""

    @abc.abstractmethod
    def init(self, num_data: int) -> State:
        """State for a dataset of `num_data` rows."""

    @abc.abstractmethod
    def lookup(
        self, key: PRNGKeyArray, pair: Pair, state: State, batch: Batch, acceptance: AbstractAcceptance
    ) -> tuple[Float[Array, " b"], State]:
        """T for the rows of a batch, refreshed from separate draws where due."""

    @abc.abstractmethod
    def follow(
        self,
        state: State,
        batch: Batch,
        t: Float[Array, " b"],
        first: LogProbs,
        acceptance: AbstractAcceptance,
    ) -> State:
        """Learns from the first S proposals of each row, after the step has used `t`."""

    @abc.abstractmethod
    def solve(
        self, key: PRNGKeyArray, pair: Pair, x: PyTree, acceptance: AbstractAcceptance | None = None
    ) -> Float[Array, ""]:
        """T for one datapoint outside the training set, from fresh draws."""

    @abc.abstractmethod
    def from_log_weights(self, log_w: Float[Array, " n"], acceptance: AbstractAcceptance) -> Float[Array, ""]:
        """T for one datapoint, from the log weights of n fresh draws."""

    @abc.abstractmethod
    def age(self, state: State, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """Steps since each row's T was last renewed."""


class FixedState(NamedTuple):
    """Nothing to remember but the size of the dataset."""

    num_data: Int[Array, ""]


class Fixed(AbstractThreshold[FixedState]):
    """The same T for every datapoint; T = +inf gives RLOO.

    Args:
        value: T, any real number or +inf.
    """

    value: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        require(
            is_real(self.value) and self.value > -float("inf"),
            "Fixed: T",
            "a real number or +inf",
            self.value,
        )

    def init(self, num_data: int) -> FixedState:
        """Nothing is kept per row."""
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        return FixedState(jnp.asarray(num_data, jnp.int32))

    def lookup(
        self, key: PRNGKeyArray, pair: Pair, state: FixedState, batch: Batch, acceptance: AbstractAcceptance
    ) -> tuple[Float[Array, " b"], FixedState]:
        """Returns the value for each row."""
        index = checked_rows(batch.index, state.num_data)
        # the value must depend on the checked rows, or a compiler drops the check
        return jnp.where(index >= 0, jnp.asarray(self.value, jnp.result_type(float)), jnp.nan), state

    def follow(
        self,
        state: FixedState,
        batch: Batch,
        t: Float[Array, " b"],
        first: LogProbs,
        acceptance: AbstractAcceptance,
    ) -> FixedState:
        """Nothing to learn."""
        return state

    def solve(
        self, key: PRNGKeyArray, pair: Pair, x: PyTree, acceptance: AbstractAcceptance | None = None
    ) -> Float[Array, ""]:
        """Returns the value."""
        return jnp.asarray(self.value)

    def from_log_weights(self, log_w: Float[Array, " n"], acceptance: AbstractAcceptance) -> Float[Array, ""]:
        """Returns the value."""
        return jnp.asarray(self.value, log_w.dtype)

    def age(self, state: FixedState, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """A constant never ages."""
        return jnp.zeros(index.shape, jnp.int32)


class QuantileState(NamedTuple):
    """Thresholds of all rows."""

    value: Float[Array, " n"]
    """T of each row; +inf before its first refresh."""
    refreshed: Int[Array, " n"]
    """Step of each row's last refresh; 0 before the first."""
    step: Int[Array, ""]
    """Steps taken."""


class Quantile(AbstractThreshold[QuantileState]):
    r"""T_gamma(x), the gamma quantile of log q - log p under q, so that a >= 1/2 with probability gamma.

    As in the paper (Algorithm 2), T = +inf for the first `every` steps (plain RLOO); after that a row is refreshed
    at its first visit once its threshold is `every` steps old. gamma does not set the cost: only
    gamma/2 <= Z_R <= (1 + gamma)/2 holds (docs/errata.md, E13). Use `Rate` for that.

    Draws with log p = -inf count as infinitely bad; should the quantile itself be infinite, the largest finite
    value is used, which accepts what is possible, and +inf if there is none.

    Args:
        gamma: quantile in (0, 1).
        num_draws: draws from q behind each quantile.
        every: steps between refreshes; the paper takes 100,000.
    """

    gamma: float = eqx.field(static=True, default=0.9)
    num_draws: int = eqx.field(static=True, default=100)
    every: int = eqx.field(static=True, default=10_000)

    def __check_init__(self) -> None:
        require(is_real(self.gamma) and 0 < self.gamma < 1, "Quantile: gamma", "a number in (0, 1)", self.gamma)
        require(is_int(self.num_draws, at_least=1), "Quantile: num_draws", "an integer >= 1", self.num_draws)
        require(is_int(self.every, at_least=1), "Quantile: every", "an integer >= 1", self.every)

    def init(self, num_data: int) -> QuantileState:
        """T = +inf everywhere."""
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        return QuantileState(jnp.full(num_data, jnp.inf), jnp.zeros(num_data, jnp.int32), jnp.zeros((), jnp.int32))

    def lookup(
        self,
        key: PRNGKeyArray,
        pair: Pair,
        state: QuantileState,
        batch: Batch,
        acceptance: AbstractAcceptance,
    ) -> tuple[Float[Array, " b"], QuantileState]:
        """Refreshes the rows whose T is `every` steps old; costs nothing when there is none."""
        index = checked_rows(batch.index, state.value.shape[0])
        stale = self.age(state, index) >= self.every
        t = solve_where(stale, state.value[index], self, key, pair, batch, acceptance)
        return t, state._replace(
            value=state.value.at[index].set(t),
            refreshed=state.refreshed.at[index].set(jnp.where(stale, state.step, state.refreshed[index])),
        )

    def follow(
        self,
        state: QuantileState,
        batch: Batch,
        t: Float[Array, " b"],
        first: LogProbs,
        acceptance: AbstractAcceptance,
    ) -> QuantileState:
        """Only counts the step."""
        return state._replace(step=state.step + 1)

    def solve(
        self, key: PRNGKeyArray, pair: Pair, x: PyTree, acceptance: AbstractAcceptance | None = None
    ) -> Float[Array, ""]:
        """The empirical gamma quantile of log q - log p over `num_draws` draws from q."""
        log_w = fresh_log_weights(key, pair, x, self.num_draws)
        return self.from_log_weights(log_w, Soft() if acceptance is None else acceptance)

    def from_log_weights(self, log_w: Float[Array, " n"], acceptance: AbstractAcceptance) -> Float[Array, ""]:
        """The empirical gamma quantile of -log w, which does not depend on the acceptance."""
        num_draws = log_w.shape[0]
        surprise = jnp.sort(-log_w)
        # 0.55 * 100 is 55.000000000000007: what rounding added must not count as one more draw
        rank = min(max(math.ceil(self.gamma * num_draws - 1e-9), 1), num_draws) - 1
        finite = jnp.where(jnp.isposinf(surprise), -jnp.inf, surprise)
        solved = jnp.minimum(surprise[rank], jnp.max(finite))
        return jnp.where(jnp.isneginf(solved), jnp.inf, solved)  # nothing finite was seen

    def age(self, state: QuantileState, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """Steps since the last refresh."""
        return state.step - state.refreshed[index]


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
    step: Int[Array, ""]
    """Steps taken."""


class Rate(AbstractThreshold[RateState]):
    r"""T(x) that holds the mean acceptance probability Z_R(x) at a target z.

    At a row's first visit T is solved from `num_draws` separate draws. Later visits cost nothing: the row follows
    the S proposals that every visit draws first (iid from q whatever happens to them), by

        T <- T - gain (mean a - z),       gain = spread / (4 z (1 - z)),

    projected on T_hat +- spread, where T_hat solves mean a = z on those S proposals alone. The step makes z the
    fixed point without bias; the projection brings a row back at once when the model has left it behind. Between
    two visits T moves with the running mean of log w (`level`), the part of the model's progress that all rows
    share, so the acceptance does not drift in the epochs in which the bound rises by many nats.

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
            step=jnp.zeros((), jnp.int32),
        )

    def lookup(
        self, key: PRNGKeyArray, pair: Pair, state: RateState, batch: Batch, acceptance: AbstractAcceptance
    ) -> tuple[Float[Array, " b"], RateState]:
        """Solves T for the rows seen for the first time; moves the others with the level."""
        index = checked_rows(batch.index, state.value.shape[0])
        # the level says where the average row went; a row that lagged behind must not be left without acceptances
        most = TRUSTED_SPREADS * state.spread[index]
        shared = jnp.clip(state.level - state.level_then[index], -most, most)
        known = state.value[index] - shared
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
        spread = jnp.where(is_first, seen, 0.8 * state.spread[index] + 0.2 * seen)
        spread = jnp.maximum(spread, 1.0)

        u = log_odds_of(first.log_p, first.log_q, t[:, None]).astype(t.dtype)
        accepted = jnp.mean(jnp.exp(acceptance.log_prob(u)), axis=-1)
        gain = spread / (4 * self.z * (1 - self.z))
        t_hat = jax.vmap(lambda f: solve_rate(f, self.z, acceptance))(log_w)
        moved = jnp.clip(t - gain * (accepted - self.z), t_hat - spread, t_hat + spread)
        # a fresh solution rests on num_draws draws: keep it rather than follow S of them
        new_t = jnp.where(is_first | ~jnp.any(possible, axis=-1), t, moved)

        # running mean with the weight of a plain average over the first steps
        weight = jnp.maximum(1 / (state.step.astype(t.dtype) + 1), LEVEL_WEIGHT)
        level = state.level + weight * (jnp.mean(mean) - state.level)
        return RateState(
            value=state.value.at[index].set(new_t),
            level_then=state.level_then.at[index].set(level),
            spread=state.spread.at[index].set(spread),
            visited=state.visited.at[index].set(state.step),
            level=level,
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


LEVEL_WEIGHT = 0.02
"""Weight of one batch in `Rate`'s running mean of log w: a memory of some 50 steps."""
ALMOST_ALL = 1 - 1e-6
"""Acceptance rate that stands for 1, which `Soft` reaches only at infinity."""
TRUSTED_SPREADS = 2.0
"""Between two visits `Rate` moves a row with the level by at most this many times the row's own spread."""


def fresh_log_weights(key: PRNGKeyArray, pair: Pair, x: PyTree, num_draws: int) -> Float[Array, " n"]:
    """Log w = log p - log q of `num_draws` draws from q for one x; -inf where log p is."""

    def one(k: PRNGKeyArray) -> Array:
        z, log_q = pair.proposal.sample_and_log_prob(k, x)
        log_p = pair.model.log_joint(x, z)
        one_number_each(log_p, log_q)
        return log_odds_of(log_p, log_q, jnp.zeros(()))

    return jax.lax.stop_gradient(jax.vmap(one)(row_keys(key, num_draws)))


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


def solve_where(
    due: Array,
    otherwise: Float[Array, " b"],
    threshold: Any,  # Quantile or Rate: what has num_draws
    key: PRNGKeyArray,
    pair: Pair,
    batch: Batch,
    acceptance: AbstractAcceptance,
) -> Float[Array, " b"]:
    """`threshold.solve` for the rows that are due, behind one `lax.cond` for the batch."""

    def solve_all() -> Array:
        if is_batched(pair):
            log_w = fresh_log_weights_batch(key, pair, batch.x, threshold.num_draws)
            solved = jax.vmap(lambda f: threshold.from_log_weights(f, acceptance))(log_w)
        else:
            keys = row_keys(key, due.shape[0])
            solved = jax.vmap(lambda k, x: threshold.solve(k, pair, x, acceptance))(keys, batch.x)
        return jnp.where(due, solved.astype(otherwise.dtype), otherwise)

    return jax.lax.cond(jnp.any(due), solve_all, lambda: otherwise)
