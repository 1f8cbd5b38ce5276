"""Table 1: every method on three sigmoid belief networks, by one trainer, beside the published numbers.

A cell is a method on an architecture with a seed: a run directory of `relbo train` at OUT/ROW/ARCHITECTURE (seed 0) or
OUT/seed-SEED/ROW/ARCHITECTURE, with its `evaluation.json` and the value of each image in `values.npz`. All cells share
data, optimiser, number of epochs (or of seconds) and evaluation, those of a seed also the initialisation. A stopped
reproduction goes on where it was: cells that are finished are not touched, others go on from their last checkpoint.
What a cell is asked for stands in its `cell.json` from before its first step, so that no cell is taken for one of other
settings, whenever it was stopped. Several processes may share a directory: each makes cells that no other is making.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from relbo import data as datasets
from relbo._check import did_you_mean
from relbo.bounds import parse
from relbo.evaluate import Estimate, evaluate
from relbo.lab.compare import rejection_of
from relbo.lab.config import RunConfig
from relbo.lab.paper import table1_values
from relbo.lab.paper.table1_presets import PRESETS as PRESETS
from relbo.lab.paper.table1_presets import Group, Preset
from relbo.lab.paper.table1_rows import ARCHITECTURES, Row
from relbo.lab.runs import Run, open_run, train_run
from relbo.train.directory import refuse_other_run
from relbo.train.errors import Interrupted, Occupied, runtime_message
from relbo.train.lock import WriterLock
from relbo.train.log import write_json

CELL, CELL_LOCK, EVALUATION = "cell.json", ".cell.lock", "evaluation.json"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method on one architecture with one seed, in its run directory."""

    row: Row
    arch: str
    path: Path
    preset: Preset
    seed: int = 0

    @property
    def label(self) -> str:
        """Its short name."""
        return f"{seed_folder(self.seed)}{self.row.name}/{self.arch}"

    def config(self) -> RunConfig:
        """What is trained."""
        return self.preset.config(self.row, self.arch, self.seed)

    def asked(self) -> dict[str, Any]:
        """What a resumed reproduction may extend."""
        return {"epochs": self.config().epochs, "max_seconds": self.preset.max_seconds, "repeats": self.preset.repeats}

    def begin(self) -> None:
        """Writes down what the cell is, before it is trained."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / CELL, {"identity": self.config().identity(), "asked": self.asked()})

    def evaluation(self) -> dict[str, Any] | None:
        """What was found, be it all that is asked for or not.

        Raises:
            ValueError: the cell has other settings, or a longer training time than is asked for.
        """
        begun = _read(self.path / CELL, "identity", "asked")
        found = _read(self.path / EVALUATION, "identity", "asked", "test", "data_fingerprint")
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
            found is not None
            and found["asked"] == self.asked()
            and set(self.preset.bounds) <= found["test"].keys()
            and found.get("values") is not None  # earlier versions kept none
        )
        return found if is_all else None

    def known(self, step: int) -> table1_values.Estimates:
        """Estimates of an earlier evaluation of the same parameters, with as many repeats."""
        found, values = self.results()
        if found is None or found["step"] != step or found["asked"] != self.asked():
            return {}
        return table1_values.estimates(values, found)

    def results(self) -> tuple[dict[str, Any] | None, table1_values.Values]:
        """What was found, and the bounds of each image behind it; none where the cell was not evaluated.

        Both are of one moment, also while another process evaluates the cell.
        """
        found = self.evaluation()
        while found is not None and found.get("values") is not None:
            try:
                return found, table1_values.load(self.path / table1_values.FILE, found["values"])
            except ValueError:
                earlier, found = found, self.evaluation()
                if found == earlier:
                    raise
        return found, {}


def _read(file: Path, *fields: str) -> dict[str, Any] | None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        for field in fields:
            found[field]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): remove it, and the cell is evaluated again.") from error
    return found


def seed_folder(seed: int) -> str:
    """Where the cells of a seed are, seen from the directory of all; seed 0 is there itself."""
    return "" if seed == 0 else f"seed-{seed}/"


def cell_of(out: Path, preset: Preset, row: Row, arch: str, seed: int) -> Cell:
    """The cell at its place."""
    return Cell(row, arch, out / seed_folder(seed) / row.name / arch, preset, seed)


def cells(
    out: Path,
    preset: Preset,
    only: Sequence[str] = (),
    architectures: Sequence[str] = (),
    *,
    groups: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> list[Cell]:
    """The chosen cells; by default those of all groups of the preset, or all of seed 0 if it has none.

    They come by group, then by seed, then by architecture, so that the evaluation of an architecture is compiled once.

    Args:
        out: directory of all cells.
        preset: what they are.
        only: names of rows; all if there are none.
        architectures: names of architectures; all if there are none.
        groups: names of the preset's groups, of which rows and architectures are taken.
        seeds: of each cell; by default 0, or as many as the group says.
    """
    rows = {row.name: row for row in preset.rows}
    if groups and not preset.groups:
        raise ValueError(
            f"--group is for presets with groups (long), got it with {preset.name}: use --only and --arch."
        )
    for what, asked, known in (
        ("a row", only, rows),
        ("an architecture", architectures, ARCHITECTURES),
        ("a group", groups, preset.groups),
    ):
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise ValueError(
                f"{what} must be one of {', '.join(known)}; got {unknown[0]!r}{did_you_mean(unknown[0], known)}"
            )
    if not (groups or only or architectures):
        groups = tuple(preset.groups)
    found = {}
    for group in [preset.groups[name] for name in groups] or [Group(tuple(rows))]:
        for seed in seeds or range(group.num_seeds):
            for arch in (arch for arch in group.architectures if arch in (architectures or ARCHITECTURES)):
                for name in (name for name in group.rows if name in (only or rows)):
                    cell = cell_of(out, preset, rows[name], arch, seed)
                    found[cell.path] = cell
    if not found:
        asked = ", ".join([*only, *architectures])
        raise ValueError(f"--group {', '.join(groups)} has no cell of {asked}: leave out --only or --arch.")
    return list(found.values())


def run(
    chosen: Sequence[Cell],
    *,
    data_dir: Path | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    progress: bool = False,
) -> dict[str, str]:
    """Trains and evaluates the cells that are not finished, but for those that another process is at.

    Args:
        chosen: what `cells` gives.
        data_dir: where the data are.
        on_stage: told what begins and what was found.
        progress: show progress bars.

    Returns:
        For each cell that failed, its label and the reason; the others are finished, or left to another process.

    Raises:
        ValueError: a directory holds a cell of other settings or other data, or the data cannot be read.
        Interrupted: Ctrl-C; what was trained is saved.
    """
    evaluations = [cell.finished() for cell in chosen]
    waiting = [cell for cell, found in zip(chosen, evaluations, strict=True) if found is None]
    done = [found for found in evaluations if found is not None]
    # no data is a fault of all cells, and said before the first
    refuse_other_data(done, datasets.load(chosen[0].preset.common.data, data_dir).fingerprint)
    if len(waiting) < len(chosen):
        on_stage(f"{len(chosen) - len(waiting)} of {len(chosen)} cells are finished already")
    failures = {}
    occupied: list[Cell] = []

    def numbered() -> Iterator[tuple[int, Cell]]:
        yield from enumerate(waiting, start=1)
        # by now the other process may have ended, finished or not
        yield from ((waiting.index(cell) + 1, cell) for cell in tuple(occupied))

    for number, cell in numbered():
        on_stage(f"cell {number} of {len(waiting)}: {cell.label}")
        try:
            found = make(cell, data_dir=data_dir, progress=progress)
        except Occupied:
            on_stage(f"{cell.label} is left to the process that is at it")
            occupied.append(cell)
            continue
        # it diverged, its evaluation rejects too much, its files are damaged, ...
        except (RuntimeError, ValueError, OSError) as error:
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
    """Trains, or goes on training, and evaluates one cell; what another process has finished is only read.

    Raises:
        Occupied: another process is making it.
    """
    cell.evaluation()  # refuses a cell of other settings, also one that another process is making
    cell.path.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(cell.path, CELL_LOCK)
    try:
        return cell.finished() or _make(cell, data_dir=data_dir, progress=progress)
    finally:
        lock.release()


def _make(cell: Cell, *, data_dir: Path | None, progress: bool) -> dict[str, Any]:
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
    opened = open_run(cell.path, data_dir=data_dir, with_metrics=False)
    threshold, estimates = evaluations(opened, cell.preset, cell.known(opened.step))
    # in this order: a kill leaves no evaluation that belongs to other values
    (cell.path / EVALUATION).unlink(missing_ok=True)
    digest = table1_values.save(cell.path / table1_values.FILE, estimates)
    found = {
        "row": cell.row.name,
        "architecture": cell.arch,
        "identity": cell.config().identity(),
        "asked": cell.asked(),
        "data_fingerprint": opened.data.fingerprint,
        "step": opened.step,
        "seconds": opened.record["seconds"],
        "cpu_seconds": opened.record.get("cpu_seconds"),
        "num_proposals": opened.record["num_proposals"],
        "proposals_per_datapoint": opened.record["num_proposals"] / max(opened.step * opened.config.batch_size, 1),
        "threshold": threshold,
        "values": digest,
        **{
            split: {name: estimate.summary() for name, estimate in bounds.items()}
            for split, bounds in estimates.items()
        },
    }
    write_json(cell.path / EVALUATION, found)
    return found


def evaluations(
    run: Run, preset: Preset, known: table1_values.Estimates | None = None
) -> tuple[str, table1_values.Estimates]:
    """All bounds on the test images, and the ELBO on as many training images, if these have fixed values.

    The random numbers are those of every other cell, so that differences between cells are paired. They do not depend
    on which bounds are evaluated together, so what is known already is not evaluated again.
    """
    threshold, acceptance = rejection_of(run)

    def bounds(split: str, rows: Any, names: Sequence[str]) -> dict[str, Estimate]:
        found = dict((known or {}).get(split, {}))
        missing = [name for name in names if name not in found]
        if missing:
            found |= evaluate(
                run.pair,
                rows,
                missing,
                key=jax.random.key(0),
                repeats=preset.repeats,
                threshold=threshold,
                acceptance=acceptance,
            )
        return found

    fixed = run.data.kind == "binary"
    return str(threshold), {
        "test": bounds("test", run.data.test, [str(parse(name)) for name in preset.bounds]),
        "train": bounds("train", run.data.train[: len(run.data.test)], ["elbo"]) if fixed else {},
    }
