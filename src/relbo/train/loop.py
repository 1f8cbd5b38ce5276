"""The training loop: many steps in one compiled call, for any model and any estimator.

A step is `estimate`, negate once, `optimizer.update`, apply. The loop never asks which estimator it runs. Everything
that a step does follows from the `TrainState`: the batch from (key, step), the randomness from (key, step). Hence a
run that goes on from a saved state is the run that was never stopped, bit for bit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._check import collected
from relbo._tree import is_finite, numbers_traced
from relbo.estimators.base import AbstractEstimator
from relbo.types import Batch, Info, Pair

Transform = Callable[[PRNGKeyArray, PyTree], PyTree]
"""`(key, rows) -> x`: what turns stored rows into observations, inside the compiled step."""


class TrainState(NamedTuple):
    """All that the next step needs."""

    pair: Pair
    opt_state: Any
    estimator_state: Any
    key: PRNGKeyArray
    """Root of the run's randomness; it never changes."""
    step: Int[Array, ""]
    """Steps taken."""


class Fault(NamedTuple):
    """Why a chunk of steps stopped early; all false if it did not."""

    bound: Array
    """The bound of some row is not finite."""
    model: Array
    """The gradient of the model is not finite."""
    proposal: Array
    """The gradient of the proposal is not finite."""
    refused: dict[str, Array]
    """What the estimator refuses, by its message."""

    def any(self) -> Array:
        """Whether there was any fault."""
        return jnp.any(jnp.stack(jax.tree.leaves(self)))


class Chunk(NamedTuple):
    """What a chunk of steps reports: means over its steps."""

    num_steps: Int[Array, ""]
    """Steps taken; the last one is the faulty one if there was a fault."""
    bound: Float[Array, ""]
    """Mean bound over valid rows, in nats; NaN if there was none."""
    num_proposals: Float[Array, ""]
    """Proposals paid for, in total."""
    num_left_out: Float[Array, ""]
    """Rows left out of the gradient, in total."""
    extra: dict[str, Float[Array, ""]]
    """Mean of each field of the estimator's own info."""
    fault: Fault


def init_state(
    key: PRNGKeyArray,
    pair: Pair,
    estimator: AbstractEstimator,
    optimizer: optax.GradientTransformation,
    num_data: int,
) -> TrainState:
    """State before the first step."""
    key_estimator, key_run = jax.random.split(key)
    return TrainState(
        pair=pair,
        opt_state=optimizer.init(eqx.filter(pair, eqx.is_inexact_array)),
        estimator_state=estimator.init(key_estimator, pair, num_data),
        key=key_run,
        step=jnp.zeros((), jnp.int32),
    )


def epoch_order(key: PRNGKeyArray, epoch: int, num_data: int) -> Int[Array, " n"]:
    """The order in which an epoch visits the rows."""
    key_order, _ = jax.random.split(key)
    return jax.random.permutation(jax.random.fold_in(key_order, epoch), num_data)


class Estimated(NamedTuple):
    """One estimate on the rows of a batch, or on those of one shard of it."""

    grads: Any
    estimator_state: Any
    info: Info
    fault: Fault


class Settings(NamedTuple):
    """What the steps of a run have in common."""

    estimator: AbstractEstimator
    optimizer: optax.GradientTransformation
    transform: Transform
    batch_size: int
    in_order: bool = False
    """Whether the data come in the order of their visits, a part at a time, instead of all at once."""


def estimate_rows(settings: Settings, key: PRNGKeyArray, pair: Pair, state: Any, rows: PyTree, index: Array) -> Any:
    """Observations from stored rows, an estimate on them, and what is wrong with it."""
    key_data, key_estimate = jax.random.split(key)
    x = settings.transform(key_data, rows)
    with collected() as refused:
        grads, estimator_state, info = settings.estimator.estimate(key_estimate, pair, state, Batch(x, index))
    with jax.named_scope("faults"):
        fault = Fault(
            bound=~jnp.all(jnp.isfinite(info.bound) | ~info.valid),
            model=~is_finite(grads.model),
            proposal=~is_finite(grads.proposal),
            refused=refused,
        )
    return Estimated(grads, estimator_state, info, fault)


def step_key(state: TrainState) -> PRNGKeyArray:
    """Root of a step's randomness."""
    _, key_steps = jax.random.split(state.key)
    return jax.random.fold_in(key_steps, state.step)


def ascend(optimizer: optax.GradientTransformation, state: TrainState, grads: Any, estimator_state: Any) -> TrainState:
    """The state after a step along a gradient."""
    with jax.named_scope("optimizer"):
        descent = jax.tree.map(jnp.negative, grads)
        params = eqx.filter(state.pair, eqx.is_inexact_array)
        updates, opt_state = optimizer.update(descent, state.opt_state, params)
        pair = eqx.apply_updates(state.pair, updates)
    return TrainState(pair, opt_state, estimator_state, state.key, state.step + 1)


