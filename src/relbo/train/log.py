"""Metrics as JSON lines: one record per line, always whole lines, never a NaN token.

Each line ends in the SHA-256 of its record after that of the line before, the first after the name of the run:

    h_0 = name of the run,     h_n = sha256(h_{n-1} + record_n)

so that a line that was changed, lost, or taken from another run is noticed. A checkpoint remembers (n, h_n): lines up
to it cannot get lost at the end of the file either.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from relbo._disk import naming, write_text
from relbo.train.errors import Damaged
from relbo.train.sealed import SEAL, parsed, sealed, unsealed
from relbo.train.sealed import plain as plain
from relbo.train.sealed import write_json as write_json


class Mark(NamedTuple):
    """How far a log had come: number of records, and the hash of the last."""

    num_records: int
    sha256: str


class MetricsLog:
    """Append-only records, kept in memory and, if a path is given, in a file.

    Args:
        path: the file; None keeps them in memory alone.
        run: name of the run.
        writes: whether the file is ours to write; another process of the run does if not.
    """

    def __init__(self, path: Path | None, run: str = "", *, writes: bool = True) -> None:
        self._path = path
        self._writes = writes
        self._run = run
        self._hashes: list[str] = []
        self.records: list[dict[str, Any]] = []

    def mark(self) -> Mark:
        """How far the log has come; what it marks is on disk."""
        if self._path is not None and self._writes and self._path.exists():
            with naming(self._path), self._path.open("rb") as file:
                os.fsync(file.fileno())
        return Mark(len(self.records), self._tip())

    def rewind(self, mark: Mark | None) -> None:
        """Goes back to a mark, as a run that goes on from there will record the rest again; the file stays."""
        assert self._path is not None
        lines = _read(self._path, self._run, mark)[: 0 if mark is None else mark.num_records]
        self.records = [line.record for line in lines]
        self._hashes = [line.sha256 for line in lines]

    def rewrite(self) -> None:
        """Makes the file, if there is one, hold the records that are in memory."""
        if self._path is not None and self._writes and self._path.exists():
            lines = zip(self.records, self._hashes, strict=True)
            write_text(self._path, "".join(_text({**record, SEAL: sha256}) for record, sha256 in lines))

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record."""
        record = plain(record)
        line = sealed(record, self._tip())
        if self._path is not None and self._writes:
            with naming(self._path), self._path.open("a") as file:
                file.write(_text(line))
        self.records.append(record)
        self._hashes.append(line[SEAL])

    def _tip(self) -> str:
        return self._hashes[-1] if self._hashes else self._run


class _Line(NamedTuple):
    record: dict[str, Any]
    sha256: str


def read_metrics(path: Path, run: str, mark: Mark | None = None) -> list[dict[str, Any]]:
    """All whole records of a file, if there is one; a last line that a kill cut short is left out.

    Args:
        path: the file.
        run: name of the run.
        mark: how far the log had come when the checkpoint was made that is read beside it.

    Raises:
        Damaged: a line is not what was written, or lines up to the mark are missing.
    """
    return [line.record for line in _read(path, run, mark)]


def _read(path: Path, run: str, mark: Mark | None) -> list[_Line]:
    lines: list[_Line] = []
    texts = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    tip = run
    for number, text in enumerate(texts[:-1], start=1):  # what follows the last line's end was cut short
        what = f"{path}, line {number}"
        value = parsed(text, f"{what}: expected a JSON record")
        record = unsealed(value, what, before=tip)
        tip = value[SEAL]
        lines.append(_Line(record, tip))
    if mark is not None:
        got = lines[mark.num_records - 1].sha256 if 0 < mark.num_records <= len(lines) else run
        if got != mark.sha256:
            raise Damaged(
                f"{path} is damaged: expected the {mark.num_records} records that the checkpoint counts, got "
                f"{len(lines)}."
            )
    return lines


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False) + "\n"
