"""`Dataset`: three splits of binary rows and what identifies them."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np

from relbo._check import did_you_mean
from relbo.data import checks
from relbo.data.row_files import RowFiles

Rows = np.ndarray | RowFiles
"""The rows of a split: in memory, or on disk."""

SPLITS = ("train", "valid", "test")

Kind = Literal["binary", "gray"]


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test rows, checked, as read-only uint8 matrices of one width.

    Any numeric or boolean matrix of 0s and 1s is accepted for a binary split. A split may also be `RowFiles`, rows
    that stay on disk; they are gone through once, in blocks, unless `recorded_fingerprint` says what they are.

    Raises:
        ValueError: for another shape, an empty split, different widths or values outside the kind's range.

    Example:
        >>> data = relbo.data.load("digits")
        >>> data.kind, data.train.shape, data.split("test").shape
        ('binary', (1297, 64), (250, 64))
    """

    name: str
    kind: Kind
    """`"binary"`: all splits hold 0 and 1. `"gray"`: `train` holds levels 0..255, to be binarised afresh each epoch
    as Bernoulli(level / 255); `valid` and `test` are binary all the same, so that every evaluation sees one set."""
    train: Rows
    valid: Rows
    test: Rows
    image_shape: tuple[int, int] | None = None
    """(height, width) of a row that is a picture, in row-major order."""
    fingerprint: str = dataclasses.field(init=False)
    """SHA-256 (hex) of the kind and of the shapes and bytes of all splits; neither name nor image shape enters."""
    recorded_fingerprint: dataclasses.InitVar[str | None] = dataclasses.field(default=None, kw_only=True)
    """The fingerprint that was taken when rows on disk were written and checked; they are then not read again."""

    def __post_init__(self, recorded_fingerprint: str | None = None) -> None:
        if self.kind not in ("binary", "gray"):
            raise ValueError(f"{self.name}: kind must be 'binary' or 'gray', got {self.kind!r}.")
        for split in SPLITS:
            is_gray, what = self.kind == "gray" and split == "train", f"{self.name}: split {split!r}"
            rows = getattr(self, split)
            if not isinstance(rows, RowFiles):
                rows = np.ascontiguousarray((checks.gray if is_gray else checks.binary)(rows, what)).view()
                rows.flags.writeable = False  # so that the fingerprint stays true
                object.__setattr__(self, split, rows)
                if recorded_fingerprint is not None:
                    raise ValueError(f"{what} must be RowFiles where a fingerprint is given, got an array.")
            elif recorded_fingerprint is None and not is_gray:
                checks.binary_blocks(rows, what)
        splits = {split: self.split(split) for split in SPLITS}
        checks.same_width(splits, self.name)
        width = self.train.shape[1]
        if self.image_shape is not None and self.image_shape[0] * self.image_shape[1] != width:
            raise ValueError(f"{self.name}: image_shape must multiply to {width} pixels, got {self.image_shape}.")
        object.__setattr__(self, "fingerprint", recorded_fingerprint or fingerprint_of(self.kind, splits))

    def split(self, name: str) -> Rows:
        """The rows of `"train"`, `"valid"` or `"test"`."""
        if name not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}{did_you_mean(name, SPLITS)}")
        return getattr(self, name)

    def mean(self) -> np.ndarray:
        """Mean of each pixel over the training split, in [0, 1]: float64 of shape (d,), `relbo.sbn`'s data_mean."""
        largest = 255 if self.kind == "gray" else 1
        return self.column_sums("train") / (largest * len(self.train))

    def column_sums(self, split: str) -> np.ndarray:
        """Sum of each pixel over the rows of a split: int64 of shape (d,)."""
        rows = self.split(split)
        return rows.column_sums() if isinstance(rows, RowFiles) else rows.sum(axis=0, dtype=np.int64)

    def __repr__(self) -> str:
        sizes = "/".join(str(len(self.split(split))) for split in SPLITS)
        return f"Dataset({self.name!r}, {self.kind}, {sizes} x {self.train.shape[1]}, {self.fingerprint[:12]})"


def fingerprint_of(kind: str, splits: Mapping[str, Rows]) -> str:
    """The hash that identifies checked splits; rows on disk are read in blocks."""
    digest = hashlib.sha256(kind.encode())
    for name, rows in splits.items():
        digest.update(f"\n{name} {rows.shape[0]} {rows.shape[1]}\n".encode())
        for block in rows.blocks() if isinstance(rows, RowFiles) else [rows]:
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
