"""Devices along one axis: how arrays get onto them and back, in one process or in several."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from relbo._check import is_int, refuse, require

ROWS = "rows"
"""Name of a mesh's one axis."""
EVERYWHERE, SPLIT = PartitionSpec(), PartitionSpec(ROWS)
"""A copy on every device; the first axis split over them."""


def as_mesh(mesh: Mesh | int | None, what: str) -> Mesh | None:
    """The mesh over JAX's first devices, or the same devices along one axis; None stays None."""
    if mesh is None:
        return None
    devices = jax.devices()
    if isinstance(mesh, int):
        require(is_int(mesh, at_least=1), what, "at least one device", mesh)
        if mesh > len(devices):
            raise ValueError(
                f"{what} must be at most the {len(devices)} devices that JAX has, got {mesh}; on a CPU, "
                "jax.config.update('jax_num_cpu_devices', N) before anything else makes N of them."
            )
        devices = devices[:mesh]
    elif not isinstance(mesh, Mesh):
        refuse(what, "a jax.sharding.Mesh, a number of devices, or None", mesh)
    else:
        devices = list(mesh.devices.reshape(-1))
    count = len(devices)
    require(count & (count - 1) == 0, what, "a power of 2 of devices", count)
    return Mesh(np.array(devices), (ROWS,))


def split(mesh: Mesh, shape: tuple[int, ...], part: Callable[[int, int], np.ndarray]) -> Array:
    """An array whose first axis is split over the devices; `part(start, stop)` gives what a device holds.

    It is asked only for what the devices of this process hold.
    """

    def of_device(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(shape[0])
        return part(start, stop)

    return jax.make_array_from_callback(shape, NamedSharding(mesh, SPLIT), of_device)


def copied(mesh: Mesh, tree: PyTree) -> PyTree:
    """A copy of every array on every device; the processes must have equal ones."""
    place = NamedSharding(mesh, EVERYWHERE)

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray) or getattr(leaf, "sharding", None) == place:
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(copy(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, place, lambda index: value[index])

    return jax.tree.map(copy, tree)


def on_host(array: Array) -> np.ndarray:
    """All of an array, wherever its parts are."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def map_blocks(
    function: Callable[..., PyTree], mesh: Mesh | None, fixed: PyTree, blocks: Iterable[PyTree]
) -> Iterator[PyTree]:
    """`function(fixed, block)` of every block, as NumPy arrays; as many blocks at a time as there are devices.

    No device waits for another inside a block. A block is computed by the same program wherever it is.
    """
    if mesh is None:
        compiled: Any = eqx.filter_jit(function)
        for block in blocks:
            yield jax.tree.map(np.asarray, compiled(fixed, block))
        return
    fixed, rest = copied(mesh, fixed), iter(blocks)
    while group := list(islice(rest, mesh.size)):
        full = [*group, *[group[-1]] * (mesh.size - len(group))]
        stacked = jax.tree.map(lambda *parts: _stacked(mesh, parts), *full)
        found = jax.tree.map(on_host, _on_each(function, mesh, fixed, stacked))
        for i in range(len(group)):
            yield jax.tree.map(lambda v, i=i: v[i], found)


def _stacked(mesh: Mesh, parts: tuple[Any, ...]) -> Array:
    first = parts[0]
    if isinstance(first, jax.Array) and jnp.issubdtype(first.dtype, jax.dtypes.prng_key):
        words = _stacked(mesh, tuple(jax.random.key_data(part) for part in parts))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(first))
    shape = (len(parts), *np.shape(first))
    return split(mesh, shape, lambda start, stop: np.stack([np.asarray(part) for part in parts[start:stop]]))


@eqx.filter_jit
def _on_each(function: Callable[..., PyTree], mesh: Mesh, fixed: PyTree, blocks: PyTree) -> PyTree:
    arrays, static = eqx.partition(fixed, eqx.is_array)

    def here(arrays: PyTree, blocks: PyTree) -> PyTree:
        found = function(eqx.combine(arrays, static), jax.tree.map(lambda v: v[0], blocks))
        return jax.tree.map(lambda v: v[None], found)

    return jax.shard_map(here, mesh=mesh, in_specs=(EVERYWHERE, SPLIT), out_specs=SPLIT, check_vma=False)(
        arrays, blocks
    )
