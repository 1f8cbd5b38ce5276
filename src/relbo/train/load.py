"""`relbo.load`: a trained pair back from its run directory."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from relbo.estimators.base import AbstractEstimator
from relbo.train.checkpoint import opened
from relbo.train.describe import rebuild
from relbo.train.log import read_metrics
from relbo.types import Pair


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """What a run directory holds."""

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
    path = Path(path)
    if make_pair is None and (path / "config.json").exists():
        from relbo.lab.runs import open_run

        run = open_run(path, data_dir=None if data_dir is None else Path(data_dir), which=which)
        record = {**_described(path), **run.record, "notes": list(run.notes)}
        return LoadedRun(path, run.pair, run.estimator, run.metrics, run.step, record)
    described = _described(path)
    refuse_no_checkpoint(path)
    if make_pair is None:
        raise ValueError(f"{path} is a run of `relbo.fit`: give `load` a function that makes a pair of its shapes.")
    pair = make_pair if isinstance(make_pair, Pair) else make_pair()
    if not isinstance(pair, Pair):
        raise ValueError(f"make_pair must return a relbo.Pair, got {type(pair).__name__}.")
    found = restore_pair(path, pair, which)
    return LoadedRun(
        path=path,
        pair=found.pair,
        estimator=rebuild(described["estimator"]),
        metrics=read_metrics(path / "metrics.jsonl"),
        step=found.step,
        record={**described, **found.record},
    )


def restore_pair(path: Path, pair: Pair, which: str = "best") -> Restored:
    """Parameters from the newest checkpoint of a run, in the place of those of a pair of the same shapes.

    Args:
        path: the run directory.
        pair: where the parameters go.
        which: `"best"` or `"last"`.
    """
    if which not in ("best", "last"):
        raise ValueError(f"the parameters to use must be best or last, got {which!r}.")
    refuse_no_checkpoint(path)
    with opened(path / "checkpoints") as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise FileNotFoundError(f"{path / 'checkpoints'} holds no whole checkpoint; resume the run first.")
        is_best = which == "best" and checkpoints.record(step)["best_bound"] is not None
        item = "best" if is_best else "pair"
        found, record = checkpoints.restore(step, {item: pair})
    return Restored(found[item], step, record)


def refuse_no_checkpoint(path: Path) -> None:
    """Raises `FileNotFoundError` for a run directory that has no place for checkpoints."""
    if not (path / "checkpoints").is_dir():
        raise FileNotFoundError(f"{path} has no checkpoint yet: expected the folder {path / 'checkpoints'}.")


def _described(path: Path) -> dict[str, Any]:
    file = path / "run.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a run directory: expected the file {file}.")
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: expected the description of a run, got {error}.") from error
