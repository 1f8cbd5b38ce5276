"""One Table 1 of several: cells that were made in other directories or on other machines.

A paired difference needs the bound of every image, which the JSON does not have, so it cannot be made here. It is taken
from a table that has it, and only where both numbers behind it are those of the cells that are kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

from relbo.lab.paper.table1_collect import refuse_mixed_data, spread
from relbo.lab.paper.table1_rows import ARCHITECTURES

SHARED = ("preset", "common", "max_seconds", "rows", "reference", "bounds", "valid_bound")
"""What tables must have in common to be one."""

Place = tuple[int, str, str]
"""Seed, architecture and row of a cell."""


def merge(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cells of all tables; of one that several have, that with most bounds, then steps, then of the first table.

    Args:
        tables: what `table1_collect.read` gave of each.

    Raises:
        ValueError: they are of other settings or other data.
    """
    first = tables[0]
    for table in tables[1:]:
        other = next((field for field in SHARED if table.get(field) != first.get(field)), None)
        if other is not None:
            raise ValueError(f"--from must be tables of the same settings, got {_both(other, first, table)}.")
    found = [{_place(cell): cell for cell in table["cells"]} for table in tables]
    kept = {
        place: max((cells[place] for cells in found if place in cells), key=_worth)
        for place in sorted({place for cells in found for place in cells}, key=_order(first["rows"]))
    }
    _refuse_other_cells(found, kept)
    differences = [_differences(table) for table in tables]

    def paired(place: Place, against: str) -> dict[str, Any] | None:
        other = (*place[:2], against)
        made = {
            bound: number
            for cells, pairs in zip(found, differences, strict=True)
            for bound, number in pairs.get((place, against), {}).items()
            if number is not None
            and all(_number(cells, at, bound) == _number(kept, at, bound) for at in (place, other))
        }
        return {bound: made.get(bound) for bound in first["bounds"]} if made else None

    cells = [{**cell, "difference_to_reference": paired(place, first["reference"])} for place, cell in kept.items()]
    pairs = {(_place(pair), pair["against"]) for table in tables for pair in table["comparisons"]}
    comparisons = [
        {"row": place[2], "against": against, "architecture": place[1], "seed": place[0], "matched": matched}
        for place in kept
        for against in first["rows"]
        if (place, against) in pairs and (matched := paired(place, against)) is not None
    ]
    return {**first, "cells": cells, "comparisons": comparisons, "seeds": spread(cells, first["bounds"])}


def _place(cell: dict[str, Any]) -> Place:
    return cell["seed"], cell["architecture"], cell["row"]


def _order(rows: Sequence[str]) -> Callable[[Place], tuple[int, int, int]]:
    # as `collect` has them
    positions = {name: position for names in (ARCHITECTURES, rows) for position, name in enumerate(names)}

    def key(place: Place) -> tuple[int, int, int]:
        seed, arch, row = place
        return seed, positions[arch], positions[row]

    return key


def _worth(cell: dict[str, Any]) -> tuple[int, int]:
    evaluation, progress = cell["evaluation"], cell["progress"]
    return (len(evaluation["test"]) if evaluation else -1, progress["step"] if progress else -1)


def _number(cells: dict[Place, dict[str, Any]], place: Place, bound: str) -> Any:
    cell = cells.get(place)
    return None if cell is None or cell["evaluation"] is None else cell["evaluation"]["test"].get(bound)


def _differences(table: dict[str, Any]) -> dict[tuple[Place, str], dict[str, Any]]:
    made = {(_place(cell), table["reference"]): cell.get("difference_to_reference") or {} for cell in table["cells"]}
    return made | {(_place(pair), pair["against"]): pair["matched"] for pair in table["comparisons"]}


def _refuse_other_cells(found: Sequence[dict[Place, dict[str, Any]]], kept: dict[Place, dict[str, Any]]) -> None:
    refuse_mixed_data(
        cell["evaluation"] for cells in found for cell in cells.values() if cell["evaluation"] is not None
    )
    for cells in found:
        for place, cell in cells.items():
            mine, its = _identity(cell), _identity(kept[place])
            field = next((field for field in mine.keys() & its.keys() if mine[field] != its[field]), None)
            if field is not None:
                seed, arch, row = place
                raise ValueError(
                    f"--from must be tables of the same settings, got {row}/{arch}, seed {seed}, with "
                    f"{_both(field, mine, its)}."
                )


def _identity(cell: dict[str, Any]) -> dict[str, Any]:
    # of a cell that is not evaluated what the table says of it
    own = {field: cell.get(field) for field in ("lr", "epochs", "layers")}
    return {**own, **(cell["evaluation"] or {}).get("identity", {})}


def _both(field: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    mine, its = one.get(field), other.get(field)
    if isinstance(mine, dict) and isinstance(its, dict):
        inner = next(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))
        return _both(inner, mine, its)
    return f"{field} {mine!r} and {its!r}"
