"""Makes `src/relbo/data/digits.npz` from scikit-learn's copy of the UCI digits.

Run with scikit-learn installed: `python tools/make_digits.py`. The result is the same bit for bit on every machine,
and the tests compare it with the fingerprint in `relbo.data.sources`.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from relbo.data import files, fixed
from relbo.data.sources import DIGITS

THRESHOLD = 7
"""Ink where more than this many of the 16 pixels under an 8x8 cell were ink."""


def main() -> None:
    """Thresholds, shuffles, splits, packs."""
    levels = load_digits().data
    images = (levels > THRESHOLD).astype(np.uint8)[fixed.permutation(len(levels), (0,))]
    train, valid, test = np.split(images, np.cumsum(DIGITS.sizes)[:2])
    path = Path(__file__).parents[1] / "src" / "relbo" / "data" / DIGITS.file
    files.write_npz(path, files.pack({"train": train, "valid": valid, "test": test}))
    print(f"wrote {path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
