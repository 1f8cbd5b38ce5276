"""`Quantile`: the paper's thresholds, refreshed now and then."""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._check import checked_rows, is_int, is_real, require
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.rejection import LogProbs
from relbo.thresholds.base import AbstractThreshold, fresh_log_weights, solve_where
from relbo.types import Batch, Pair


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

    As in the paper (Algorithm 2), T = +inf for the first `every` steps (plain RLOO); after each further `every` steps
    a row is refreshed at its next visit. So all rows are refreshed in the same epoch, whatever their order: batches
    with a few rows that are due, which cost as much as batches of them, do not spread over the others. gamma does
    not set the cost: only
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
        """Refreshes the rows not visited since `step` last was a multiple of `every`; nothing is drawn for none."""
        index = checked_rows(batch.index, state.value.shape[0])
        stale = state.step // self.every > state.refreshed[index] // self.every
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
