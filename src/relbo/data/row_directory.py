"""A dataset as a directory: `dataset.json` and `.npy` files, of which a run reads only the rows that it visits.

    dataset.json             name, kind, image shape, fingerprint; of each split its rows, column sums and files
    train-00000.npy ...      uint8 rows, or eight bits to a byte where the split is packed
    valid-00000.npy ...
    test-00000.npy ...

The description is sealed with its own hash and written last: a directory without one is not whole. Opening compares
sizes, headers and the first bytes of every file with it, which costs nothing; `check_rows` compares every byte.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from relbo._check import is_int
from relbo.data import checks
from relbo.data.dataset import SPLITS, Dataset, Kind, fingerprint_of
from relbo.data.row_files import RowFiles, sum_of_blocks
from relbo.train.errors import Damaged
from relbo.train.sealed import read_sealed, write_sealed

DESCRIPTION = "dataset.json"
FORMAT = 1
"""Number of this layout; another one is refused."""
START = 4096
"""Bytes at the start of a file that opening looks at: header and first rows, enough to notice swapped files."""


@dataclasses.dataclass(frozen=True)
class FileRecord:
    """What is known of one file."""

    file: str
    """Its name in the directory."""
    rows: int
    bytes: int
    """Of the whole file."""
    start_sha256: str
    """Hash (hex) of its first `START` bytes."""
    sha256: str
    """Hash (hex) of all of them."""


@dataclasses.dataclass(frozen=True)
class SplitRecord:
    """What is known of one split."""

    packed: bool
    column_sums: list[int]
    files: list[FileRecord]


@dataclasses.dataclass(frozen=True)
class Description:
    """What `dataset.json` says."""

    name: str
    kind: Kind
    width: int
    """Pixels of a row."""
    image_shape: tuple[int, int] | None
    fingerprint: str
    splits: dict[str, SplitRecord]


def is_row_directory(path: Path) -> bool:
    """Whether a path is a directory of this kind."""
    return (path / DESCRIPTION).exists()


def write_description(folder: Path, description: Description) -> None:
    """Writes `dataset.json`, which makes the directory whole."""
    write_sealed(folder / DESCRIPTION, {"format": FORMAT, **dataclasses.asdict(description)})


def read_description(folder: Path) -> Description:
    """Reads `dataset.json`.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it is not what was written.
    """
    path = folder / DESCRIPTION
    values = read_sealed(path, "the description of a dataset")
    if values.get("format") != FORMAT:
        raise Damaged(f"{path} must have format {FORMAT}, got {values.get('format')!r}; convert the data again.")
    try:
        return _parsed(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{path} must describe a dataset, got one with {error!r}; convert the data again.") from error


def load_rows(folder: Path) -> Dataset:
    """The dataset of a directory; all three splits are `RowFiles`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file or the description is not what was written, as far as can be seen without reading all.
    """
    description = read_description(folder)
    splits = {}
    for split in SPLITS:
        record = description.splits[split]
        for file in record.files:
            _refuse_changed_start(folder, file, record.files)
        rows = RowFiles([folder / file.file for file in record.files], width=description.width * record.packed or None)
        if rows.shape[1] != description.width or len(rows) != sum(file.rows for file in record.files):
            raise Damaged(
                f"{folder / DESCRIPTION} must say how many rows and pixels split {split!r} has, its files have shape "
                f"{rows.shape}; convert the data again."
            )
        splits[split] = rows.with_column_sums(np.array(record.column_sums, np.int64))
    return Dataset(
        description.name,
        description.kind,
        **splits,
        image_shape=description.image_shape,
        recorded_fingerprint=description.fingerprint,
    )


def check_rows(folder: Path | str) -> Dataset:
    """Reads every byte of a directory, in blocks, and compares it with the description.

    Returns:
        The dataset.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: something is not what was written; the message names the first such file.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = relbo.data.convert_rows("digits", folder)
        >>> relbo.data.check_rows(folder)
        Dataset('digits', binary, 1297/250/250 x 64, 13b82d8b0d66)
    """
    folder = Path(folder).expanduser()
    data, description = load_rows(folder), read_description(folder)
    for record in description.splits.values():
        for file in record.files:
            if file_sha256(folder / file.file) != file.sha256:
                raise Damaged(f"{folder / file.file} was changed or damaged after it was written; {_ADVICE}.")
    for split in SPLITS:
        rows, what = cast(RowFiles, data.split(split)), f"{folder}: split {split!r}"
        checks.padding(rows, what)
        if data.kind == "binary" or split != "train":
            checks.binary_blocks(rows, what)
        if not np.array_equal(sum_of_blocks(rows.blocks(), rows.shape[1]), rows.column_sums()):
            raise Damaged(f"{what} has other column sums than {DESCRIPTION} says; convert the data again.")
    if (found := fingerprint_of(data.kind, {split: data.split(split) for split in SPLITS})) != data.fingerprint:
        raise Damaged(
            f"{folder} must have fingerprint {data.fingerprint[:12]}, as {DESCRIPTION} says, got {found[:12]}; convert "
            "the data again."
        )
    return data


def record_file(path: Path, rows: int) -> FileRecord:
    """What is known of a file that was just written."""
    return FileRecord(path.name, rows, path.stat().st_size, start_sha256(path), file_sha256(path))


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def start_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's first bytes."""
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read(START)).hexdigest()


_ADVICE = "copy it again, or convert the data again"


def _refuse_changed_start(folder: Path, record: FileRecord, others: list[FileRecord]) -> None:
    path = folder / record.file
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {DESCRIPTION} names it; {_ADVICE}.")
    found = start_sha256(path)
    if found != record.start_sha256:
        twin = next((other.file for other in others if other.start_sha256 == found), None)
        what = "begins otherwise than when it was written" if twin is None else f"has the content of {twin}"
        raise Damaged(f"{path} {what}; {_ADVICE}.")
    if (size := path.stat().st_size) != record.bytes:
        how = "is truncated" if size < record.bytes else "is too long"
        raise Damaged(f"{path} {how}: expected {record.bytes} bytes, got {size}; {_ADVICE}.")


def _parsed(values: Mapping[str, Any]) -> Description:
    shape = values["image_shape"]
    width, kind = values["width"], values["kind"]
    if kind not in ("binary", "gray") or not is_int(width, at_least=1):
        raise ValueError(f"kind {kind!r} and width {width!r}")
    return Description(
        str(values["name"]),
        kind,
        width,
        None if shape is None else (int(shape[0]), int(shape[1])),
        str(values["fingerprint"]),
        {split: _parsed_split(values["splits"][split], width) for split in SPLITS},
    )


def _parsed_split(values: Mapping[str, Any], width: int) -> SplitRecord:
    files = [FileRecord(**file) for file in values["files"]]
    if any(Path(file.file).name != file.file for file in files):
        raise ValueError("files outside of the directory")
    sums = [int(total) for total in values["column_sums"]]
    if len(sums) != width or not files:
        raise ValueError(f"{len(sums)} column sums of {width}, {len(files)} files")
    return SplitRecord(bool(values["packed"]), sums, files)
