"""What an array of observations must look like; every refusal names the array, the expectation and the finding."""

from collections.abc import Mapping

import numpy as np

from relbo.data.row_files import RowFiles


def matrix(array: np.ndarray, what: str) -> np.ndarray:
    """Returns `array` if it is a non-empty numeric matrix, and raises `ValueError` otherwise.

    Args:
        array: the candidate.
        what: its name in messages, such as `"mine.npz: split 'train'"`.
    """
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what} must hold numbers or booleans, got dtype {array.dtype}.")
    if array.ndim != 2:
        hint = f"; reshape it to ({len(array)}, -1)" if array.ndim > 2 else ""
        raise ValueError(f"{what} must have shape (rows, pixels), got {array.shape}{hint}.")
    if array.size == 0:
        raise ValueError(f"{what} is empty: expected at least one row and one pixel, got shape {array.shape}.")
    return array


def binary(array: np.ndarray, what: str) -> np.ndarray:
    """A copy of the matrix as uint8 if all its values are 0 or 1; the first other value is named with its place."""
    array = matrix(array, what)
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"{what} must hold only 0 and 1, got NaN at {_first(np.isnan(array))}.")
    bad = (array != 0) & (array != 1)
    if bad.any():
        value = array[np.unravel_index(np.argmax(bad), bad.shape)]
        raise ValueError(f"{what} must hold only 0 and 1, got {value} at {_first(bad)}.")
    return array.astype(np.uint8)


def gray(array: np.ndarray, what: str) -> np.ndarray:
    """A copy of the matrix if it holds gray levels 0..255 as uint8."""
    array = matrix(array, what)
    if array.dtype != np.uint8:
        raise ValueError(f"{what} must hold gray levels 0..255 as uint8, got dtype {array.dtype}.")
    return array.copy()


def binary_blocks(rows: RowFiles, what: str) -> None:
    """Refuses rows on disk that are not all 0 or 1."""
    padding(rows, what)
    start = 0
    for block in rows.blocks() if not rows.packed else ():  # a bit is 0 or 1
        if block.max() > 1:
            row, column = np.argwhere(block > 1)[0]
            raise ValueError(
                f"{what} must hold only 0 and 1, got {block[row, column]} at row {start + row}, column {column} "
                "(counted from 0)."
            )
        start += len(block)


def padding(rows: RowFiles, what: str) -> None:
    """Refuses packed rows on disk with ones in the bits after the last pixel."""
    spare = -rows.shape[1] % 8
    if rows.packed and spare:
        for block in rows.stored_blocks():
            if (block[:, -1] & ((1 << spare) - 1)).any():
                raise ValueError(
                    f"{what} must have zeros in the bits after pixel {rows.shape[1]} of a row, got ones; check the "
                    "width."
                )


def same_width(splits: Mapping[str, np.ndarray | RowFiles], what: str) -> None:
    """Refuses splits whose rows differ in length."""
    widths = {name: split.shape[1] for name, split in splits.items()}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise ValueError(f"{what}: all splits must have the same number of pixels per row, got {found}.")


def _first(bad: np.ndarray) -> str:
    row, column = np.unravel_index(np.argmax(bad), bad.shape)
    return f"row {row}, column {column} (counted from 0)"
