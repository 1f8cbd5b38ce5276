"""Damage to files: what disks, copies and hands do to them."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

DEEP = b"[" * 50_000 + b"]" * 50_000


class Damage(NamedTuple):
    """One thing done to the bytes of a file."""

    kind: str
    place: float
    """Where, as a share of the length."""
    bit: int
    noise: bytes

    def of(self, content: bytes) -> bytes | None:
        """The damaged bytes; None if the file is gone."""
        at = min(int(self.place * len(content)), max(len(content) - 1, 0))
        if self.kind == "flip":
            return content[:at] + bytes([content[at] ^ 1 << self.bit]) + content[at + 1 :] if content else b"\1"
        made = {
            "truncate": content[:at],
            "insert": content[:at] + self.noise + content[at:],
            "overwrite": content[:at] + self.noise + content[at + len(self.noise) :],
            "garble": self.noise,
            "empty": b"",
            "repeat": content + content,
            "deep": DEEP,
            "zeros": bytes(len(content)),
            "delete": None,
        }
        return made[self.kind]


PLACES = st.integers(0, 2**32 - 1).map(lambda number: number * 2654435761 % 2**32 / 2**32)
"""Shares in [0, 1), spread evenly: Hypothesis likes small and round numbers, and these are far from each other."""
DAMAGES = st.builds(
    Damage,
    st.sampled_from(
        ["flip", "truncate", "insert", "overwrite", "garble", "empty", "repeat", "deep", "zeros", "delete"]
    ),
    PLACES,
    st.integers(0, 7),
    st.binary(min_size=1, max_size=40),
)
FLIPS = st.builds(Damage, st.just("flip"), PLACES, st.integers(0, 7), st.just(b""))

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**30, -(10**9), 1e30, -1.5, 0.5, "", "x", "fixed:nan", [], {}, [[]], {"a": []}]),
    st.text(max_size=5),
)
"""Values that a JSON file could hold where another is expected."""


def files_of(run: Path) -> list[Path]:
    """All files of a run but the lock, in a fixed order of their places."""
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")


def chosen(run: Path, share: float, *, by_size: bool) -> Path:
    """A file of a run: one of all, or the one that a byte of all bytes is in."""
    files = files_of(run)
    if not by_size:
        return files[int(share * len(files))]
    ends = np.cumsum([path.stat().st_size for path in files])
    return files[int(np.searchsorted(ends, share * ends[-1], side="right"))]


def npz(arrays: dict[str, Any], *, compressed: bool) -> bytes:
    """The bytes of an .npz file."""
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def with_header(splits: dict[str, np.ndarray], header: bytes) -> bytes:
    """An .npz file whose arrays have another header, in an archive that is whole."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, rows in splits.items():
            text = header.ljust(118) + b"\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + rows.tobytes())
    return stream.getvalue()


def bomb(num_megabytes: int) -> bytes:
    """A small archive that declares, and holds, many zeros."""
    stream = io.BytesIO()
    block = bytes(1 << 20)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("train.npy", "w", force_zip64=True) as member:
            header = str({"descr": "|u1", "fortran_order": False, "shape": (num_megabytes, 1 << 20)}).encode()
            member.write(b"\x93NUMPY\1\0" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n")
            for _ in range(num_megabytes):
                member.write(block)
        for name in ("valid", "test"):
            archive.writestr(f"{name}.npy", b"")
    return stream.getvalue()


HEADERS = st.sampled_from(
    [
        b"(" * 9_000,
        b"{",
        b"{}",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (24, 6)}",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (10**12, 6)}",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999, 6)}",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 6)}",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (24, 6)}",
        b"{'descr': '<U9', 'fortran_order': False, 'shape': (24, 6)}",
        b"{'descr': [('a', '|u1')], 'fortran_order': True, 'shape': (24, 6)}",
        b"{'descr': '<c16', 'fortran_order': 3, 'shape': 'x'}",
        b"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (3, 6)}",
    ]
)


def resealed(path: Path, change: Any) -> None:
    """Changes a sealed JSON file and forges its seal, so that the change is read."""
    from relbo.train.sealed import read_sealed, write_sealed

    value = read_sealed(path, "a file of a run")
    change(value)
    write_sealed(path, json.loads(json.dumps(value)))
