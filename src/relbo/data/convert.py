"""The published formats, turned into the arrays of our `.npz` files."""

from collections.abc import Mapping

import numpy as np

from relbo.data import files
from relbo.data.dataset import SPLITS

Arrays = dict[str, np.ndarray]


def from_amat(contents: Mapping[str, bytes]) -> Arrays:
    """Larochelle's text files, one image a line, to bit-packed splits; `contents` goes by split."""
    return files.pack({split: parse_amat(contents[split], f"{split} .amat") for split in SPLITS})


def from_idx(contents: Mapping[str, bytes]) -> Arrays:
    """The four idx files of MNIST; `contents` goes by the name of the array that each becomes."""
    images = {key: parse_idx(contents[key], key) for key in ("train_images", "test_images")}
    labels = {key: parse_idx(contents[key], key) for key in ("train_labels", "test_labels")}
    return {key: array.reshape(len(array), -1) for key, array in images.items()} | labels


def parse_amat(content: bytes, what: str) -> np.ndarray:
    r"""Rows of `0 1 ... 0\n`: exactly one character a pixel and one between pixels."""
    line = content.find(b"\n") + 1
    if line == 0 or len(content) % line:
        raise ValueError(f"{what} must be lines of equal length, got {len(content)} bytes, the first line {line} long.")
    table = np.frombuffer(content, np.uint8).reshape(-1, line)
    digits, gaps = table[:, 0::2], table[:, 1::2]
    if line % 2 or (gaps[:, :-1] != ord(" ")).any() or (gaps[:, -1] != ord("\n")).any() or (digits >> 1 != 24).any():
        raise ValueError(f"{what} must hold 0s and 1s separated by single spaces, got other characters.")
    return digits & 1  # the characters 0 and 1 are bytes 48 and 49


def parse_idx(content: bytes, what: str) -> np.ndarray:
    """An idx file of unsigned bytes: 0, 0, type 8, number of axes, each length as big-endian int32, the data."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{what} must be an idx file of unsigned bytes, got first bytes {content[:4]!r}.")
    data = 4 + 4 * content[3]
    if len(content) < data:
        raise ValueError(f"{what} must be an idx file with {content[3]} axes, got only {len(content)} bytes.")
    shape = [int(length) for length in np.frombuffer(content, ">u4", content[3], 4)]
    if len(content) - data != int(np.prod(shape)):
        raise ValueError(f"{what} must hold {shape} bytes after its header, got {len(content) - data}.")
    return np.frombuffer(content, np.uint8, offset=data).reshape(shape)
