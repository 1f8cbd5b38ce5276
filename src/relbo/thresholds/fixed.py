"""`Fixed`: the same T for every datapoint."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._check import checked_rows, is_int, is_real, require
from relbo.acceptance import AbstractAcceptance
from relbo.rejection import LogProbs
from relbo.thresholds.base import AbstractThreshold
from relbo.types import Batch, Pair


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
