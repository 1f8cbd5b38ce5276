"""What a chunk of steps is fed with: rows that are on the devices, or rows that stay on disk until they are due.

Both visit the same rows in the same order. Rows on disk are read a chunk ahead, by a thread, while the devices work on
the chunk before; every process reads the rows of its own shards, and nothing but them.
"""

import abc
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from relbo.data import RowFiles
from relbo.train.layout import Layout

MOST_BYTES = 1 << 26
"""Of a part of rows from disk; two of them are in memory at a time."""


class Part(NamedTuple):
    """What a chunk of steps takes."""

    data: PyTree
    order: Array
    first: int
    """Where in the order the chunk begins."""


class Visit(NamedTuple):
    """Some steps of an epoch."""

    epoch: int
    step: int
    """First of them, from the epoch's beginning."""
    num_steps: int


class AbstractFeed(abc.ABC):
    """Rows for chunks of steps."""

    @property
    @abc.abstractmethod
    def most_steps(self) -> int:
        """Steps that a part has rows for, at most."""

    @abc.abstractmethod
    def part(self, visit: Visit) -> Part:
        """The rows of some steps."""

    @abc.abstractmethod
    def expect(self, visit: Visit) -> None:
        """Makes ready what will be asked for next."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what goes on in the background."""


class ResidentFeed(AbstractFeed):
    """All rows on the devices.

    Args:
        layout: how they lie there.
        train: a tree of arrays.
        key: root of the run's randomness.
        per_step: rows of a step from each shard.
    """

    def __init__(self, layout: Layout, train: PyTree, key: PRNGKeyArray, per_step: int) -> None:
        self._layout, self._key, self._per_step = layout, key, per_step
        self._rows = layout.rows_of(train)
        self._order: tuple[int, Array] | None = None

    @property
    def most_steps(self) -> int:
        """All of them."""
        return 2**31

    def part(self, visit: Visit) -> Part:
        """Of an epoch, everything, at every chunk."""
        if self._order is None or self._order[0] != visit.epoch:
            self._order = visit.epoch, self._layout.order(self._key, visit.epoch)
        return Part(self._rows, self._order[1], visit.step * self._per_step)

    def expect(self, visit: Visit) -> None:
        """Everything is there."""

    def close(self) -> None:
        """Nothing goes on."""


class DiskFeed(AbstractFeed):
    """Rows that stay on disk until a chunk needs them.

    Args:
        layout: which shards this process holds.
        files: the rows.
        key: root of the run's randomness.
        per_step: rows of a step from each shard.
        most_steps: of a chunk; less where so many rows would be too many bytes.
    """

    def __init__(self, layout: Layout, files: RowFiles, key: PRNGKeyArray, per_step: int, most_steps: int) -> None:
        self._layout, self._files, self._key, self._per_step = layout, files, key, per_step
        bytes_per_step = per_step * layout.shards_per_device * files.shape[1]
        self._most = max(1, min(most_steps, MOST_BYTES // max(bytes_per_step, 1)))
        self._orders: tuple[int, dict[int, np.ndarray]] = (-1, {})
        self._reader = ThreadPoolExecutor(1, "relbo-rows")
        self._expected: tuple[Visit, Future[Part]] | None = None

    @property
    def most_steps(self) -> int:
        """As many as a part has room for."""
        return self._most

    def part(self, visit: Visit) -> Part:
        """The rows of these steps, in the order of their visits, padded to the room of a part."""
        if self._expected is None or self._expected[0] != visit:
            self.expect(visit)
        assert self._expected is not None
        found = self._expected[1].result()
        self._expected = None
        return found

    def expect(self, visit: Visit) -> None:
        """Begins to read."""
        self._expected = visit, self._reader.submit(self._read, visit)

    def close(self) -> None:
        """Waits for the reader."""
        self._reader.shutdown(cancel_futures=True)

    def _read(self, visit: Visit) -> Part:
        layout, room, width = self._layout, self._most * self._per_step, self._files.shape[1]
        begin, count = visit.step * self._per_step, visit.num_steps * self._per_step

        def order_of(start: int, stop: int) -> np.ndarray:
            found = np.zeros((stop - start, room), np.int32)
            for shard in range(start, stop):
                found[shard - start, :count] = self._order(visit.epoch, shard)[begin : begin + count]
            return found

        def rows_of(start: int, stop: int) -> np.ndarray:
            shards = range(start // room, stop // room)
            order = order_of(shards.start, shards.stop)[:, :count]
            first = np.array([layout.first(shard) for shard in shards])
            found = np.zeros((len(shards), room, width), self._files.dtype)
            found[:, :count] = self._files.take((first[:, None] + order).reshape(-1)).reshape(-1, count, width)
            return found.reshape(-1, width)

        if not layout.is_split:
            return Part(jnp.asarray(rows_of(0, room)), jnp.asarray(order_of(0, 1)[0]), 0)
        shards = layout.num_shards
        return Part(layout.split((shards * room, width), rows_of), layout.split((shards, room), order_of), 0)

    def _order(self, epoch: int, shard: int) -> np.ndarray:
        if self._orders[0] != epoch:
            self._orders = (epoch, {})
        known = self._orders[1]
        if shard not in known:
            known[shard] = self._layout.order_of(self._key, epoch, shard)
        return known[shard]
