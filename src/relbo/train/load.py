"""`relbo.load`: a trained pair back from its run directory."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from relbo._check import require
from relbo._disk import command
from relbo._options import check
from relbo.estimators.base import AbstractEstimator
from relbo.train.checkpoint import Checkpoints
from relbo.train.describe import rebuild
from relbo.train.directory import CHECKPOINTS, METRICS, Description, checkpoints_of, mark_of, read_description
from relbo.train.errors import Damaged
from relbo.train.log import Mark, read_metrics
from relbo.types import Pair


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run directory holds.

    Example:
        >>> import tempfile
        >>> place = tempfile.mkdtemp() + "/run"
        >>> result = relbo.fit(pair, relbo.RLOO(2), x, num_epochs=2, batch_size=2, out=place)
        >>> relbo.load(place, pair).step
        4
    """

    path: Path
    pair: Pair
    """The trained parameters: the best on validation, or the last."""
    estimator: AbstractEstimator | None
    """What it was trained with; None if that was not made of relbo's classes and numbers alone."""
    metrics: list[dict[str, Any]]
    """The records of metrics.jsonl."""
    step: int
    """Steps taken by the time of the checkpoint."""
    record: dict[str, Any]
    """What the run is (`identity`, with the estimator as text) and what it had counted at `step`."""


class Restored(NamedTuple):
    """Parameters of a checkpoint."""

    pair: Pair
    step: int
    record: dict[str, Any]
    """What the run had counted by then."""
    mark: Mark
    """How far its metrics had come."""


def load(
    path: Path | str,
    make_pair: Callable[[], Pair] | Pair | None = None,
    *,
    which: str = "best",
    data_dir: Path | str | None = None,
) -> LoadedRun:
    """Opens a run directory, of `relbo train` or of `relbo.fit(out=...)`.

    Args:
        path: the directory.
        make_pair: a function without arguments that makes a pair of the same shapes, or such a pair; its parameters
            do not matter. A run of the command line does without: its configuration says what the pair is.
        which: `"best"` (on validation, or the last where there was none) or `"last"`.
        data_dir: where the data of a run of the command line are; else `$RELBO_DATA`, else the per-user cache.

    Returns:
        A `LoadedRun`.

    Raises:
        FileNotFoundError: there is no run, or no checkpoint in it.
        ValueError: `make_pair` is missing, or makes a pair of other shapes.

    Example:
        >>> run = relbo.load("runs/mine", lambda: relbo.sbn(jax.random.key(0), (200,), data_mean))  # doctest: +SKIP
        >>> relbo.evaluate(run.pair, data.test, ["is:25"], key=jax.random.key(1))  # doctest: +SKIP
    """
    require(isinstance(path, str | Path) and str(path) != "", "load: path", "a run directory", path)
    path = Path(path)
    if make_pair is None and (path / "config.json").exists():
        from relbo.lab.runs import open_run

        run = open_run(path, data_dir=data_dir, which=which)
        record = {**_summary(read_description(path)), **run.record, "notes": list(run.notes)}
        return LoadedRun(path, run.pair, run.estimator, run.metrics, run.step, record)
    description = read_description(path)
    refuse_no_checkpoint(path)
    if make_pair is None:
        raise ValueError(f"{path} is a run of `relbo.fit`: give `load` a function that makes a pair of its shapes.")
    is_one = isinstance(make_pair, Pair) or (callable(make_pair) and not isinstance(make_pair, type))
    require(is_one, "load: make_pair", "a relbo.Pair or a function that makes one", make_pair)
    pair = make_pair if isinstance(make_pair, Pair) else make_pair()
    if not isinstance(pair, Pair):
        raise ValueError(f"make_pair must return a relbo.Pair, got {type(pair).__name__}.")
    found = restore_pair(path, pair, which)
    return LoadedRun(
        path=path,
        pair=found.pair,
        estimator=rebuild(description.estimator),
        metrics=read_metrics(path / METRICS, description.name, found.mark),
        step=found.step,
        record={**_summary(description), **found.record},
    )


def restore_pair(path: Path, pair: Pair, which: str = "best") -> Restored:
    """Parameters from the newest checkpoint of a run, in the place of those of a pair of the same shapes.

    Args:
        path: the run directory.
        pair: where the parameters go.
        which: `"best"` or `"last"`.

    Raises:
        Damaged: the newest checkpoint is; the message names the newest whole one.
    """
    check("the parameters to use: ", which=which)
    refuse_no_checkpoint(path)
    checkpoints = checkpoints_of(path, read_description(path).name)
    steps = checkpoints.steps()
    if not steps:
        raise FileNotFoundError(f"{path / CHECKPOINTS} holds no whole checkpoint; resume the run first.")
    try:
        return _restored(checkpoints, steps[-1], pair, which)
    except Damaged as error:
        if steps[-1] not in checkpoints.steps():  # a writer removed it meanwhile: there are newer ones
            return restore_pair(path, pair, which)
        raise Damaged(f"{error} {_offer(checkpoints, steps[:-1], pair, which, path)}") from error


def _restored(checkpoints: Checkpoints, step: int, pair: Pair, which: str) -> Restored:
    is_best = which == "best" and checkpoints.record(step)["counters"]["best_bound"] is not None
    item = "best" if is_best else "pair"
    found, record = checkpoints.restore(step, {item: pair})
    return Restored(found[item], step, record["counters"], mark_of(record))


def _offer(checkpoints: Checkpoints, earlier: list[int], pair: Pair, which: str, path: Path) -> str:
    """The sentence that says what can be had instead of a damaged checkpoint."""
    for step in reversed(earlier):
        try:
            _restored(checkpoints, step, pair, which)
        except Damaged:
            continue
        return (
            f"The one of step {step} is whole: `{command('train', '--resume', '--out', path)}` goes on from it, and it "
            "is the one that is read once the damaged folder is removed."
        )
    return "No other checkpoint of this run is whole."


def refuse_no_checkpoint(path: Path) -> None:
    """Raises `FileNotFoundError` for a run directory that has no place for checkpoints."""
    if not (path / CHECKPOINTS).is_dir():
        raise FileNotFoundError(f"{path} has no checkpoint yet: expected the folder {path / CHECKPOINTS}.")


def _summary(description: Description) -> dict[str, Any]:
    return {"relbo": description.relbo, "identity": description.identity, "estimator": description.estimator}
