"""`Quantile`: the paper's thresholds, refreshed now and then, or followed online."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from relbo._check import checked_rows, is_int, require
from relbo.acceptance import AbstractAcceptance
from relbo.thresholds import follow
from relbo.thresholds.base import AbstractThreshold, Reading, check_counts, check_share, setting_at
from relbo.thresholds.follow import FollowState, Gains
from relbo.types import Number, Schedule


class QuantileState(NamedTuple):
    """Thresholds of all rows.

    Example:
        >>> relbo.Quantile(0.9).init(num_data=4).value.tolist()
        [inf, inf, inf, inf]
    """

    value: Float[Array, " n"]
    """T of each row; +inf before its first refresh."""
    refreshed: Int[Array, " n"]
    """Step of each row's last refresh; -1 before the first, and after the row ran out of proposals."""
    step: Int[Array, ""]
    """Steps taken."""


class Quantile(AbstractThreshold[Any]):
    r"""T_gamma(x), the gamma quantile of log q - log p under q, so that a >= 1/2 with probability gamma.

    As in the paper (Algorithm 2), T = +inf for the first steps (plain RLOO); then, and after each further `every`
    steps, a row is refreshed from fresh draws at its next visit. So all rows are refreshed in the same epoch, whatever
    their order: batches with a few rows that are due, which cost as much as batches of them, do not spread over the
    others. With `every=None` the quantile is followed online, from the proposals that every visit draws anyway: fresh
    draws are needed only at a row's first visit, and as long as its past is no guide (`relbo.thresholds.follow`).

    gamma does not set the cost: only gamma/2 <= Z_R <= (1 + gamma)/2 holds (docs/errata.md, E13). Use `Rate` for that.

    Draws with log p = -inf count as infinitely bad; should the quantile itself be infinite, the largest finite
    value is used, which accepts what is possible, and +inf if there is none.

    Args:
        gamma: quantile in (0, 1), or a schedule of it.
        num_draws: draws from q behind each quantile.
        every: steps between refreshes; the paper takes 100,000. None follows online.
        warmup: steps with T = +inf before the first refresh; by default `every`, as in the paper, and 0 online.
        gains: how fast T follows online.

    Example:
        >>> log_w = jax.random.normal(key, (4, 1_000))
        >>> t = relbo.Quantile(0.9).solve(log_w, relbo.Soft())
        >>> bool(jnp.all(jnp.abs(t - 1.28) < 0.3))  # the 0.9 quantile of a standard normal
        True
    """

    gamma: Number | Schedule = 0.9
    num_draws: int = eqx.field(static=True, default=100)
    every: int | None = eqx.field(static=True, default=10_000)
    warmup: int | None = eqx.field(static=True, default=None)
    gains: Gains = Gains()

    def __check_init__(self) -> None:
        check_share(self.gamma, "Quantile: gamma")
        check_counts("Quantile", self.num_draws, self.warmup)
        ok = self.every is None or is_int(self.every, at_least=1)
        require(ok, "Quantile: every", "an integer >= 1, or None to follow online", self.every)

    @property
    def fresh_draws(self) -> int:
        """Draws behind each T that is solved for."""
        return self.num_draws

    def init(self, num_data: int) -> QuantileState | FollowState:
        """T = +inf everywhere."""
        if self.every is None:
            return follow.start(num_data)
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        never = jnp.full(num_data, -1, jnp.int32)
        return QuantileState(jnp.full(num_data, jnp.inf, jnp.result_type(float)), never, jnp.zeros((), jnp.int32))

    def read(self, state: Any, index: Int[Array, " b"]) -> Reading:
        """T of the rows; those not visited since the last common refresh are due."""
        if self.every is None:
            gamma = setting_at(self.gamma, state.step, "Quantile: gamma")
            return follow.read(state, index, self.gains, target=gamma, rejects=self._rejects(state.step))
        index = checked_rows(index, state.value.shape[0])
        refreshed = state.refreshed[index]
        return Reading(
            t=state.value[index],
            due=self._rejects(state.step) & (self._turn(state.step) > self._turn(refreshed)),
            age=state.step - jnp.maximum(refreshed, 0),
        )

    def update(
        self,
        state: Any,
        index: Int[Array, " b"],
        t: Float[Array, " b"],
        log_w: Float[Array, "b n"],
        acceptance: AbstractAcceptance,
    ) -> Any:
        """Keeps the refreshed values and counts the step, or follows the proposals."""
        if self.every is None:
            gamma = setting_at(self.gamma, state.step, "Quantile: gamma").astype(t.dtype)
            return follow.update(
                state,
                index,
                t,
                log_w,
                self.gains,
                target=gamma,
                share=lambda u: (u >= 0).astype(u.dtype),
                fresh_draws=self.fresh_draws,
                rejects=self._rejects(state.step),
            )
        due = self.read(state, index).due
        refreshed = jnp.where(due, state.step, state.refreshed[index])
        ran_out = self._rejects(state.step) & jnp.isposinf(t)
        return QuantileState(
            value=state.value.at[index].set(t),
            refreshed=state.refreshed.at[index].set(jnp.where(ran_out, -1, refreshed)),
            step=state.step + 1,
        )

    def solve(
        self, log_w: Float[Array, "b n"], acceptance: AbstractAcceptance, step: Int[Array, ""] | None = None
    ) -> Float[Array, " b"]:
        """The empirical gamma quantile of -log w of each row, which does not depend on the acceptance."""
        return upper_quantile(-log_w, setting_at(self.gamma, step, "Quantile: gamma").astype(log_w.dtype))

    def _first(self) -> int:
        return self.warmup if self.warmup is not None else self.every or 0

    def _rejects(self, step: Int[Array, ""]) -> Array:
        return step >= self._first()

    def _turn(self, step: Int[Array, "*s"]) -> Int[Array, "*s"]:
        # the common refreshes are at steps first, first + every, ...; -1 before the first of them
        assert self.every is not None
        return jnp.where(step < self._first(), -1, (step - self._first()) // self.every)


def upper_quantile(surprise: Float[Array, "b n"], gamma: Float[Array, ""]) -> Float[Array, " b"]:
    """The least of the values that covers a share gamma of them, the largest finite one if that is infinite."""
    size = surprise.shape[-1]
    ordered = jnp.sort(surprise, axis=-1)
    # 0.55 * 100 is 55.000000000000007: what rounding added must not count as one more draw
    slack = 1e-9 if surprise.dtype == jnp.float64 else 1e-4
    rank = jnp.clip(jnp.ceil(gamma * size - slack).astype(jnp.int32), 1, size) - 1
    finite = jnp.where(jnp.isposinf(ordered), -jnp.inf, ordered)
    solved = jnp.minimum(ordered[..., rank], jnp.max(finite, axis=-1))
    return jnp.where(jnp.isneginf(solved), jnp.inf, solved)  # nothing finite was seen
