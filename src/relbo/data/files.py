"""Reading and writing `.npz` files: never a pickle, never half a file."""

import math
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relbo._disk import replacing
from relbo.data import checks
from relbo.data.dataset import SPLITS, Dataset

LARGEST = 1 << 31
"""Bytes that the arrays of a file may take when unpacked: a small archive can declare, and hold, any number."""


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of an `.npz` file; optional ones only where present.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no `.npz`, damaged, pickled, or lacks a required array.
    """
    if not path.is_file():
        kind = "is a directory" if path.is_dir() else "does not exist"
        rows = ", or a folder with dataset.json, as `relbo data convert` writes" * path.is_dir()
        raise FileNotFoundError(f"{path} {kind}; expected an .npz file with arrays {', '.join(required)}{rows}.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file: expected the zip archive that np.savez writes, {_look(path)}.")
    with path.open("rb") as file:  # NumPy would leave a damaged file open
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # zipfile and numpy raise many kinds for a damaged archive
            raise ValueError(f"{path} is damaged ({_reason(error)}); write or fetch it again.") from error
        with archive:
            missing = [key for key in required if key not in archive.files]
            if missing:
                raise ValueError(
                    f"{path} lacks {_quoted(missing)}: expected arrays {_quoted(required)}, "
                    f"got {_quoted(archive.files)}."
                )
            wanted = [*required, *(key for key in optional if key in archive.files)]
            _refuse_too_large(path, archive, wanted)
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
    return Dataset(path.stem, "binary", **splits, image_shape=image_shape, recorded_fingerprint=None)


def pack(splits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The bit-packed layout: eight pixels a byte along each row, first pixel in the highest bit."""
    packed = {split: np.packbits(rows, axis=1) for split, rows in splits.items()}
    shapes = {f"{split}_shape": np.array(rows.shape) for split, rows in splits.items()}
    return packed | shapes


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes a compressed `.npz` in one move: whoever looks sees the old file or the whole new one."""
    with replacing(path) as stream:
        np.savez_compressed(stream, **arrays)


def _refuse_too_large(path: Path, archive: np.lib.npyio.NpzFile, keys: list[str]) -> None:
    """Compares what the archive and the headers in it declare with the limit and with each other, unpacking nothing."""
    assert archive.zip is not None
    members = {info.filename.removesuffix(".npy"): info for info in archive.zip.infolist()}
    declared = sum(info.file_size for info in archive.zip.infolist() if info.filename.removesuffix(".npy") in keys)
    if declared > LARGEST:
        raise ValueError(
            f"{path}: {_quoted(keys)} must not be larger than {LARGEST:,} bytes when unpacked, the file declares "
            f"{declared:,}."
        )
    for key in keys:
        try:
            with archive.zip.open(members[key]) as stream:
                version = np.lib.format.read_magic(stream)
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = read[version](stream)
        except Exception as error:  # zipfile and numpy raise many kinds for a damaged archive
            raise _damaged(path, key, error) from error
        size, there = math.prod(shape) * dtype.itemsize, members[key].file_size
        if size > there and not dtype.hasobject:
            raise _damaged(path, key, ValueError(f"its header declares {size:,} bytes, the archive {there:,}"))


def _damaged(path: Path, key: str, error: Exception) -> ValueError:
    return ValueError(f"{path}: {key!r} is damaged ({_reason(error)}); write or fetch the file again.")


def _read(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        array = archive[key]
    except Exception as error:  # as above
        if "allow_pickle" in str(error):
            raise ValueError(
                f"{path}: {key!r} holds pickled objects, which are never read; save it as a plain numeric array."
            ) from error
        raise _damaged(path, key, error) from error
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
    return " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
