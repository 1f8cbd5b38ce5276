"""Run directories: starting, resuming and opening them."""

import dataclasses
from pathlib import Path
from typing import Any

from relbo import data as datasets
from relbo.data import Dataset
from relbo.estimators import AbstractEstimator
from relbo.lab.config import RunConfig, build_estimator, build_optimizer, build_pair
from relbo.train.fit import FitResult, fit
from relbo.train.load import refuse_no_checkpoint, restore_pair
from relbo.train.log import read_metrics
from relbo.types import Pair


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that can be looked at."""

    path: Path
    config: RunConfig
    data: Dataset
    estimator: AbstractEstimator
    pair: Pair
    """Parameters: the best on validation, or the last."""
    step: int
    """Step of the checkpoint."""
    record: dict[str, Any]
    """What the run had counted by then."""
    metrics: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    """What a reader should know, such as that the model's file has changed since."""


def train_run(
    config: RunConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    max_seconds: float | None = None,
    log_every: int = 100,
    progress: bool = False,
) -> FitResult:
    """Trains what a configuration says, in a run directory."""
    config = config.settled()
    if (changed := config.model_change()) is not None:
        raise ValueError(f"{out} cannot be resumed: {changed}")
    data = datasets.load(config.data, data_dir)
    per_epoch = len(data.train) // config.batch_size
    estimator = build_estimator(config, per_epoch)
    optimizer = build_optimizer(config, per_epoch * config.epochs)
    out = Path(out)
    if (out / "run.json").exists() and not resume:
        raise ValueError(f"{out} holds a run already: pass --resume to go on with it, or choose another --out.")
    pair = build_pair(config, data)
    if not resume or not (out / "config.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        config.save(out)
    result = fit(
        pair,
        estimator,
        data,
        num_epochs=config.epochs,
        optimizer=optimizer,
        batch_size=config.batch_size,
        seed=config.seed,
        valid_bound=config.valid_bound,
        valid_every=config.valid_every,
        patience=config.patience,
        max_seconds=max_seconds,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        progress=progress,
        about=config.identity(),
    )
    config.save(out)
    return result


def open_run(path: Path, *, data_dir: Path | None = None, which: str = "best") -> Run:
    """Opens a run directory.

    Args:
        path: the directory.
        data_dir: where its data are.
        which: `best` (on validation) or `last`.
    """
    path = Path(path)
    config = RunConfig.load(path)
    refuse_no_checkpoint(path)
    data = datasets.load(config.data, data_dir)
    estimator = build_estimator(config, len(data.train) // config.batch_size)
    found = restore_pair(path, build_pair(config, data), which)
    return Run(
        path=path,
        config=config,
        data=data,
        estimator=estimator,
        pair=found.pair,
        step=found.step,
        record=found.record,
        metrics=read_metrics(path / "metrics.jsonl"),
        notes=() if (changed := config.model_change()) is None else (changed,),
    )
