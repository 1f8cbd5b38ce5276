"""`AtEachVisit`: a threshold that remembers nothing of any row."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from relbo.acceptance import AbstractAcceptance
from relbo.thresholds import AbstractThreshold, FixedState, Reading


class AtEachVisit(AbstractThreshold[FixedState]):
    """Solves T for every row at every step, from separate draws: what a threshold is to rows without a past.

    Args:
        threshold: how T is solved for, and from how many draws.
        warmup: steps with T = +inf before, where steps are counted: where the state is kept.
    """

    threshold: AbstractThreshold
    warmup: int = eqx.field(static=True, default=0)

    @property
    def fresh_draws(self) -> int:
        """Draws behind each T."""
        return self.threshold.fresh_draws

    def init(self, num_data: int) -> FixedState:
        """The step is all that is kept."""
        return FixedState(jnp.asarray(num_data, jnp.int32), jnp.zeros((), jnp.int32))

    def read(self, state: FixedState, index: Int[Array, " b"]) -> Reading:
        """Every row is due once the warm-up is over."""
        due = jnp.broadcast_to(state.step >= self.warmup, index.shape)
        return Reading(jnp.full(index.shape, jnp.inf), due, jnp.zeros(index.shape, jnp.int32))

    def update(
        self,
        state: FixedState,
        index: Int[Array, " b"],
        t: Float[Array, " b"],
        log_w: Float[Array, "b n"],
        acceptance: AbstractAcceptance,
    ) -> FixedState:
        """Counts the step."""
        return state._replace(step=state.step + 1)

    def solve(
        self, log_w: Float[Array, "b n"], acceptance: AbstractAcceptance, step: Int[Array, ""] | None = None
    ) -> Float[Array, " b"]:
        """T from the log weights of fresh draws."""
        return self.threshold.solve(log_w, acceptance, step)
