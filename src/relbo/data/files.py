"""Reading and writing `.npz` files: never a pickle, never half a file."""

import os
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relbo.data import checks
from relbo.data.dataset import SPLITS, Dataset

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile, zlib and numpy raise on a damaged archive; trouble with the disk (`OSError`) passes through."""


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of an `.npz` file; optional ones only where present.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no `.npz`, damaged, pickled, or lacks a required array.
    """
    if not path.is_file():
        kind = "is a directory" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {kind}; expected an .npz file with arrays {', '.join(required)}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file: expected the zip archive that np.savez writes, {_look(path)}.")
    with path.open("rb") as file:  # NumPy would leave a damaged file open
        try:
            archive = np.load(file, allow_pickle=False)
        except _DAMAGE as error:
            raise ValueError(f"{path} is damaged ({_reason(error)}); write or fetch it again.") from error
        with archive:
            missing = [key for key in required if key not in archive.files]
            if missing:
                raise ValueError(
                    f"{path} lacks {_quoted(missing)}: expected arrays {_quoted(required)}, "
                    f"got {_quoted(archive.files)}."
                )
            wanted = [*required, *(key for key in optional if key in archive.files)]
            return {key: _read(path, archive, key) for key in wanted}


def read_splits(path: Path) -> dict[str, np.ndarray]:
    """The three binary splits of a file, unpacked where `<split>_shape` says that they are bit-packed."""
    arrays = read_npz(path, SPLITS, [f"{split}_shape" for split in SPLITS])
    splits = {}
    for split in SPLITS:
        what = f"{path}: split {split!r}"
        rows, shape = arrays[split], arrays.get(f"{split}_shape")
        splits[split] = checks.binary(rows if shape is None else _unpack(rows, shape, what), what)
    checks.same_width(splits, str(path))
    return splits


def load_file(path: Path) -> Dataset:
    """A user's file: `train`, `valid`, `test` as 0/1 matrices or bit-packed, and perhaps `image_shape`."""
    splits = read_splits(path)
    shape = read_npz(path, (), ["image_shape"]).get("image_shape")
    image_shape = None if shape is None else _image_shape(shape, splits["train"].shape[1], path)
    return Dataset(path.stem, "binary", **splits, image_shape=image_shape)


def pack(splits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The bit-packed layout: eight pixels a byte along each row, first pixel in the highest bit."""
    packed = {split: np.packbits(rows, axis=1) for split, rows in splits.items()}
    shapes = {f"{split}_shape": np.array(rows.shape) for split, rows in splits.items()}
    return packed | shapes


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes a compressed `.npz` in one move: whoever looks sees the old file or the whole new one."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as stream:
            np.savez_compressed(stream, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        array = archive[key]
    except _DAMAGE as error:
        if "allow_pickle" in str(error):
            raise ValueError(
                f"{path}: {key!r} holds pickled objects, which are never read; save it as a plain numeric array."
            ) from error
        raise ValueError(f"{path}: {key!r} is damaged ({_reason(error)}); write or fetch the file again.") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: {key!r} must be an array that np.savez wrote, got other bytes.")
    return array


def _unpack(rows: np.ndarray, shape: np.ndarray, what: str) -> np.ndarray:
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise ValueError(f"{what} has a shape entry that must be two integers (rows, pixels), got {shape.tolist()}.")
    height, width = (int(size) for size in shape)
    packed = (height, -(-width // 8))
    if rows.dtype != np.uint8 or rows.shape != packed:
        raise ValueError(
            f"{what} must be bit-packed uint8 of shape {packed}, as its shape entry ({height}, {width}) says, got "
            f"{rows.dtype} of shape {rows.shape}; leave the shape entry out if the rows are not packed."
        )
    bits = np.unpackbits(rows, axis=1)
    if bits[:, width:].any():
        raise ValueError(f"{what} must have zeros in the bits after pixel {width} of a row, got ones; check the width.")
    return bits[:, :width]


def _image_shape(shape: np.ndarray, width: int, path: Path) -> tuple[int, int]:
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 1 or int(shape[0]) * int(shape[1]) != width:
        raise ValueError(
            f"{path}: 'image_shape' must be (height, width) with {width} pixels in all, got {shape.tolist()}."
        )
    return int(shape[0]), int(shape[1])


def _look(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(6)
    if start.startswith(b"PK"):
        return "got one that ends too early; write or fetch it again"
    if start == b"\x93NUMPY":
        return "got a single .npy array; save the splits with np.savez(path, train=..., valid=..., test=...)"
    return "got an empty file" if not start else "got something else"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
