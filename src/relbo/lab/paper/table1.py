"""Table 1: every method on three sigmoid belief networks, by one trainer, beside the published numbers.

A cell is a method on an architecture, and a run directory of `relbo train` at OUT/ROW/ARCHITECTURE with its
`evaluation.json`. All cells share data, initialisation, optimiser, number of epochs (or of seconds) and evaluation. A
stopped reproduction goes on where it was: cells that are finished are not touched, others go on from their last
checkpoint. What a cell is asked for stands in its `cell.json` from before its first step, so that no cell is taken for
one of other settings, whenever it was stopped.
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
from relbo import data as datasets
from relbo.evaluate import evaluate
from relbo.lab.compare import rejection_of
from relbo.lab.config import RunConfig
from relbo.lab.paper.table1_rows import ARCHITECTURES, ROWS, Row
from relbo.lab.runs import Run, open_run, train_run
from relbo.train.directory import refuse_other_run
from relbo.train.errors import Interrupted, TrainingError, runtime_message
from relbo.train.log import write_json

MNIST = "binarized-mnist"
PUBLISHED_EPOCHS = 5_000
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
        """Whether the networks, the data and the length of training are those of the published numbers."""
        return not self._differences()

    def _differences(self) -> list[str]:
        is_long = self.max_seconds is None and self.common.epochs >= PUBLISHED_EPOCHS
        return [
            *([] if self.common.data == MNIST else ["other images"]),
            *([] if self.width == 200 else ["other networks"]),
            *([] if is_long else ["far shorter training"]),
        ]

    def note(self) -> str:
        """What the numbers are."""
        length = f"{self.common.epochs} epochs" if self.max_seconds is None else f"{self.max_seconds / 60:g} minutes"
        mine = (
            f"Ours: {self.common.data}, {self.width} units a layer, Adam at {self.common.lr:g}, {length} of training a "
            f"cell; {self.about}. Published: {MNIST}, 200 units a layer, millions of steps."
        )
        differences = self._differences()
        if not differences:
            return mine
        return (
            f"{mine} The two are NOT COMPARABLE: {', '.join(differences)}. The published numbers stand here for their "
            "metrics."
        )


PRESETS = {
    "smoke": Preset(
        "smoke",
        "enough to see that everything runs, too little to rank methods",
        RunConfig(lr=3e-3, epochs=10, refresh_epochs=2.0, valid_every=5, valid_bound="is:25"),
        width=50,
        repeats=1,
        checkpoint_every=125,
    ),
    "budget": Preset(
        "budget",
        "the same training seconds for every cell",
        # 100 draws behind each threshold would take half of the time
        RunConfig(data=MNIST, lr=1e-3, epochs=5_000, num_draws=20, refresh_epochs=10.0, valid_bound="is:25"),
        repeats=1,  # RS-25 on 10,000 images takes minutes
        max_seconds=300.0,
    ),
    "paper": Preset(
        "paper",
        "the paper's protocol: batches of 50, thresholds every 100 epochs",
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
        config = dataclasses.replace(
            self.preset.common, layers=layers, estimator=self.row.estimator, **self.row.settings
        )
        if self.row.control_steps is None:
            return config
        own = {"learning_rate": self.row.control_steps * config.lr}
        return dataclasses.replace(config, settings={**config.settings, **own})

    def asked(self) -> dict[str, Any]:
        """What a resumed reproduction may extend."""
        return {"epochs": self.config().epochs, "max_seconds": self.preset.max_seconds, "repeats": self.preset.repeats}

    def begin(self) -> None:
        """Writes down what the cell is, before it is trained."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "cell.json", {"identity": self.config().identity(), "asked": self.asked()})

    def evaluation(self) -> dict[str, Any] | None:
        """What was found, be it all that is asked for or not.

        Raises:
            ValueError: the cell has other settings, or a longer training time than is asked for.
        """
        begun = _read(self.path / "cell.json", "identity", "asked")
        found = _read(self.path / "evaluation.json", "identity", "asked", "test", "data_fingerprint")
        limit = self.preset.max_seconds
        for record in (begun, found):
            if record is None:
                continue
            refuse_other_run(self.path, record["identity"], self.config().identity())
            if limit is not None and (record["asked"]["max_seconds"] or math.inf) > limit:
                raise ValueError(
                    f"{self.path} has been trained with a longer time limit than the {limit / 60:g} minutes asked for: "
                    "choose another --out."
                )
        return found

    def finished(self) -> dict[str, Any] | None:
        """What was found, if it is all that is asked for."""
        found = self.evaluation()
        is_all = (
            found is not None and found["asked"] == self.asked() and set(self.preset.bounds) <= found["test"].keys()
        )
        return found if is_all else None


def _read(file: Path, *fields: str) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text())
        for field in fields:
            found[field]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): remove it, and the cell is evaluated again.") from error
    return found


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
        ValueError: a directory holds a cell of other settings or other data.
        Interrupted: Ctrl-C; what was trained is saved.
    """
    evaluations = [cell.finished() for cell in chosen]
    waiting = [cell for cell, found in zip(chosen, evaluations, strict=True) if found is None]
    done = [found for found in evaluations if found is not None]
    if done:
        refuse_other_data(done, datasets.load(chosen[0].preset.common.data, data_dir).fingerprint)
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


def refuse_other_data(evaluations: Sequence[dict[str, Any]], fingerprint: str) -> None:
    """Raises if a cell was made from other contents of the data."""
    for found in evaluations:
        if found["data_fingerprint"] != fingerprint:
            raise ValueError(
                f"the cell {found['row']}/{found['architecture']} was made from other contents of its data than there "
                "are now: choose another --out."
            )


def make(cell: Cell, *, data_dir: Path | None = None, progress: bool = False) -> dict[str, Any]:
    """Trains, or goes on training, and evaluates one cell."""
    cell.evaluation()  # refuses a cell of other settings
    cell.begin()
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
        raise Interrupted(result.signal)
    opened = open_run(cell.path, data_dir=data_dir)
    found = {
        "row": cell.row.name,
        "architecture": cell.arch,
        "identity": cell.config().identity(),
        "asked": cell.asked(),
        "data_fingerprint": opened.data.fingerprint,
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
                "evaluation": cell.evaluation(),
            }
            for cell in cells(out, preset)
        ],
    }
