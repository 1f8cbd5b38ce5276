"""`RowFiles`: a matrix of bytes that stays on disk, in one or several `.npy` files.

The files are memory-mapped when a row of theirs is first asked for. What was read is given back to the system at once
(`MADV_DONTNEED`; it stays in the page cache), so that the memory of a process grows neither with the data nor with
the number of rows that it has seen. Where rows are far apart, the system is told not to read what lies between them
(`MADV_RANDOM`); else it would read hundreds of KiB for each row that is not in its cache.
"""

import copy
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from jaxtyping import Int64, UInt8

from relbo._check import is_int, shortened

AT_ONCE = 1024
"""Rows between two releases of pages: a touched row brings some 64 KiB of its file with it."""
BLOCK = 8192
"""Rows of a block, where all rows are gone through."""

Matrix = UInt8[np.ndarray, "n d"]


class RowFiles:
    """A read-only matrix of uint8 rows in `.npy` files, of which only the rows that are asked for are read.

    `rows[3]` is one row, `rows[index]` and `rows.take(index)` the rows of an array of integers, in its order;
    `rows[a:b]` is a part that is still on disk, and `np.asarray(rows)` reads everything. Threads and processes may
    read at the same time. The files must not change while they are in use.

    Args:
        files: `.npy` files of one width, in the order of the rows: uint8, two axes, C order.
        width: pixels of a row if the files hold bits, eight to a byte as `np.packbits(axis=1)` packs them; None if a
            byte is a pixel.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is truncated, or not of this type or width.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "rows.npy"
        >>> np.save(file, np.eye(4, dtype=np.uint8))
        >>> rows = relbo.data.RowFiles([file])
        >>> rows.take(np.array([3, 0])).tolist()
        [[0, 0, 0, 1], [1, 0, 0, 0]]
        >>> rows[1:3]
        RowFiles(2 x 4, 1 file)
    """

    dtype = np.dtype(np.uint8)
    ndim = 2

    def __init__(self, files: Sequence[Path | str], *, width: int | None = None) -> None:
        if isinstance(files, str | Path) or len(files) == 0:
            raise ValueError(f"RowFiles: files must be a list of at least one .npy file, got {shortened(files)}.")
        if width is not None and not is_int(width, at_least=1):
            raise ValueError(f"RowFiles: width must be None or an integer >= 1, got {shortened(width)}.")
        self._files = [MappedFile(Path(file)) for file in files]
        first = self._files[0]
        for file in self._files:
            if file.width != first.width:
                raise ValueError(
                    f"{file.path} must have rows of {first.width} bytes, as {first.path.name} has, got {file.width}."
                )
        if width is not None and first.width != -(-width // 8):
            raise ValueError(
                f"{first.path} must have rows of {-(-width // 8)} bytes for {width} bits each, got {first.width}."
            )
        self._packed = width is not None
        self._width = first.width if width is None else int(width)
        self._ends = np.cumsum([file.rows for file in self._files])
        self._range = (0, int(self._ends[-1]))
        self._sums: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, pixels)."""
        return self._range[1] - self._range[0], self._width

    @property
    def size(self) -> int:
        """Number of pixels of all rows."""
        return len(self) * self._width

    @property
    def packed(self) -> bool:
        """Whether the files hold bits."""
        return self._packed

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        first, last = np.searchsorted(self._ends, [self._range[0], max(self._range[1] - 1, 0)], side="right")
        number = int(last - first) + 1
        packed = ", packed" * self._packed
        return f"RowFiles({len(self)} x {self._width}, {number} file{'s' * (number > 1)}{packed})"

    def __getitem__(self, index: Any) -> "np.ndarray | RowFiles":
        if isinstance(index, slice):
            return self._part(index)
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            return self.take(np.array([index]))[0]
        return self.take(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001
        if copy is False:
            raise ValueError("rows in files cannot become an array without a copy; leave copy=False out.")
        found = np.empty(self.shape, np.uint8)
        start = 0
        for block in self.blocks():
            found[start : start + len(block)] = block
            start += len(block)
        return found if dtype is None else found.astype(dtype, copy=False)

    def take(self, rows: Any) -> UInt8[np.ndarray, "b d"]:
        """The rows of an array of integers, in its order; repeated and negative numbers are as in NumPy.

        Each file is read once, in the order of its rows, whatever the order that is asked for. What is read is held
        once in memory, beside buffers of a fixed size.

        Raises:
            IndexError: `rows` is no array of integers with one axis, or a row is outside of the data.
        """
        index = np.asarray(rows)
        if index.size == 0 and index.ndim == 1:
            return np.empty((0, self._width), np.uint8)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            _refuse_index(rows)
        low, high = int(index.min()), int(index.max())
        if low < -len(self) or high >= len(self):
            raise IndexError(f"rows must lie in [0, {len(self)}), got values from {low} to {high}.")
        index = index.astype(np.int64)
        index = np.where(index < 0, index + len(self), index) + self._range[0]
        order = np.argsort(index, kind="stable")
        index = index[order]
        found = np.empty((len(index), self._width), np.uint8)
        bounds = np.searchsorted(index, self._ends)
        for number in np.flatnonzero(np.diff(bounds, prepend=0)):
            file, stop = self._files[number], int(bounds[number])
            for start in range(int(bounds[number - 1]) if number else 0, stop, AT_ONCE):
                places = slice(start, min(start + AT_ONCE, stop))
                found[order[places]] = self._pixels(file.take(index[places] - (self._ends[number] - file.rows)))
        return found

    def blocks(self, size: int = BLOCK) -> Iterator[Matrix]:
        """All rows in their order, at most `size` at a time."""
        for stored in self.stored_blocks(size):
            yield self._pixels(stored)

    def stored_blocks(self, size: int = BLOCK) -> Iterator[Matrix]:
        """The same as the files hold them: packed if they are."""
        begin, end = self._range
        for file, last in zip(self._files, self._ends.tolist(), strict=True):
            first = last - file.rows
            for start in range(max(begin, first), min(end, last), size):
                yield file.read(start - first, min(start + size, end, last) - first)

    def column_sums(self) -> Int64[np.ndarray, " d"]:
        """Sum of each pixel over all rows; of a whole dataset's split it was recorded when the files were written."""
        if self._sums is None:
            self._sums = sum_of_blocks(self.blocks(), self._width)
        return self._sums.copy()

    def with_column_sums(self, sums: Int64[np.ndarray, " d"]) -> "RowFiles":
        """The same rows with the sums that somebody has counted before."""
        found = self._part(slice(None))
        found._sums = sums.copy()
        return found

    def _part(self, rows: slice) -> "RowFiles":
        if rows.step not in (None, 1):
            _refuse_index(rows)
        start, stop, _ = rows.indices(len(self))
        found = copy.copy(self)  # the mapped files are shared
        found._range = (self._range[0] + start, self._range[0] + max(start, stop))
        found._sums = self._sums if found._range == self._range else None
        return found

    def _pixels(self, stored: np.ndarray) -> np.ndarray:
        return np.unpackbits(stored, axis=1, count=self._width) if self._packed else stored


