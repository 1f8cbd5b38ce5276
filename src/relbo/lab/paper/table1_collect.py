"""Table 1 as it is at this moment: all cells, their paired differences, seeds and curves, as one JSON value.

Nothing is trained or locked, so it may be collected while other processes train. The page and the figures are drawn
from this value alone (`table1_page`, `table1_figures`).
"""

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import relbo
from relbo import bounds as bound_names
from relbo.lab.paper import table1_values
from relbo.lab.paper.table1 import CELL, Cell, cell_of, cells
from relbo.lab.paper.table1_presets import Preset
from relbo.lab.paper.table1_rows import ARCHITECTURES, REFERENCE
from relbo.train.directory import METRICS, RUN, read_description
from relbo.train.log import plain, read_metrics

CURVE = ("epoch", "step", "num_proposals", "seconds", "cpu_seconds", "valid_bound")
FIELDS = ("preset", "note", "rows", "reference", "bounds", "valid_bound", "cells", "comparisons", "seeds")
CELL_FIELDS = ("row", "label", "architecture", "seed", "layers", "published", "evaluation", "curve", "progress")


def collect(out: Path, preset: Preset) -> dict[str, Any]:
    """All cells of the table as they are now, with the published numbers; ready for JSON.

    The cells that the preset plans are all there, evaluated or not; of others those that were begun.

    Raises:
        ValueError: a cell has other settings than the preset, or is damaged.
    """
    planned = {cell.path for cell in cells(out, preset)}
    everything = [
        cell_of(out, preset, row, arch, seed)
        for seed in sorted({cell.seed for cell in cells(out, preset)} | set(seeds_in(out)))
        for arch in ARCHITECTURES
        for row in preset.rows
    ]
    found = [cell for cell in everything if cell.path in planned or (cell.path / CELL).exists()]
    results = [cell.results() for cell in found]
    refuse_mixed_data(evaluation for evaluation, _ in results if evaluation is not None)
    values = {(cell.row.name, cell.arch, cell.seed): numbers for cell, (_, numbers) in zip(found, results, strict=True)}
    names = [str(bound_names.parse(bound)) for bound in preset.bounds]

    def paired(cell: Cell, other: str) -> dict[str, Any] | None:
        mine, its = values[cell.row.name, cell.arch, cell.seed], values.get((other, cell.arch, cell.seed))
        if not mine or not its or cell.row.name == other:
            return None
        return {name: table1_values.difference(mine, its, name) for name in names}

    entries = [
        {**_entry(cell), "evaluation": evaluation, "difference_to_reference": paired(cell, REFERENCE)}
        for cell, (evaluation, _) in zip(found, results, strict=True)
    ]
    table = {
        "relbo_version": relbo.__version__,
        "preset": preset.name,
        "note": preset.note(),
        "is_comparable_with_published": preset.is_comparable(),
        "common": dataclasses.asdict(preset.common),
        "max_seconds": preset.max_seconds,
        "rows": [row.name for row in preset.rows],
        "reference": REFERENCE,
        "bounds": names,
        "valid_bound": preset.common.valid_bound,
        "cells": entries,
        "comparisons": [
            {
                "row": cell.row.name,
                "against": other.name,
                "architecture": cell.arch,
                "seed": cell.seed,
                "matched": matched,
            }
            for cell in found
            if cell.row.estimator == "vrs"
            for other in preset.rows
            if other.estimator != "vrs" and (matched := paired(cell, other.name)) is not None
        ],
        "seeds": spread(entries, names),
    }
    return plain(table)


def refuse_mixed_data(evaluations: Iterable[dict[str, Any]]) -> None:
    """Raises if cells were made from different contents of the data."""
    if len({evaluation["data_fingerprint"] for evaluation in evaluations}) > 1:
        raise ValueError(
            "expected all cells to be made from the same data, got some from other contents under the same name: make "
            "those again in another directory."
        )


def seeds_in(out: Path) -> list[int]:
    """Seeds that have a folder of their own, that is all but 0."""
    folders = out.iterdir() if out.is_dir() else ()
    matches = (re.fullmatch(r"seed-([1-9]\d{0,8})", folder.name) for folder in folders if folder.is_dir())
    return sorted(int(match[1]) for match in matches if match is not None)


def _entry(cell: Cell) -> dict[str, Any]:
    config = cell.config()
    records = []
    if (cell.path / RUN).exists():
        records = read_metrics(cell.path / METRICS, read_description(cell.path).name)
    last = records[-1] if records else None
    return {
        "row": cell.row.name,
        "label": cell.row.label,
        "architecture": cell.arch,
        "seed": cell.seed,
        "layers": list(config.layers),
        "lr": config.lr,
        "epochs": config.epochs,
        "published": [dataclasses.asdict(number) for number in cell.row.published.get(cell.arch, ())],
        "progress": None if last is None else {name: last.get(name) for name in CURVE[:-1]},
        "curve": [
            {name: record.get(name) for name in CURVE} for record in records if record.get("valid_bound") is not None
        ],
    }


def spread(entries: Iterable[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds, of rows that have more than one."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["evaluation"] is not None:
            rows.setdefault((entry["row"], entry["architecture"]), []).append(entry)

    def over(numbers: Iterable[float | None]) -> dict[str, Any] | None:
        found = [number for number in numbers if number is not None]
        if len(found) < 2:
            return None
        return {"mean": statistics.fmean(found), "sd": statistics.stdev(found), "num_seeds": len(found)}

    def of_bound(entry: dict[str, Any], field: str, name: str) -> float | None:
        found = (entry["evaluation"]["test"] if field == "test" else entry["difference_to_reference"]) or {}
        number = (found.get(name) or {}).get("nll")
        return None if number is None or not math.isfinite(number) else number

    return [
        {
            "row": row,
            "architecture": arch,
            "seeds": [entry["seed"] for entry in group],
            "test": {name: over(of_bound(entry, "test", name) for entry in group) for name in names},
            "difference_to_reference": {name: over(of_bound(entry, "pair", name) for entry in group) for name in names},
            "cpu_seconds": over(entry["evaluation"].get("cpu_seconds") for entry in group),
        }
        for (row, arch), group in rows.items()
        if len(group) > 1
    ]


def read(file: Path) -> dict[str, Any]:
    """Reads what `collect` gave from a table1.json.

    Raises:
        ValueError: the file is something else, or of an earlier version.
    """
    if not file.is_file():
        raise ValueError(f"--from must be a table1.json of `relbo reproduce table1`, got {file}, which is no file.")
    try:
        found = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--from must be a table1.json of `relbo reproduce table1`, got {file}: {error}.") from error
    listed = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(listed, list) or not all(isinstance(cell, dict) for cell in listed):
        raise ValueError(f"--from must be a table1.json of `relbo reproduce table1`, got {file} without cells.")
    lacking = [field for field in FIELDS if field not in found]
    lacking += [field for cell in listed for field in CELL_FIELDS if field not in cell]
    if lacking:
        raise ValueError(
            f"--from must be a table1.json of this version of `relbo reproduce table1`, got {file} without "
            f"{lacking[0]!r}: collect it again with --collect."
        )
    return found
