"""The step of a run whose rows are several shards, on one device or on many.

Every device holds some shards and takes them one after the other: it gathers the rows of the batch and their part of
the estimator's state, runs the estimator, accept loop and all, and nothing in it waits for another device. Then, once
per step, gradients and what rows have in common are added up over all shards. The order of the sum is that of a
binary tree over the shards, whoever holds them, so that the result is the same, bit for bit, on any number of devices.

What an estimator remembers for all rows together (a threshold's `lead`, a learned baseline) each shard updates from
its own rows, and the mean over shards is what all go on with; of counts it is the largest.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from relbo.devices import EVERYWHERE, ROWS, SPLIT
from relbo.estimators.base import AbstractEstimator
from relbo.train.layout import Layout
from relbo.train.loop import (
    Chunk,
    Settings,
    Step,
    Stepped,
    TrainState,
    ascend,
    compiled,
    estimate_rows,
    step_key,
    steps_of,
    steps_on_one,
    summary,
)
from relbo.types import Pair


def is_of_rows(estimator: AbstractEstimator, key: PRNGKeyArray, pair: Pair, layout: Layout) -> PyTree:
    """Which arrays of an estimator's state have a place for every row: those as long as there are rows, however many.

    Raises:
        ValueError: the state cannot be split into shards.
    """
    sizes = (layout.places, layout.places + 1, 5 * layout.places + 7)
    states = [eqx.filter_eval_shape(estimator.init, key, pair, size) for size in sizes]

    def of_rows(*leaves: Any) -> bool:
        shapes = [getattr(leaf, "shape", None) for leaf in leaves]
        if len(set(shapes)) == 1:
            return False
        own = [shape is not None and shape[:1] == (size,) for shape, size in zip(shapes, sizes, strict=True)]
        rest = {None if shape is None else shape[1:] for shape in shapes}
        if layout.num_shards > 1 and not (all(own) and len(rest) == 1):
            raise ValueError(
                f"an estimator whose rows are split into shards must keep, of each array, one entry per row along its "
                f"first axis, or one array for all rows: {type(estimator).__name__} has one of shape {shapes[0]} for "
                f"{sizes[0]} rows; train it with shards=1."
            )
        return True

    if layout.num_shards > 1:
        for leaf in jax.tree.leaves(states[0]):
            if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise ValueError(
                    f"an estimator whose rows are split into shards must keep no random key in its state, as "
                    f"{type(estimator).__name__} does: `estimate` is given one for each shard; or train with shards=1."
                )
    return jax.tree.map(of_rows, *states)


def init_state_on(
    layout: Layout, key: PRNGKeyArray, pair: Pair, estimator: AbstractEstimator, optimizer: optax.GradientTransformation
) -> TrainState:
    """State before the first step, on the devices of a layout."""
    key_estimator, key_run = jax.random.split(key)
    return TrainState(
        pair=layout.copied(pair),
        opt_state=layout.copied(optimizer.init(eqx.filter(pair, eqx.is_inexact_array))),
        estimator_state=init_estimator(estimator, key_estimator, pair, layout),
        key=layout.copied(key_run),
        step=layout.copied(jnp.zeros((), jnp.int32)),
    )


def init_estimator(estimator: AbstractEstimator, key: PRNGKeyArray, pair: Pair, layout: Layout) -> Any:
    """The estimator's state: a place for each place of the layout, and what one shard's rows have in common."""
    if not layout.is_split:
        return estimator.init(key, pair, layout.num_rows)
    of_rows = is_of_rows(estimator, key, pair, layout)

    def init(key: PRNGKeyArray, pair: Pair) -> Any:
        rows = estimator.init(key, pair, layout.num_shards * layout.places)
        common = estimator.init(key, pair, layout.places)
        return jax.tree.map(lambda mine, rows, common: rows if mine else common, of_rows, rows, common)

    if layout.mesh is None:
        return init(key, pair)
    shapes = eqx.filter_eval_shape(init, key, pair)
    arrays, static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    places = jax.tree.map(
        lambda leaf, mine: layout.sharding(by_rows=mine) if isinstance(leaf, jax.ShapeDtypeStruct) else None,
        shapes,
        of_rows,
    )
    params, rest = eqx.partition(layout.copied(pair), eqx.is_array)

    def make(key: PRNGKeyArray, params: PyTree) -> Any:
        return eqx.filter(init(key, eqx.combine(params, rest)), eqx.is_array)

    made = jax.jit(make, out_shardings=jax.tree.map(lambda leaf, place: place, arrays, places))(
        layout.copied(key), params
    )
    return eqx.combine(made, static)


def of_arrays(of_rows: PyTree, state: Any) -> PyTree:
    """What `is_of_rows` says of those leaves that are arrays; None for the others."""
    return jax.tree.map(lambda yes, leaf: yes if eqx.is_array(leaf) else None, of_rows, state)


def sharded_step(layout: Layout, of_rows: PyTree) -> Step:
    """The step of one device, inside `jax.shard_map` if there is a mesh."""
    shards = layout.shards_per_device

    def step(settings: Settings, state: TrainState, data: PyTree, order: Array, at: Array) -> Stepped:
        size = settings.batch_size // layout.num_shards
        first = jnp.asarray(0, jnp.int32) if layout.mesh is None else jax.lax.axis_index(ROWS) * shards
        key = step_key(state)
        remembered, static = eqx.partition(state.estimator_state, eqx.is_array)
        mask = of_arrays(of_rows, state.estimator_state)
        index = jax.lax.dynamic_slice(order, (jnp.zeros_like(at), at), (shards, size))

        def one(shard: Array) -> Any:
            index_here = index[shard]
            own = shard * layout.places + index_here

            def fetch(leaf: Array) -> Array:
                start = shard * (leaf.shape[0] // shards)
                if settings.in_order:
                    return jax.lax.dynamic_slice_in_dim(leaf, start + at, size)
                return leaf[start + index_here]

            rows = jax.tree.map(fetch, data)
            mine = jax.tree.map(lambda yes, leaf: leaf[own] if yes else leaf, mask, remembered)
            key_here = key if layout.num_shards == 1 else jax.random.fold_in(key, first + shard)
            # barriers: where a device has one shard XLA removes the loop over shards, and would then compile
            # what is inside together with what is outside, and round differently
            rows, mine, key_words = jax.lax.optimization_barrier((rows, mine, jax.random.key_data(key_here)))
            key_here = jax.random.wrap_key_data(key_words, impl=jax.random.key_impl(key_here))
            mine = eqx.combine(mine, static)
            found = estimate_rows(settings, key_here, state.pair, mine, rows, jnp.arange(size, dtype=index.dtype))
            number = jnp.sum(found.info.valid)
            weighed = jax.tree.map(lambda g: g * number.astype(g.dtype), found.grads)
            report = summary(found.info)
            learned = eqx.filter(found.estimator_state, eqx.is_array)  # what is no array does not change
            return jax.lax.optimization_barrier((weighed, learned, report, found.fault))

        grads, states, report, fault = jax.lax.map(one, jnp.arange(shards, dtype=jnp.int32))
        put_back = (jnp.arange(shards, dtype=index.dtype)[:, None] * layout.places + index).reshape(-1)
        new = jax.tree.map(
            lambda yes, old, new: old.at[put_back].set(new.reshape(-1, *new.shape[2:])) if yes else old,
            mask,
            remembered,
            states,
        )
        common = jax.tree.map(lambda yes, leaf: None if yes else leaf, mask, states)
        numbers = eqx.filter((grads, report, common), eqx.is_inexact_array)
        counts = eqx.filter(common, eqx.is_inexact_array, inverse=True)
        grads, report, means = sum_over_shards(numbers, layout)
        counts, fault = largest_over_shards((counts, fault), layout)
        grads, report, means = jax.lax.optimization_barrier((grads, report, means))
        number = jnp.maximum(report["valid"], 1)
        grads = jax.tree.map(lambda g: g / number.astype(g.dtype), grads)
        report["extra"] = {name: value / layout.num_shards for name, value in report["extra"].items()}
        means = jax.tree.map(lambda v: v / layout.num_shards, means)
        new = eqx.combine(means, counts, new, static)  # what all rows share, and beside it the rows
        return ascend(settings.optimizer, state, grads, new), report, fault

    return step


def sum_over_shards(tree: PyTree, layout: Layout) -> PyTree:
    """The sum over shards, which are the first axis here and the devices elsewhere, by a binary tree."""

    def here(leaf: Array) -> Array:
        while leaf.shape[0] > 1:
            leaf = leaf[0::2] + leaf[1::2]
        return leaf[0]

    sums = jax.tree.map(here, tree)
    return _exchanged(sums, layout, jnp.add)


def largest_over_shards(tree: PyTree, layout: Layout) -> PyTree:
    """The largest over shards, of integers and flags."""
    best = jax.tree.map(lambda leaf: jnp.max(leaf, axis=0), tree)
    return _exchanged(best, layout, lambda a, b: jnp.maximum(a, b) if a.dtype != bool else a | b)


def _exchanged(tree: PyTree, layout: Layout, combine: Callable[[Array, Array], Array]) -> PyTree:
    # device d meets d ^ 1, then d ^ 2, d ^ 4, ...: neighbours first, as in the tree over the shards of one device. Each
    # meeting is one message for every type of number, as long as all leaves together.
    if layout.num_devices == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    kinds = sorted({str(leaf.dtype) for leaf in leaves})
    done = list(leaves)
    for kind in kinds:
        places = [i for i, leaf in enumerate(leaves) if str(leaf.dtype) == kind]
        packed = jnp.concatenate([leaves[i].reshape(-1) for i in places])
        for level in range(layout.num_devices.bit_length() - 1):
            meet = [(device, device ^ (1 << level)) for device in range(layout.num_devices)]
            packed = combine(packed, jax.lax.ppermute(packed, ROWS, meet))
        ends = np.cumsum([leaves[i].size for i in places])[:-1].tolist()
        for i, part in zip(places, jnp.split(packed, ends), strict=True):
            done[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, done)


def make_chunk_on(layout: Layout, settings: Settings, of_rows: PyTree) -> Callable[..., tuple[TrainState, Chunk]]:
    """Many steps in one compiled call, `(state, data, order, first, count) -> (state, Chunk)`, on any layout."""
    if not layout.is_split:
        return compiled(steps_on_one, settings)
    return compiled(_steps_on, settings, layout, of_rows)


def _steps_on(
    settings: Settings,
    layout: Layout,
    of_rows: PyTree,
    state: TrainState,
    data: PyTree,
    order: Array,
    first: Array,
    count: Array,
) -> tuple[TrainState, Chunk]:
    chunk = steps_of(sharded_step(layout, of_rows), settings.batch_size // layout.num_shards)
    if layout.mesh is None:
        return chunk(settings, state, data, order, first, count)
    numbers, fixed = eqx.partition(settings, eqx.is_array)
    arrays, static = eqx.partition(state, eqx.is_array)
    specs: Any = TrainState(
        pair=EVERYWHERE,  # type: ignore[arg-type]
        opt_state=EVERYWHERE,
        estimator_state=jax.tree.map(
            lambda yes: SPLIT if yes else EVERYWHERE, of_arrays(of_rows, state.estimator_state)
        ),
        key=EVERYWHERE,  # type: ignore[arg-type]
        step=EVERYWHERE,  # type: ignore[arg-type]
    )

    def here(numbers: Settings, arrays: TrainState, data: PyTree, order: Array, first: Array, count: Array) -> Any:
        settings, state = eqx.combine(numbers, fixed), eqx.combine(arrays, static)
        state, report = chunk(settings, state, data, order, first, count)
        return eqx.filter(state, eqx.is_array), report

    run = jax.shard_map(
        here,
        mesh=layout.mesh,
        in_specs=(EVERYWHERE, specs, SPLIT, SPLIT, EVERYWHERE, EVERYWHERE),
        out_specs=(specs, EVERYWHERE),
        check_vma=False,
    )
    arrays, report = run(numbers, arrays, data, order, first, count)
    return eqx.combine(arrays, static), report
