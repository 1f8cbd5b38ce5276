"""Run directories: starting, resuming and opening them."""

import dataclasses
from pathlib import Path
from typing import Any

from relbo import data as datasets
from relbo.data import Dataset
from relbo.estimators import AbstractEstimator
from relbo.lab.config import RunConfig, build_estimator, build_optimizer, build_pair
from relbo.train.directory import METRICS, RUN, Description, read_description, refuse_foreign
from relbo.train.fit import FitResult, fit
from relbo.train.layout import Layout
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
    """The records of metrics.jsonl."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as that the model's file has changed since."""


def train_run(
    config: RunConfig,
    out: Path,
    *,
    data_dir: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    max_seconds: float | None = None,
    log_every: int = 100,
    progress: bool | None = False,
    mesh: Any = None,
) -> FitResult:
    """Trains what a configuration says, in a run directory."""
    out = Path(out)
    refuse_foreign(out, resume=resume)
    config = config.settled()
    if (changed := config.model_change()) is not None:
        raise ValueError(f"{out} cannot be resumed: {changed}")
    data = datasets.load(config.data, data_dir)
    per_epoch = steps_per_epoch(config, data)
    estimator = build_estimator(config, per_epoch)
    optimizer = build_optimizer(config, per_epoch * config.epochs)
    pair = build_pair(config, data)
    return fit(
        pair,
        estimator,
        data,
        num_epochs=config.epochs,
        optimizer=optimizer,
        batch_size=config.batch_size,
        seed=config.seed,
        mesh=mesh,
        shards=config.shards,
        valid_bound=config.valid_bound,
        valid_every=config.valid_every,
        patience=config.patience,
        max_seconds=max_seconds,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        progress=progress,
        about=identity_of(config, data, out),
        config=dataclasses.asdict(config),
    )


def identity_of(config: RunConfig, data: Dataset, out: Path) -> dict[str, Any]:
    """What a resumed run must share; its data may have moved or been converted if their content is the same."""
    identity = config.identity()
    if (out / RUN).exists():
        recorded = read_description(out).identity
        if recorded.get("data_fingerprint") == data.fingerprint and "data" in recorded:
            identity["data"] = recorded["data"]
    return identity


def steps_per_epoch(config: RunConfig, data: Dataset) -> int:
    """Steps of an epoch; a batch that does not fit the data and the shards is refused."""
    layout = Layout(len(data.train), config.shards)
    layout.check_batch(config.batch_size, "batch_size")
    return layout.steps_per_epoch(config.batch_size)


def open_run(path: Path, *, data_dir: Path | str | None = None, which: str = "best", with_metrics: bool = True) -> Run:
    """Opens a run directory.

    Args:
        path: the directory.
        data_dir: where its data are.
        which: `best` (on validation) or `last`.
        with_metrics: whether its records are read too; who wants parameters alone can do without.
    """
    path = Path(path)
    config = RunConfig.load(path)
    description = read_description(path)
    refuse_no_checkpoint(path)
    data = datasets.load(config.data, data_dir)
    refuse_other_data(path, description, data)
    estimator = build_estimator(config, steps_per_epoch(config, data))
    found = restore_pair(path, build_pair(config, data), which)
    return Run(
        path=path,
        config=config,
        data=data,
        estimator=estimator,
        pair=found.pair,
        step=found.step,
        record=found.record,
        metrics=read_metrics(path / METRICS, description.name, found.mark) if with_metrics else [],
        notes=() if (changed := config.model_change()) is None else (changed,),
    )


def refuse_other_data(path: Path, description: Description, data: Dataset) -> None:
    """Raises `ValueError` if a run was trained on other contents than its data have now."""
    recorded = description.identity.get("data_fingerprint")
    if recorded != data.fingerprint:
        raise ValueError(
            f"{path} was trained on other data: those of {data.name} have fingerprint {data.fingerprint[:12]} now, and "
            f"had {str(recorded)[:12]} then."
        )
