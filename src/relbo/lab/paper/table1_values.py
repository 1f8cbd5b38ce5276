"""The bound of every image of a cell, kept beside its evaluation: what paired differences are made of.

With b_i the bound of image i under one cell and c_i that under another, evaluated with the same random numbers, the
difference of their negative log likelihoods is mean_i (c_i - b_i). What makes an image hard cancels, so its standard
error over images is far smaller than those of the two means.
"""

import dataclasses
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relbo._disk import replacing
from relbo.evaluate import Estimate

FILE = "values.npz"

Estimates = Mapping[str, Mapping[str, Estimate]]
"""By split, then by bound."""
Values = dict[str, np.ndarray]
"""Under `SPLIT/BOUND`, (repeats, n) bounds in nats."""


def save(path: Path, estimates: Estimates) -> str:
    """Writes all values; returns the SHA-256 (hex) of the file."""
    arrays: dict[str, Any] = {
        f"{split}/{name}": estimate.values for split, bounds in estimates.items() for name, estimate in bounds.items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with replacing(path) as stream:
        stream.write(buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def load(path: Path, sha256: str) -> Values:
    """Reads all values.

    Raises:
        ValueError: the file is missing, or not the one that was written.
    """
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(
            f"{path} is damaged or missing: expected the file of SHA-256 {sha256[:12]} that evaluation.json names. "
            "Remove evaluation.json, and the cell is evaluated again."
        )
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
            for name in archive.namelist()
        }


def estimates(values: Values, evaluation: Mapping[str, Any]) -> dict[str, dict[str, Estimate]]:
    """What `save` was given, from its values and the summaries in `evaluation.json`."""
    found: dict[str, dict[str, Estimate]] = {}
    for place, numbers in values.items():
        split, _, name = place.partition("/")
        one = Estimate(name, numbers)
        extra = {field: value for field, value in evaluation[split][name].items() if field not in one.summary()}
        found.setdefault(split, {})[name] = dataclasses.replace(one, extra=extra)
    return found


def difference(values: Values, others: Values, bound: str) -> dict[str, Any] | None:
    """Test NLL of a cell minus that of another, image by image; negative is better than the other.

    Args:
        values: of the cell.
        others: of the cell that it is compared with.
        bound: the bound's name.

    Returns:
        The mean difference with its standard error over images and its Monte-Carlo error, which is part of the former;
        None where one of the two was not evaluated, or with another number of repeats.
    """
    name = f"test/{bound}"
    if name not in values or name not in others or values[name].shape != others[name].shape:
        return None
    paired = Estimate(bound, others[name] - values[name])
    return {
        "nll": paired.mean,
        "standard_error": paired.standard_error,
        "monte_carlo_error": paired.monte_carlo_error,
    }
