"""Where the rows of a run live: in logical shards, which devices hold in equal parts.

A run has L shards, a part of what it is, and D devices, which it may change: D divides L, and both are powers of 2.
Shard l holds n_l rows of the data, side by side, in m = ceil(n / L) places (the last of which may be empty). A batch of
B takes B / L rows from each shard, in an order of the shard's own, with random numbers of the shard's own. So the
devices decide who does the work, and nothing else.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from relbo._check import is_int, refuse, require

ROWS = "rows"
"""Name of the mesh's one axis."""


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


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the rows of a run are split.

    Args:
        num_rows: rows of the data.
        num_shards: L, a power of 2.
        mesh: the devices, along one axis named `rows`; None is JAX's default device.
    """

    num_rows: int
    num_shards: int = 1
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        is_power = is_int(self.num_shards, at_least=1) and self.num_shards & (self.num_shards - 1) == 0
        require(is_power, "shards", "a power of 2", self.num_shards)
        require(
            self.num_shards <= self.num_rows,
            "shards",
            f"at most the {self.num_rows} training datapoints",
            self.num_shards,
        )
        if self.num_shards % self.num_devices:
            raise ValueError(
                f"shards must be a multiple of the devices, so that each has as many: got {self.num_shards} shards on "
                f"{self.num_devices} devices; use fewer devices, or more shards in a new run."
            )

    @property
    def num_devices(self) -> int:
        """D."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def is_split(self) -> bool:
        """Whether there is anything to split."""
        return self.mesh is not None or self.num_shards > 1

    @property
    def shards_per_device(self) -> int:
        """L / D."""
        return self.num_shards // self.num_devices

    @property
    def places(self) -> int:
        """m, places of a shard."""
        return -(-self.num_rows // self.num_shards)

    def size(self, shard: int) -> int:
        """n_l, rows of a shard."""
        return self.num_rows // self.num_shards + (shard < self.num_rows % self.num_shards)

    def first(self, shard: int) -> int:
        """The first row of a shard."""
        return shard * (self.num_rows // self.num_shards) + min(shard, self.num_rows % self.num_shards)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Whole batches in an epoch."""
        return (self.num_rows // self.num_shards) // (batch_size // self.num_shards)

    def check_batch(self, batch_size: Any, what: str) -> None:
        """Refuses a batch that does not fit the data and the shards."""
        require(
            is_int(batch_size, at_least=1) and batch_size <= self.num_rows,
            what,
            f"an integer from 1 to the {self.num_rows} training datapoints",
            batch_size,
        )
        share = (
            f"a multiple of the {self.num_shards} shards, with at most {self.num_rows // self.num_shards} rows of each"
        )
        fits = batch_size % self.num_shards == 0 and batch_size // self.num_shards <= self.num_rows // self.num_shards
        require(fits, what, share, batch_size)

    def sharding(self, *, by_rows: bool) -> NamedSharding:
        """How an array lies on the devices: its first axis split, or a copy on each."""
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(ROWS) if by_rows else PartitionSpec())

    def spread(self, shape: tuple[int, ...], part: Callable[[int, int], np.ndarray]) -> Array:
        """An array whose first axis is split over the devices; `part(start, stop)` gives what a device holds.

        It is asked only for what the devices of this process hold.
        """
        if self.mesh is None:
            return jnp.asarray(part(0, shape[0]))

        def of_device(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(shape[0])
            return part(start, stop)

        return jax.make_array_from_callback(shape, self.sharding(by_rows=True), of_device)

    def copied(self, tree: PyTree) -> PyTree:
        """A copy of every array on every device; the processes must have equal ones."""
        if self.mesh is None:
            return tree
        return jax.tree.map(lambda leaf: self._copy(leaf) if isinstance(leaf, jax.Array | np.ndarray) else leaf, tree)

    def _copy(self, leaf: Array | np.ndarray) -> Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = self._copy(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, self.sharding(by_rows=False), lambda index: value[index])

    def rows_of(self, data: PyTree) -> PyTree:
        """The data in their places."""
        if not self.is_split:
            return jax.tree.map(jnp.asarray, data)
        shards, places = self.num_shards, self.places

        def spread(leaf: Any) -> Array:
            def part(start: int, stop: int) -> np.ndarray:
                found = np.zeros((stop - start, *leaf.shape[1:]), leaf.dtype)
                for shard in range(start // places, stop // places):
                    size, first = self.size(shard), self.first(shard)
                    at = shard * places - start
                    found[at : at + size] = leaf[first : first + size]
                return found

            return self.spread((shards * places, *leaf.shape[1:]), part)

        return jax.tree.map(spread, data)

    def order(self, key: PRNGKeyArray, epoch: int) -> Int[Array, "..."]:
        """The order in which an epoch visits the rows of each shard: (L, floor(n / L)), or (n,) of one shard."""
        key_order, _ = jax.random.split(key)
        key_epoch = jax.random.fold_in(key_order, epoch)
        if not self.is_split:
            return jax.random.permutation(key_epoch, self.num_rows)
        width = self.num_rows // self.num_shards

        def part(start: int, stop: int) -> np.ndarray:
            return np.stack([self._order(key_epoch, shard)[:width] for shard in range(start, stop)])

        return self.spread((self.num_shards, width), part)

    def _order(self, key: PRNGKeyArray, shard: int) -> np.ndarray:
        own = key if self.num_shards == 1 else jax.random.fold_in(key, shard)
        return np.asarray(jax.random.permutation(own, self.size(shard)))
