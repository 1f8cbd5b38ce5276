"""Run directories: starting, resuming and opening them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from relbo import data as datasets
from relbo.data import Dataset
from relbo.estimators import AbstractEstimator
from relbo.train.checkpoint import opened
from relbo.train.config import RunConfig, build_estimator, build_optimizer, build_pair
from relbo.train.fit import FitResult, Saved, fit
from relbo.train.log import read_metrics
from relbo.train.loop import init_state
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
    if which not in ("best", "last"):
        raise ValueError(f"the parameters to use must be best or last, got {which!r}.")
    path = Path(path)
    config = RunConfig.load(path)
    if not (path / "checkpoints").is_dir():
        raise FileNotFoundError(f"{path} has no checkpoint yet: expected the folder {path / 'checkpoints'}.")
    data = datasets.load(config.data, data_dir)
    per_epoch = len(data.train) // config.batch_size
    estimator = build_estimator(config, per_epoch)
    pair = build_pair(config, data)
    optimizer = build_optimizer(config, per_epoch * config.epochs)
    skeleton = Saved(init_state(jax.random.key(0), pair, estimator, optimizer, len(data.train)), pair)
    with opened(path / "checkpoints") as checkpoints:
        step = checkpoints.latest()
        if step is None:
            raise FileNotFoundError(f"{path / 'checkpoints'} holds no whole checkpoint; train with --resume first.")
        saved, record = checkpoints.restore(step, skeleton)
    use_best = which == "best" and record["best_bound"] is not None
    metrics = path / "metrics.jsonl"
    return Run(
        path=path,
        config=config,
        data=data,
        estimator=estimator,
        pair=saved.best if use_best else saved.state.pair,
        step=step,
        record=record,
        metrics=read_metrics(metrics) if metrics.exists() else [],
    )
