"""Table 1: every method on three sigmoid belief networks, by one trainer, beside the published numbers.

A cell is a method on an architecture, and a run directory of `relbo train` at OUT/ROW/ARCHITECTURE with its
`evaluation.json`. All cells share data, initialisation, optimiser, number of epochs (or of seconds) and evaluation. A
stopped reproduction goes on where it was: cells that are finished are not touched, others go on from their last
checkpoint.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

import relbo
from relbo.compare import rejection_of
from relbo.evaluate import BoundName, evaluate
from relbo.experiments.table1_rows import ARCHITECTURES, ROWS, Row
from relbo.train.config import RunConfig
from relbo.train.errors import Interrupted, TrainingError, runtime_message
from relbo.train.fit import refuse_other_run
from relbo.train.log import write_json
from relbo.train.runs import Run, open_run, train_run

MNIST = "binarized-mnist"
BOUNDS = ("elbo", "is:25", "rs:25")
LONG = "is:5000"
"""The bound that is all but the likelihood."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much a reproduction spends."""

    name: str
    about: str
    common: RunConfig
    """What all cells share; a row sets the estimator, an architecture the layers."""
    width: int = 200
    """Units of each layer."""
    bounds: tuple[str, ...] = BOUNDS
    repeats: int = 2
    """Independent evaluations."""
    max_seconds: float | None = None
    """Of training, for each cell; compilation and validation do not count."""
    checkpoint_every: int | None = None

    def is_comparable(self) -> bool:
        """Whether the networks and the data are those of the published numbers."""
        return self.common.data == MNIST and self.width == 200

    def note(self) -> str:
        """What the numbers are."""
        mine = f"Ours: {self.common.data}, {self.width} units a layer; {self.about}."
        if self.is_comparable():
            return f"{mine} Published: {MNIST}, 200 units a layer."
        return (
            f"{mine} Published: {MNIST}, 200 units a layer. The two are NOT COMPARABLE: other images, other networks. "
            "The published numbers stand here for their metrics."
        )


