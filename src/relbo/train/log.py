"""Metrics as JSON lines: one record per line, always whole lines, never a NaN token."""

import json
import math
import os
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """A JSON value: numbers that JSON cannot write become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file in one piece: readers see the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
    os.replace(temporary, path)


class MetricsLog:
    """Append-only records, kept in memory and, if a path is given, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.records: list[dict[str, Any]] = []

    def rewind(self, step: int) -> None:
        """Keeps what was recorded up to `step`, as a run that goes on from there will record the rest again."""
        if self._path is None or not self._path.exists():
            return
        self.records = [record for record in read_metrics(self._path) if record["step"] <= step]
        temporary = self._path.with_name(self._path.name + ".tmp")
        temporary.write_text("".join(_line(record) for record in self.records))
        os.replace(temporary, self._path)

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record; it is on disk when this returns."""
        record = plain(record)
        self.records.append(record)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(_line(record))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole records of a file, if there is one; a last line that a kill cut short is left out."""
    records: list[dict[str, Any]] = []
    if not path.exists():
        return records
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: expected a JSON record, got {line[:60]!r}.") from error
    return records


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
