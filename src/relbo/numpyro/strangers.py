"""Thresholds of rows that have none of their own: minibatches that come as arguments, of any size.

The state of an estimator holds one T for each row of the plate that `init` saw. A plate of another size means that its
rows are not those of one dataset, so their past says nothing. T is then solved for each row at each visit, from as many
draws of its own as the threshold asks for: it costs these draws, but every row is accepted as often as was asked for.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from relbo.numpyro.visits import AtEachVisit
from relbo.thresholds import AbstractThreshold, FixedState, OnceSettled, SettledState
from relbo.types import EmptyState

NOTE = (
    "the plate has another number of rows than at init, so its rows are not those of one dataset and have no threshold "
    "of their own: T is solved for each of them at each step, from num_draws draws. If they are, write the plate with "
    "the size of the dataset and subsample_size=..."
)


def recall(estimator: Any, state: Any, num_data: int) -> tuple[Any, Any, Callable[[Any], Any], str | None]:
    """The estimator and its state for a plate of `num_data` rows, how to keep what it remembers, and a note."""
    if isinstance(state, EmptyState):
        return estimator, EmptyState.of(num_data), lambda new: new, None
    thresholds = getattr(state, "thresholds", None)
    own = thresholds.inner if isinstance(thresholds, SettledState) else thresholds
    if isinstance(own, FixedState):
        own = own._replace(num_data=jnp.asarray(num_data, own.num_data.dtype))
        resized = thresholds._replace(inner=own) if isinstance(thresholds, SettledState) else own
        return estimator, state._replace(thresholds=resized), lambda new: new, None
    if thresholds is None or _shapes(jax.eval_shape(lambda: estimator.threshold.init(num_data))) == _shapes(thresholds):
        return estimator, state, lambda new: new, None
    visiting, counted = _visiting(estimator.threshold, thresholds, num_data)

    def keep(new: Any) -> Any:
        return new._replace(thresholds=_counted(thresholds, new.thresholds))

    return eqx.tree_at(lambda e: e.threshold, estimator, visiting), state._replace(thresholds=counted), keep, NOTE


def _visiting(threshold: AbstractThreshold, state: Any, num_data: int) -> tuple[AbstractThreshold, Any]:
    if isinstance(threshold, OnceSettled):
        waiting, counted = _visiting(threshold.threshold, state.inner, num_data)
        return dataclasses.replace(threshold, threshold=waiting), state._replace(inner=counted)
    counted = FixedState(jnp.asarray(num_data, jnp.int32), state.step)
    return AtEachVisit(threshold, _warmup_of(threshold)), counted


def _counted(held: Any, new: Any) -> Any:
    """What is held of the rows, with the steps, and what is known about all rows together, as of now."""
    if isinstance(held, SettledState):
        return new._replace(inner=_counted(held.inner, new.inner))
    return held._replace(step=new.step)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def _warmup_of(threshold: AbstractThreshold) -> int:
    warmup = getattr(threshold, "warmup", 0)
    return warmup if warmup is not None else getattr(threshold, "every", None) or 0
