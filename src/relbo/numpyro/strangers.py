"""Thresholds of rows that have none of their own: minibatches that come as arguments, of any size.

The state of an estimator holds one T for each row of the plate that `init` saw. A plate of another size means that its
rows are not those of one dataset, so their past says nothing. T is then solved for each row at each visit, from a few
draws of its own: it costs these draws, but every row is accepted as often as was asked for.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from relbo.acceptance import AbstractAcceptance
from relbo.thresholds import AbstractThreshold, FixedState, Reading
from relbo.types import EmptyState

NUM_DRAWS = 20
"""Draws behind the T of a row that is seen but once."""

NOTE = (
    "the plate has another number of rows than at init, so its rows are not those of one dataset and have no threshold "
    "of their own: T is solved for each of them at each step. If they are, write the plate with the size of the "
    "dataset and subsample_size=..."
)


class AtEachVisit(AbstractThreshold[FixedState]):
    """Solves T for every row at every step, but counts steps, for a warm-up and for schedules."""

    threshold: AbstractThreshold

    @property
    def fresh_draws(self) -> int:
        """Draws behind each T."""
        return min(self.threshold.fresh_draws, NUM_DRAWS)

    def init(self, num_data: int) -> FixedState:
        """The step is all that is kept."""
        return FixedState(jnp.asarray(num_data, jnp.int32), jnp.zeros((), jnp.int32))

    def read(self, state: FixedState, index: Int[Array, " b"]) -> Reading:
        """Every row is due once the warm-up is over."""
        due = jnp.broadcast_to(state.step >= self._warmup, index.shape)
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

    @property
    def _warmup(self) -> int:
        warmup = getattr(self.threshold, "warmup", 0)
        return warmup if warmup is not None else getattr(self.threshold, "every", None) or 0


def recall(estimator: Any, state: Any, num_data: int) -> tuple[Any, Any, Callable[[Any], Any], str | None]:
    """The estimator and its state for a plate of `num_data` rows, how to keep what it remembers, and a note."""
    if isinstance(state, EmptyState):
        return estimator, EmptyState.of(num_data), lambda new: new, None
    thresholds = getattr(state, "thresholds", None)
    if isinstance(thresholds, FixedState):
        rows = jnp.asarray(num_data, thresholds.num_data.dtype)
        return estimator, state._replace(thresholds=thresholds._replace(num_data=rows)), lambda new: new, None
    if thresholds is None or _shapes(jax.eval_shape(lambda: estimator.threshold.init(num_data))) == _shapes(thresholds):
        return estimator, state, lambda new: new, None
    visiting = AtEachVisit(estimator.threshold)
    counted = FixedState(jnp.asarray(num_data, jnp.int32), thresholds.step)

    def keep(new: Any) -> Any:
        return new._replace(thresholds=thresholds._replace(step=new.thresholds.step))

    return eqx.tree_at(lambda e: e.threshold, estimator, visiting), state._replace(thresholds=counted), keep, NOTE


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, tree)
