"""Writing a dataset as a directory of `.npy` files, in memory that does not grow with the data."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import jax
import numpy as np

from relbo._check import is_int, require
from relbo._disk import command, naming, refuse_unwritable
from relbo.data import checks, loading
from relbo.data.dataset import SPLITS, Dataset, Kind, fingerprint_of
from relbo.data.row_directory import (
    DESCRIPTION,
    Description,
    FileRecord,
    SplitRecord,
    load_rows,
    record_file,
    write_description,
)
from relbo.data.row_files import BLOCK, RowFiles, sum_of_blocks

ROWS_PER_FILE = 100_000

Blocks = np.ndarray | jax.Array | RowFiles | Iterable[np.ndarray]
"""Rows of a split: a matrix, or matrices of one width that come one after the other."""


def write_rows(
    out: Path | str,
    *,
    name: str,
    train: Blocks,
    valid: Blocks,
    test: Blocks,
    kind: Kind = "binary",
    image_shape: tuple[int, int] | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    packed: bool = True,
) -> Dataset:
    """Writes a dataset, perhaps one that never was in memory, as a directory that `relbo.data.load` opens.

    Args:
        out: the directory, new or empty.
        name: what the data are called.
        train: a matrix, or an iterable of matrices of one width: blocks of rows, of any length each. Any numeric or
            boolean type of 0s and 1s; gray levels are uint8.
        valid: the same for validation, 0s and 1s whatever the kind.
        test: the same for testing.
        kind: `"binary"` or `"gray"`, see `Dataset`.
        image_shape: (height, width) of a row that is a picture.
        rows_per_file: rows of each file but the last of a split.
        packed: whether rows of 0s and 1s are stored eight pixels to a byte; gray levels never are.

    Returns:
        The dataset, as `relbo.data.load(out)` gives it. Its fingerprint is that of the same rows in an `.npz` file.

    Raises:
        ValueError: a block is not what it should be, or `out` holds something; nothing is left behind.
        OSError: a file cannot be written; nothing is left behind.

    Example:
        >>> import tempfile
        >>> blocks = (np.full((1000, 6), i % 2) for i in range(5))
        >>> one = np.ones((1, 6))
        >>> data = relbo.data.write_rows(tempfile.mkdtemp(), name="stripes", train=blocks, valid=one, test=one)
        >>> data.train
        RowFiles(5000 x 6, 1 file, packed)
        >>> data.mean().tolist()
        [0.4, 0.4, 0.4, 0.4, 0.4, 0.4]
    """
    splits = {"train": train, "valid": valid, "test": test}
    return _write(out, name, kind, splits, image_shape, rows_per_file, packed, lambda fingerprint: None)


def convert_rows(
    source: Path | str,
    out: Path | str,
    *,
    data_dir: Path | str | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    packed: bool = True,
) -> Dataset:
    """Writes a named dataset, an `.npz` file or a directory of rows as a directory of rows.

    Args:
        source: what `relbo.data.load` takes.
        out: the directory, new or empty.
        data_dir: where the files of named datasets are.
        rows_per_file: rows of each file but the last of a split.
        packed: whether rows of 0s and 1s are stored eight pixels to a byte.

    Returns:
        The dataset on disk, of the same content and fingerprint.

    Raises:
        ValueError: the source is not good, or `out` holds something.
        OSError: a file is missing or cannot be written.

    Example:
        >>> import tempfile
        >>> data = relbo.data.convert_rows("digits", tempfile.mkdtemp(), rows_per_file=500)
        >>> data.train
        RowFiles(1297 x 64, 3 files, packed)
        >>> data.fingerprint == relbo.data.load("digits").fingerprint
        True
    """
    data = loading.load(source, data_dir)

    def accept(fingerprint: str) -> None:
        if fingerprint != data.fingerprint:
            raise ValueError(
                f"{source} must have fingerprint {data.fingerprint[:12]}, got rows of {fingerprint[:12]}: it was "
                f"changed after it was written, see `{command('data', 'check', source)}`."
            )

    splits = {split: data.split(split) for split in SPLITS}
    return _write(out, data.name, data.kind, splits, data.image_shape, rows_per_file, packed, accept)


def _write(
    out: Path | str,
    name: str,
    kind: Kind,
    splits: Mapping[str, Blocks],
    image_shape: tuple[int, int] | None,
    rows_per_file: int,
    packed: bool,  # noqa: FBT001
    accept: Callable[[str], None],
) -> Dataset:
    """Writes the files and, once `accept` has not refused their fingerprint, the description."""
    require(isinstance(out, str | Path) and str(out) != "", "out", "a directory, new or empty", out)
    require(isinstance(name, str) and name != "", "name", "a word", name)
    require(kind in ("binary", "gray"), "kind", "'binary' or 'gray'", kind)
    require(is_int(rows_per_file, at_least=1), "rows_per_file", "an integer >= 1", rows_per_file)
    require(isinstance(packed, bool), "packed", "True or False", packed)
    folder = Path(out).expanduser()
    with _new_files(folder):
        written, records = {}, {}
        for split, blocks in splits.items():
            is_gray = kind == "gray" and split == "train"
            checked = _checked_blocks(blocks, f"{folder.name}: split {split!r}", is_gray=is_gray)
            width, files = _write_split(folder, split, checked, rows_per_file, packed=packed and not is_gray)
            rows = RowFiles([folder / file.file for file in files], width=width if packed and not is_gray else None)
            sums = sum_of_blocks(rows.blocks(), width)
            written[split] = rows.with_column_sums(sums)
            records[split] = SplitRecord(rows.packed, sums.tolist(), files)
        # after the rows, since it begins with their number, and of what the files hold now
        checks.same_width(written, folder.name)
        fingerprint = fingerprint_of(kind, written)
        accept(fingerprint)
        made = Dataset(name, kind, **written, image_shape=image_shape, recorded_fingerprint=fingerprint)
        shape = made.image_shape
        write_description(folder, Description(name, kind, made.train.shape[1], shape, fingerprint, records))
        return load_rows(folder)


@contextlib.contextmanager
def _new_files(folder: Path) -> Iterator[None]:
    """An empty directory to write in; if the writing fails, all that it wrote goes."""
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"{folder} must be new or empty, got a folder with {min(file.name for file in folder.iterdir())!r} in it; "
            "name another, or delete what an interrupted conversion left."
        )
    if not folder.is_dir():
        refuse_unwritable(folder)
        if folder.exists():
            raise NotADirectoryError(f"{folder} must be a new or empty folder, got a file.")
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for file in [file for split in SPLITS for file in folder.glob(f"{split}-*.npy")]:
            file.unlink()
        (folder / DESCRIPTION).unlink(missing_ok=True)
        for place in new:
            if place.is_dir():
                place.rmdir()
        raise


def _checked_blocks(blocks: Blocks, what: str, *, is_gray: bool) -> Iterator[np.ndarray]:
    """Non-empty uint8 blocks of one width, of bounded length."""
    check = checks.gray if is_gray else checks.binary
    first, width = 0, None
    for block in _pieces(blocks, what):
        here = what if first == 0 else f"{what}, counted from row {first},"
        if width is not None and block.shape[1:] != (width,):
            raise ValueError(f"{here} must have rows of {width} pixels, as those before, got shape {block.shape}.")
        checked = check(block, here)
        first, width = first + len(checked), checked.shape[1]
        yield checked
    if first == 0:
        raise ValueError(f"{what} is empty: expected at least one row, got none.")


def _pieces(blocks: Blocks, what: str) -> Iterator[np.ndarray]:
    if isinstance(blocks, RowFiles):
        yield from blocks.blocks()
        return
    is_iterable = isinstance(blocks, Iterable) and not isinstance(blocks, str | bytes | dict)
    require(is_iterable, what, "a matrix or an iterable of matrices", blocks)
    for block in [blocks] if isinstance(blocks, np.ndarray | jax.Array) else blocks:
        array = np.asarray(block)
        if array.ndim != 2:
            checks.matrix(array, what)
        for start in range(0, len(array), BLOCK):
            yield array[start : start + BLOCK]


def _write_split(
    folder: Path, split: str, blocks: Iterator[np.ndarray], rows_per_file: int, *, packed: bool
) -> tuple[int, list[FileRecord]]:
    """Fills files one after the other; returns the width and what is known of them."""
    files: list[FileRecord] = []
    block: np.ndarray | None = next(blocks)
    assert block is not None
    width = block.shape[1]
    while block is not None:
        path, rows = folder / f"{split}-{len(files):05}.npy", 0
        with path.open("xb") as stream:
            start = _write_header(stream, 0, -(-width // 8) if packed else width)
            while block is not None and rows < rows_per_file:
                part, block = block[: rows_per_file - rows], block[rows_per_file - rows :]
                with naming(path):
                    stream.write(np.ascontiguousarray(np.packbits(part, axis=1) if packed else part).data)
                rows += len(part)
                block = block if len(block) else next(blocks, None)
            with naming(path):
                stream.seek(0)
                if _write_header(stream, rows, -(-width // 8) if packed else width) != start:
                    raise AssertionError("NumPy leaves room for the number of rows in a header")
                stream.flush()
                os.fsync(stream.fileno())
        files.append(record_file(path, rows))
    return width, files


def _write_header(stream: BinaryIO, rows: int, width: int) -> int:
    """Writes the header of uint8 rows, as long for any number of them; returns where the rows begin."""
    fields = {"descr": "|u1", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.tell()