PRESETS = {
    "smoke": Preset(
        "smoke",
        "10 epochs: enough to see that everything runs, too few to rank methods",
        RunConfig(lr=3e-3, epochs=10, refresh_epochs=2.0, valid_every=5, valid_bound="is:25"),
        width=50,
        repeats=1,
        checkpoint_every=125,
    ),
    "budget": Preset(
        "budget",
        "the same training seconds for every cell",
        RunConfig(data=MNIST, lr=1e-3, epochs=5_000, refresh_epochs=1.0, valid_bound="is:25"),
        repeats=1,  # RS-25 on 10,000 images takes minutes
        max_seconds=300.0,
    ),
    "paper": Preset(
        "paper",
        "the paper's protocol: batches of 50, Adam at 3e-4, 5,000,000 steps, thresholds every 100,000 steps",
        RunConfig(data=MNIST, lr=3e-4, epochs=5_000, refresh_epochs=100.0, valid_every=10, valid_bound="is:25"),
        bounds=(*BOUNDS, LONG),
        checkpoint_every=10_000,
    ),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method on one architecture, in its run directory."""

    row: Row
    arch: str
    path: Path
    preset: Preset

    @property
    def label(self) -> str:
        """Its short name."""
        return f"{self.row.name}/{self.arch}"

    def config(self) -> RunConfig:
        """What is trained."""
        layers = (self.preset.width,) * (1 + self.arch.count("-"))
        return dataclasses.replace(self.preset.common, layers=layers, estimator=self.row.estimator, **self.row.settings)

    def asked(self) -> dict[str, Any]:
        """What a resumed reproduction may extend."""
        return {"epochs": self.config().epochs, "max_seconds": self.preset.max_seconds, "repeats": self.preset.repeats}

    def finished(self) -> dict[str, Any] | None:
        """The evaluation of the cell, if it is all that is asked for.

        Raises:
            ValueError: it was made with other settings, or with a longer training time than is asked for.
        """
        file = self.path / "evaluation.json"
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text())
            done, identity, bounds = found["asked"], found["identity"], found["test"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}): remove it, and the cell is evaluated again.") from error
        refuse_other_run(self.path, identity, self.config().identity())
        limit = self.preset.max_seconds
        if limit is not None and (done["max_seconds"] or math.inf) > limit:
            raise ValueError(
                f"{self.path} has been trained with a longer time limit than the {limit / 60:g} minutes asked for: "
                "choose another --out."
            )
        return found if done == self.asked() and set(self.preset.bounds) <= bounds.keys() else None


def cells(out: Path, preset: Preset, only: Sequence[str] = (), architectures: Sequence[str] = ()) -> list[Cell]:
    """The chosen cells, all by default; an architecture at a time, so that its evaluation is compiled once."""
    for what, asked, known in (("a row", only, ROWS), ("an architecture", architectures, ARCHITECTURES)):
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise ValueError(f"{what} must be one of {', '.join(known)}; got {unknown[0]!r}.")
    return [
        Cell(row, arch, out / row.name / arch, preset)
        for arch in ARCHITECTURES
        if arch in (architectures or ARCHITECTURES)
        for row in ROWS.values()
        if row.name in (only or ROWS)
    ]


def run(
    chosen: Sequence[Cell],
    *,
    data_dir: Path | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    progress: bool = False,
) -> dict[str, str]:
    """Trains and evaluates the cells that are not finished.

    Args:
        chosen: what `cells` gives.
        data_dir: where the data are.
        on_stage: told what begins and what was found.
        progress: show progress bars.

    Returns:
        For each cell that failed, its label and the reason; the others are finished.

    Raises:
        ValueError: a directory holds a cell of other settings.
        Interrupted: Ctrl-C; what was trained is saved.
    """
    waiting = [cell for cell in chosen if cell.finished() is None]
    if len(waiting) < len(chosen):
        on_stage(f"{len(chosen) - len(waiting)} of {len(chosen)} cells are finished already")
    failures = {}
    for number, cell in enumerate(waiting, start=1):
        on_stage(f"cell {number} of {len(waiting)}: {cell.label}")
        try:
            found = make(cell, data_dir=data_dir, progress=progress)
        except (TrainingError, eqx.EquinoxRuntimeError) as error:  # the latter when the evaluation rejects too much
            failures[cell.label] = runtime_message(error)
            on_stage(f"{cell.label} failed: {failures[cell.label]}")
            continue
        on_stage("test NLL " + ", ".join(f"{name} {bound['nll']:.2f}" for name, bound in found["test"].items()))
    return failures


def make(cell: Cell, *, data_dir: Path | None = None, progress: bool = False) -> dict[str, Any]:
    """Trains, or goes on training, and evaluates one cell."""
    result = train_run(
        cell.config(),
        cell.path,
        data_dir=data_dir,
        resume=True,
        checkpoint_every=cell.preset.checkpoint_every,
        max_seconds=cell.preset.max_seconds,
        progress=progress,
    )
    if result.stopped == "interrupted":
        raise Interrupted
    opened = open_run(cell.path, data_dir=data_dir)
    found = {
        "row": cell.row.name,
        "architecture": cell.arch,
        "identity": cell.config().identity(),
        "asked": cell.asked(),
        "step": opened.step,
        "seconds": opened.record["seconds"],
        "num_proposals": opened.record["num_proposals"],
        "proposals_per_datapoint": opened.record["num_proposals"] / max(opened.step * opened.config.batch_size, 1),
        **evaluations(opened, cell.preset),
    }
    write_json(cell.path / "evaluation.json", found)
    return found


def evaluations(run: Run, preset: Preset) -> dict[str, Any]:
    """All bounds on the test images, and the ELBO on as many training images, if these have fixed values."""
    threshold, acceptance = rejection_of(run)

    def bounds(rows: Any, names: Sequence[str]) -> dict[str, Any]:
        found = evaluate(
            run.pair,
            rows,
            names,
            key=jax.random.key(0),
            repeats=preset.repeats,
            threshold=threshold,
            acceptance=acceptance,
        )
        return {name: estimate.summary() for name, estimate in found.items()}

    fixed = run.data.kind == "binary"
    return {
        "threshold": str(threshold),
        "test": bounds(run.data.test, preset.bounds),
        "train": bounds(run.data.train[: len(run.data.test)], ["elbo"]) if fixed else {},
    }


def collect(out: Path, preset: Preset) -> dict[str, Any]:
    """All cells of the table as they are now, with the published numbers; ready for JSON."""
    return {
        "relbo_version": relbo.__version__,
        "preset": preset.name,
        "note": preset.note(),
        "is_comparable_with_published": preset.is_comparable(),
        "common": dataclasses.asdict(preset.common),
        "max_seconds": preset.max_seconds,
        "cells": [
            {
                "row": cell.row.name,
                "label": cell.row.label,
                "architecture": cell.arch,
                "layers": list(cell.config().layers),
                "published": [dataclasses.asdict(number) for number in cell.row.published.get(cell.arch, ())],
                "evaluation": cell.finished(),
            }
            for cell in cells(out, preset)
        ],
    }


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The table of one architecture, as text."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def sheets(results: dict[str, Any], bounds: Sequence[str]) -> list[Sheet]:
    """The table, an architecture at a time."""
    names = [str(BoundName.parse(bound)) for bound in bounds]
    columns = [("train", "elbo", "train ELBO")] + [("test", name, _heading(name)) for name in names]
    made = []
    for arch in ARCHITECTURES:
        chosen = [cell for cell in results["cells"] if cell["architecture"] == arch]
        rows = []
        for cell in chosen:
            row, found = ROWS[cell["row"]], cell["evaluation"]
            rows.append(
                (
                    cell["row"],
                    row.label,
                    "; ".join(number.text() for number in row.published.get(arch, ())) or "-",
                    *(_number(found, "nll", split, name) for split, name, _ in columns),
                    _number(found, "proposals_per_datapoint"),
                    _number(found, "seconds"),
                )
            )
        layers = "-".join(str(width) for width in chosen[0]["layers"])
        headings = ("row", "method", "published", *(text for _, _, text in columns), "proposals", "seconds")
        made.append(Sheet(arch if layers == arch else f"{arch} (ours: {layers})", headings, rows))
    return made


def _heading(name: str) -> str:
    return name.upper().replace(":", "-")


def _number(found: dict[str, Any] | None, field: str, *place: str) -> str:
    for key in (*place, field):
        found = None if found is None else found.get(key)
    return "-" if found is None else f"{found:.2f}"


READING = (
    "Nats, lower is better. Published numbers with their true metric: those of the paper's Table 1, and in brackets "
    "others of the same models. The caption of Table 1 calls all of them test NLL; in fact its 1-sample ELBOs are on "
    "the training images. NLL: a likelihood from many samples, their number not verified.",
    "Ours: 1-sample ELBO on as many training images as there are test images; ELBO, IS-25 and RS-25 on the test "
    "images, parameters by validation. RS with the method's own thresholds, for others the 0.9 quantile; standard "
    "errors are in table1.json. Proposals: per datapoint and step, the mean. Seconds: of training.",
)


def footnotes() -> list[str]:
    """Sources and reservations of the published numbers."""
    numbers = [number for row in ROWS.values() for entries in row.published.values() for number in entries]
    sources = dict.fromkeys(f"{n.split} {n.metric}: {n.source}" for n in numbers)
    starred = [f"* {n.nll:g}: {n.note}." for n in numbers if n.note]
    return ["Sources. " + "; ".join(sources) + ".", *starred]


def markdown(results: dict[str, Any], bounds: Sequence[str]) -> str:
    """The table as a page."""
    parts = [f"# Table 1, preset {results['preset']}", results["note"], *READING]
    for sheet in sheets(results, bounds):
        lines = [sheet.headings, ("---",) * len(sheet.headings), *sheet.rows]
        parts += [f"## {sheet.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, *footnotes()]) + "\n"