def make_step(
    estimator: AbstractEstimator, optimizer: optax.GradientTransformation, transform: Transform
) -> Callable[[TrainState, PyTree, Int[Array, " b"]], tuple[TrainState, Info, Fault]]:
    """One step as a pure function of (state, data, rows)."""

    def step(state: TrainState, data: PyTree, index: Int[Array, " b"]) -> tuple[TrainState, Info, Fault]:
        settings = Settings(estimator, optimizer, transform, index.shape[0])
        rows = jax.tree.map(lambda rows: rows[index], data)
        found = estimate_rows(settings, step_key(state), state.pair, state.estimator_state, rows, index)
        return ascend(optimizer, state, found.grads, found.estimator_state), found.info, found.fault

    return step


Stepped = tuple[TrainState, dict[str, Any], Fault]
"""The next state, a summary, and what is wrong."""
Step = Callable[[Settings, TrainState, PyTree, Array, Array], Stepped]
"""`(settings, state, data, order, at)`: the step whose batch begins at a place of the order."""


def step_of_one(settings: Settings, state: TrainState, data: PyTree, order: Array, at: Array) -> Stepped:
    """The step of a run whose rows are one shard, on one device."""
    size = settings.batch_size
    index = jax.lax.dynamic_slice_in_dim(order, at, size)
    rows = jax.tree.map(lambda v: jax.lax.dynamic_slice_in_dim(v, at, size) if settings.in_order else v[index], data)
    found = estimate_rows(settings, step_key(state), state.pair, state.estimator_state, rows, index)
    state = ascend(settings.optimizer, state, found.grads, found.estimator_state)
    return state, summary(found.info), found.fault


def steps_of(step: Step, batch_size: int) -> Callable[..., tuple[TrainState, Chunk]]:
    """Many steps as one function, `(settings, state, data, order, first, count) -> (state, Chunk)`.

    `first` is the position in `order` of the first batch and `count` the number of steps; both are traced, so one
    compilation serves every chunk. A step with a fault ends the chunk, and its state is not to be used.
    """
    step = eqx.filter_jit(step)  # asked for its shapes, it is traced but once

    def chunk(
        settings: Settings, state: TrainState, data: PyTree, order: Array, first: Array, count: Array
    ) -> tuple[TrainState, Chunk]:
        arrays, static = eqx.partition(state, eqx.is_array)
        shapes = eqx.filter_eval_shape(step, settings, state, data, order, first)[1:]
        zero, no_fault = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def go_on(carry: Any) -> Array:
            i, _, _, fault = carry
            return (i < count) & ~fault.any()

        def body(carry: Any) -> Any:
            i, arrays, total, _ = carry
            new, found, fault = step(settings, eqx.combine(arrays, static), data, order, first + i * batch_size)
            return i + 1, eqx.filter(new, eqx.is_array), jax.tree.map(jnp.add, total, found), fault

        done, arrays, total, fault = jax.lax.while_loop(go_on, body, (jnp.zeros_like(count), arrays, zero, no_fault))
        steps = jnp.maximum(done, 1).astype(total["bound"].dtype)
        extra = {name: value / steps for name, value in total["extra"].items()}
        report = Chunk(done, total["bound"] / total["valid"], total["proposals"], total["left_out"], extra, fault)
        return eqx.combine(arrays, static), report

    return chunk


def make_chunk(
    estimator: AbstractEstimator,
    optimizer: optax.GradientTransformation,
    transform: Transform,
    batch_size: int,
    *,
    in_order: bool = False,
) -> Callable[..., tuple[TrainState, Chunk]]:
    """Many steps in one compiled call (`steps_of`), for rows that are one shard, on one device."""
    return compiled(steps_on_one, Settings(estimator, optimizer, transform, batch_size, in_order))


def steps_on_one(settings: Settings, *args: Any) -> tuple[TrainState, Chunk]:
    """Many steps of a run whose rows are one shard."""
    return steps_of(step_of_one, settings.batch_size)(settings, *args)


def compiled(function: Callable[..., Any], settings: Settings, *more: Any) -> Callable[..., Any]:
    """`function(settings, *more, ...)`, compiled but once for all settings that differ in numbers alone.

    JAX finds its program again by the function, which must be one of a module, and by what is neither an array nor a
    number.
    """
    settings = settings._replace(estimator=numbers_traced(settings.estimator))
    return eqx.filter_jit(jax.tree_util.Partial(function, settings, *more))


def summary(info: Info) -> dict[str, Any]:
    """Sums over rows, and the mean of each field of the estimator's own info."""
    dtype = jnp.float32
    extra = info.extra._asdict() if hasattr(info.extra, "_asdict") else {}
    return {
        "bound": jnp.sum(jnp.where(info.valid, info.bound, 0)).astype(dtype),
        "valid": jnp.sum(info.valid).astype(dtype),
        "left_out": jnp.sum(~info.valid).astype(dtype),
        "proposals": jnp.sum(info.num_proposals).astype(dtype),
        "extra": {
            name: jnp.mean(jnp.asarray(value).astype(dtype)) for name, value in extra.items() if value is not None
        },
    }
