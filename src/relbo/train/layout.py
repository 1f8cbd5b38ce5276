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
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from relbo import devices
from relbo._check import is_int, require


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
        return NamedSharding(self.mesh, devices.SPLIT if by_rows else devices.EVERYWHERE)

    def copied(self, tree: PyTree) -> PyTree:
        """A copy of every array on every device."""
        return tree if self.mesh is None else devices.copied(self.mesh, tree)

    def split(self, shape: tuple[int, ...], part: Callable[[int, int], np.ndarray]) -> Array:
        """An array of the parts that the devices hold, see `devices.split`."""
        return jnp.asarray(part(0, shape[0])) if self.mesh is None else devices.split(self.mesh, shape, part)

    def rows_of(self, data: PyTree) -> PyTree:
        """The data in their places."""
        if not self.is_split:
            return jax.tree.map(jnp.asarray, data)
        shards, places = self.num_shards, self.places

        def placed(leaf: Any) -> Array:
            def part(start: int, stop: int) -> np.ndarray:
                found = np.zeros((stop - start, *leaf.shape[1:]), leaf.dtype)
                for shard in range(start // places, stop // places):
                    size, first = self.size(shard), self.first(shard)
                    at = shard * places - start
                    found[at : at + size] = leaf[first : first + size]
                return found

            return self.split((shards * places, *leaf.shape[1:]), part)

        return jax.tree.map(placed, data)

    def order(self, key: PRNGKeyArray, epoch: int) -> Int[Array, "..."]:
        """The order in which an epoch visits the rows of each shard: (L, floor(n / L)), or (n,) of one shard."""
        if not self.is_split:
            return jax.random.permutation(_epoch_key(key, epoch), self.num_rows)
        width = self.num_rows // self.num_shards

        def part(start: int, stop: int) -> np.ndarray:
            return np.stack([self.order_of(key, epoch, shard)[:width] for shard in range(start, stop)])

        return self.split((self.num_shards, width), part)

    def order_of(self, key: PRNGKeyArray, epoch: int, shard: int) -> np.ndarray:
        """The order in which an epoch visits the rows of one shard."""
        own = _epoch_key(key, epoch)
        own = own if self.num_shards == 1 else jax.random.fold_in(own, shard)
        return np.asarray(jax.random.permutation(own, self.size(shard)))


def _epoch_key(key: PRNGKeyArray, epoch: int) -> PRNGKeyArray:
    if not key.is_fully_addressable:  # what one process computes for itself it computes from a key of its own
        key = jax.random.wrap_key_data(jnp.asarray(np.asarray(jax.random.key_data(key))), impl=jax.random.key_impl(key))
    return jax.random.fold_in(jax.random.split(key)[0], epoch)
