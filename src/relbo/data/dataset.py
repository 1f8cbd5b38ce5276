"""`Dataset`: three splits of binary rows and what identifies them."""

import dataclasses
import hashlib
from typing import Literal

import numpy as np

from relbo.data import checks

SPLITS = ("train", "valid", "test")

Kind = Literal["binary", "gray"]


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training, validation and test rows, checked, as read-only uint8 matrices of one width.

    Any numeric or boolean matrix of 0s and 1s is accepted for a binary split.

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
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    image_shape: tuple[int, int] | None = None
    """(height, width) of a row that is a picture, in row-major order."""
    fingerprint: str = dataclasses.field(init=False)
    """SHA-256 (hex) of the kind and of the shapes and bytes of all splits; neither name nor image shape enters."""

    def __post_init__(self) -> None:
        if self.kind not in ("binary", "gray"):
            raise ValueError(f"{self.name}: kind must be 'binary' or 'gray', got {self.kind!r}.")
        for split in SPLITS:
            check = checks.gray if self.kind == "gray" and split == "train" else checks.binary
            rows = np.ascontiguousarray(check(getattr(self, split), f"{self.name}: split {split!r}")).view()
            rows.flags.writeable = False  # so that the fingerprint stays true
            object.__setattr__(self, split, rows)
        splits = {split: self.split(split) for split in SPLITS}
        checks.same_width(splits, self.name)
        width = self.train.shape[1]
        if self.image_shape is not None and self.image_shape[0] * self.image_shape[1] != width:
            raise ValueError(f"{self.name}: image_shape must multiply to {width} pixels, got {self.image_shape}.")
        object.__setattr__(self, "fingerprint", _fingerprint(self.kind, splits))

    def split(self, name: str) -> np.ndarray:
        """The rows of `"train"`, `"valid"` or `"test"`."""
        if name not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}.")
        return getattr(self, name)

    def mean(self) -> np.ndarray:
        """Mean of each pixel over the training split, in [0, 1]: float64 of shape (d,), `relbo.sbn`'s data_mean."""
        largest = 255 if self.kind == "gray" else 1
        return self.train.sum(axis=0, dtype=np.int64) / (largest * len(self.train))

    def __repr__(self) -> str:
        sizes = "/".join(str(len(self.split(split))) for split in SPLITS)
        return f"Dataset({self.name!r}, {self.kind}, {sizes} x {self.train.shape[1]}, {self.fingerprint[:12]})"


def _fingerprint(kind: str, splits: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(kind.encode())
    for name, rows in splits.items():
        digest.update(f"\n{name} {rows.shape[0]} {rows.shape[1]}\n".encode())
        digest.update(rows.data)
    return digest.hexdigest()
