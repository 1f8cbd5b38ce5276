"""JSON with a seal: the SHA-256 of its own content, so that a damaged file is noticed whatever the damage.

The hash is of the content, not of the layout: of JSON in its canonical form (sorted keys, no spaces), of an array by
its type, shape and values. Where and how the bytes lie on disk, or on how many devices, does not enter.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from relbo._disk import write_text
from relbo.train.errors import Damaged, first_line

SEAL = "sha256"
LARGEST = 1 << 28
"""Bytes of JSON that are read at once; what a run writes is far smaller."""


def plain(value: Any) -> Any:
    """A JSON value: numbers that JSON cannot write become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_digest(value: Any, before: str = "") -> str:
    """SHA-256 (hex) of JSON in canonical form, after another text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256((before + text).encode()).hexdigest()


def array_digest(array: np.ndarray, parts: int = 1) -> str:
    """SHA-256 (hex) of an array's type, shape and values; of the hashes of its `parts`, where it can be cut so."""
    size = array.shape[0] // parts if array.ndim and array.shape[0] % parts == 0 else 0
    if parts == 1 or size == 0:
        return _array_hash(array, [np.ascontiguousarray(array).tobytes()])
    return digest_of_parts(array, b"".join(values_digest(array[i * size : (i + 1) * size]) for i in range(parts)))


def values_digest(values: np.ndarray) -> bytes:
    """SHA-256 of the values of a part of an array."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).digest()


def digest_of_parts(array: Any, digests: bytes) -> str:
    """SHA-256 (hex) of an array's type and shape, and of the digests of its parts."""
    return _array_hash(array, [b"parts", digests])


def _array_hash(array: Any, texts: list[bytes]) -> str:
    digest = hashlib.sha256(f"{array.dtype}{list(array.shape)}".encode())
    for text in texts:
        digest.update(text)
    return digest.hexdigest()


def sealed(value: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The same with its seal, ready for JSON."""
    value = plain(value)
    return {**value, SEAL: json_digest(value, before)}


def unsealed(value: Any, what: str, before: str = "") -> dict[str, Any]:
    """The value without its seal.

    Args:
        value: what was read.
        what: its name in messages.
        before: the text that was hashed before it.

    Raises:
        Damaged: the seal is missing or broken.
    """
    if not isinstance(value, dict) or SEAL not in value:
        raise Damaged(
            f"{what} has no content hash: it is damaged, not relbo's, or of an earlier version that wrote none."
        )
    content = {key: item for key, item in value.items() if key != SEAL}
    try:
        found = json_digest(content, before)
    except ValueError:  # NaN or infinity, which are never written
        found = None
    if value[SEAL] != found:
        raise Damaged(f"{what} is damaged or was changed: its content does not have the hash that it carries.")
    return content


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object with its seal, in one piece."""
    write_text(path, json.dumps(sealed(value), indent=2) + "\n")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file without a seal, in one piece: results that others read."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_sealed(path: Path, expected: str) -> dict[str, Any]:
    """Reads a JSON object and breaks its seal.

    Args:
        path: the file.
        expected: what it should hold, for messages, such as "the configuration of a run".

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it is not JSON, or not what was written.
    """
    if not path.is_file():
        raise FileNotFoundError(f"expected the file {path} with {expected}, which is not there.")
    if (size := path.stat().st_size) > LARGEST:
        raise Damaged(f"{path}: expected {expected}, got {size:,} bytes.")
    return unsealed(parsed(path.read_bytes(), f"{path}: expected {expected}"), str(path))


def parsed(content: bytes, expected: str) -> Any:
    """JSON from bytes; whatever is not JSON, or nested too deeply, is one sentence."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{expected}, got {first_line(error)}.") from error
