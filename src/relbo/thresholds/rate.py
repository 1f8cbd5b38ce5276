"""`Rate`: thresholds that hold a target acceptance rate."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from relbo.acceptance import AbstractAcceptance
from relbo.thresholds import follow
from relbo.thresholds.base import AbstractThreshold, Reading, check_counts, check_share, setting_at
from relbo.thresholds.follow import FollowState, Gains
from relbo.types import Number, Schedule

ALMOST_ALL = 1 - 1e-6
"""Acceptance rate that stands for 1, which `Soft` reaches only at infinity."""


class Rate(AbstractThreshold[FollowState]):
    r"""T(x) that holds the mean acceptance probability Z_R(x) at a target rate.

    At a row's first visit T is solved from `num_draws` separate draws; later visits follow the proposals that every
    visit draws anyway (`relbo.thresholds.follow` has the formulas). As long as a row's past is no guide, because log w
    moves more than it spreads between two visits, T is solved for at each visit.

    Args:
        rate: target acceptance rate in (0, 1), or a schedule of it: 1 means T = +inf.
        num_draws: draws from q behind each T that is solved for.
        warmup: steps with T = +inf before.
        gains: how fast T follows.

    Example:
        >>> log_w = jax.random.normal(key, (4, 1_000))
        >>> t = relbo.Rate(0.5).solve(log_w, relbo.Soft())
        >>> bool(jnp.allclose(jnp.mean(jax.nn.sigmoid(log_w + t[:, None]), axis=1), 0.5, atol=1e-3))
        True
    """

    rate: Number | Schedule = 0.5
    num_draws: int = eqx.field(static=True, default=20)
    warmup: int = eqx.field(static=True, default=0)
    gains: Gains = Gains()

    def __check_init__(self) -> None:
        check_share(self.rate, "Rate: rate")
        check_counts("Rate", self.num_draws, self.warmup)

    @property
    def fresh_draws(self) -> int:
        """Draws behind each T that is solved for."""
        return self.num_draws

    def init(self, num_data: int) -> FollowState:
        """No row has been visited."""
        return follow.start(num_data)

    def read(self, state: FollowState, index: Int[Array, " b"]) -> Reading:
        """T of the rows; new ones and strangers are due."""
        return follow.read(state, index, self.gains, target=self._target(state.step), rejects=self._rejects(state.step))

    def update(
        self,
        state: FollowState,
        index: Int[Array, " b"],
        t: Float[Array, " b"],
        log_w: Float[Array, "b n"],
        acceptance: AbstractAcceptance,
    ) -> FollowState:
        """One step of each visited row towards its target."""
        return follow.update(
            state,
            index,
            t,
            log_w,
            self.gains,
            target=self._target(state.step).astype(t.dtype),
            share=lambda u: jnp.exp(acceptance.log_prob(u)),
            fresh_draws=self.fresh_draws,
            rejects=self._rejects(state.step),
        )

    def solve(
        self, log_w: Float[Array, "b n"], acceptance: AbstractAcceptance, step: Int[Array, ""] | None = None
    ) -> Float[Array, " b"]:
        """T at which the mean acceptance over each row's draws is the target."""
        return solve_rate(log_w, setting_at(self.rate, step, "Rate: rate").astype(log_w.dtype), acceptance)

    def _target(self, step: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.minimum(setting_at(self.rate, step, "Rate: rate"), ALMOST_ALL)

    def _rejects(self, step: Int[Array, ""]) -> Array:
        is_warm = step >= self.warmup
        return is_warm & (setting_at(self.rate, step, "Rate: rate") < ALMOST_ALL) if callable(self.rate) else is_warm


def solve_rate(
    log_w: Float[Array, "*b n"], rate: Float[Array, ""], acceptance: AbstractAcceptance, num_steps: int = 50
) -> Float[Array, "*b"]:
    """T with mean_i a(log w_i + T) = rate, by bisection.

    The mean grows with T, and T lies between level(rate) - max log w and level(rate) - min log w. Impossible draws
    count as never accepted; if they leave less than `rate`, the T that accepts all others is returned: +inf if there
    are none.

    Example:
        >>> log_w = jax.random.normal(key, (4, 1_000))
        >>> relbo.thresholds.solve_rate(log_w, jnp.array(0.5), relbo.Soft()).shape
        (4,)
    """
    possible = jnp.isfinite(log_w)
    low = acceptance.level(rate) - jnp.max(jnp.where(possible, log_w, -jnp.inf), axis=-1)
    # beside impossible draws the others may have to be accepted at any rate up to 1
    almost_all = acceptance.level(jnp.maximum(rate, jnp.asarray(ALMOST_ALL, rate.dtype)))
    top = jnp.where(jnp.all(possible, axis=-1), acceptance.level(rate), almost_all)
    high = top - jnp.min(jnp.where(possible, log_w, jnp.inf), axis=-1)

    def halve(_: Array | int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        too_low = jnp.mean(jnp.exp(acceptance.log_prob(log_w + middle[..., None])), axis=-1) < rate
        return jnp.where(too_low, middle, low), jnp.where(too_low, high, middle)

    low, high = jax.lax.fori_loop(0, num_steps, halve, (low, high))
    return jnp.where(jnp.any(possible, axis=-1) & (rate < 1), 0.5 * (low + high), jnp.inf)
