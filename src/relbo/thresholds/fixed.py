"""`Fixed`: the same T for every datapoint."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from relbo._check import checked_rows, is_int, is_number, require
from relbo.acceptance import AbstractAcceptance
from relbo.thresholds.base import AbstractThreshold, Reading, setting_at
from relbo.types import Number, Schedule


class FixedState(NamedTuple):
    """Nothing to remember but the size of the dataset and the step.

    Example:
        >>> int(relbo.Fixed(3.0).init(num_data=4).num_data)
        4
    """

    num_data: Int[Array, ""]
    step: Int[Array, ""]


class Fixed(AbstractThreshold[FixedState]):
    """The same T for every datapoint; T = +inf gives RLOO.

    Args:
        value: T, a real number or +inf, or a schedule of it.
        warmup: steps with T = +inf before.

    Example:
        >>> relbo.VRS(2, threshold=relbo.Fixed(3.0)).num_samples
        2
    """

    value: Number | Schedule
    warmup: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        ok = callable(self.value) or is_number(self.value) or _is_infinite(self.value)
        require(ok, "Fixed: T", "a real number or +inf, or a schedule", self.value)
        require(is_int(self.warmup, at_least=0), "Fixed: warmup", "an integer >= 0", self.warmup)

    @property
    def fresh_draws(self) -> int:
        """None: nothing is solved for."""
        return 0

    def init(self, num_data: int) -> FixedState:
        """Nothing is kept per row."""
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        return FixedState(jnp.asarray(num_data, jnp.int32), jnp.zeros((), jnp.int32))

    def read(self, state: FixedState, index: Int[Array, " b"]) -> Reading:
        """The value for each row."""
        index = checked_rows(index, state.num_data)
        t = jnp.where(state.step < self.warmup, jnp.inf, setting_at(self.value, state.step, "Fixed: T"))
        # T must depend on the checked rows, or a compiler drops the check
        everywhere = jnp.where(index >= 0, t, jnp.nan)
        return Reading(everywhere, jnp.zeros(index.shape, bool), jnp.zeros(index.shape, jnp.int32))

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
        """The value for each row."""
        return jnp.full(log_w.shape[0], setting_at(self.value, step, "Fixed: T").astype(log_w.dtype))


def _is_infinite(value: Any) -> bool:
    # by NumPy: inside a compiled program the comparison would be traced
    return isinstance(value, float | jax.Array) and bool(np.all(np.asarray(value) > -np.inf))