class MappedFile:
    """One `.npy` file of uint8 rows: its header is read now, the rows when they are asked for.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there: expected a .npy file of uint8 rows.")
        self.path = path
        with path.open("rb") as stream:
            self.rows, self.width, self.offset = read_header(stream, path)
        self.num_bytes = self.offset + self.rows * self.width
        self._refuse_other_size(path.stat().st_size)
        self._mapped: tuple[mmap.mmap, np.ndarray] | None = None

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Rows by number, in ascending order."""
        pages, matrix = self._open()
        spanned, touched = (int(rows[-1] - rows[0]) + 1) * self.width, len(rows) * mmap.PAGESIZE
        _advise(pages, "MADV_RANDOM" if spanned > 2 * touched else "MADV_NORMAL")
        found = matrix.take(rows, axis=0)  # several times as fast as matrix[rows], and without Python's lock
        _advise(pages, "MADV_DONTNEED")
        return found

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows of a range."""
        pages, matrix = self._open()
        _advise(pages, "MADV_NORMAL")
        found = matrix[start:stop].copy()
        _advise(pages, "MADV_DONTNEED")
        return found

    def _open(self) -> tuple[mmap.mmap, np.ndarray]:
        # two threads may both map the file; either mapping serves
        if self._mapped is None:
            with self.path.open("rb") as stream:
                pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._refuse_other_size(len(pages))
            self._mapped = pages, np.ndarray((self.rows, self.width), np.uint8, pages, self.offset)
        return self._mapped

    def _refuse_other_size(self, size: int) -> None:
        if size != self.num_bytes:
            how = "is truncated" if size < self.num_bytes else "is too long"
            raise ValueError(
                f"{self.path} {how}: its header promises {self.rows} rows of {self.width} bytes, which makes "
                f"{self.num_bytes} bytes, got {size}; write or copy it again."
            )


def read_header(stream: BinaryIO, path: Path) -> tuple[int, int, int]:
    """(rows, bytes of a row, where the rows begin) of a `.npy` file of uint8 rows."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, is_fortran, dtype = read[version](stream)
    except Exception as error:  # numpy raises many kinds for a damaged header
        raise ValueError(f"{path} is not a .npy file, or its header is damaged; write or copy it again.") from error
    if dtype != np.uint8 or len(shape) != 2 or is_fortran or 0 in shape:
        order = " in Fortran order" * bool(is_fortran)
        raise ValueError(
            f"{path} must hold uint8 of shape (rows, bytes of a row), neither of them 0, in C order, got {dtype} of "
            f"shape {shape}{order}."
        )
    return int(shape[0]), int(shape[1]), stream.tell()


def sum_of_blocks(blocks: Iterator[np.ndarray], width: int) -> Int64[np.ndarray, " d"]:
    """Sum of each column."""
    total = np.zeros(width, np.int64)
    for block in blocks:
        total += block.sum(axis=0, dtype=np.int64)
    return total


def _advise(pages: mmap.mmap, advice: str) -> None:
    number = getattr(mmap, advice, None)  # a system may not take advice
    if number is not None:
        pages.madvise(number)


def _refuse_index(index: Any) -> NoReturn:
    raise IndexError(
        "rows in files are taken by a number, a range without a step or an array of integers with one axis, got "
        f"{shortened(index)}; np.asarray(rows) reads them all."
    )
