"""`relbo.fit`: trains any pair with any estimator, with checkpoints, validation and metrics.

A run directory holds `run.json` (what the run is), `metrics.jsonl` and `checkpoints/`.
"""

import dataclasses
import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from relbo import bounds
from relbo._check import is_int, is_real, require, root_key
from relbo.data import Dataset
from relbo.estimators.base import AbstractEstimator
from relbo.evaluate import evaluate
from relbo.train.checkpoint import Checkpoints
from relbo.train.describe import described
from relbo.train.errors import TrainingError, runtime_message
from relbo.train.log import MetricsLog, write_json
from relbo.train.loop import Chunk, TrainState, Transform, epoch_order, init_state, make_chunk
from relbo.train.starving import watch
from relbo.types import Pair


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What training gives."""

    pair: Pair
    """Parameters after the last step."""
    best: Pair
    """Parameters with the best validation bound; the last ones without validation."""
    best_bound: float | None
    """That bound, in nats."""
    state: TrainState
    metrics: list[dict[str, Any]]
    """The records of metrics.jsonl."""
    stopped: str
    """Why it ended: `finished`, `early` (no better validation bound), `time` (is up) or `interrupted`."""


class Source(NamedTuple):
    """Data as the loop wants it."""

    train: PyTree
    valid: PyTree | None
    transform: Transform
    fingerprint: str


def source_of(data: Dataset | PyTree, valid: PyTree | None = None) -> Source:
    """Rows on the device, and how they become observations.

    Arrays are handed to the model as they are. Of a `Dataset`, bytes become floats, and gray training images are
    binarised afresh at every visit, x ~ Bernoulli(level / 255).
    """
    if isinstance(data, Dataset):
        transform = _binarise if data.kind == "gray" else _as_float
        held_out = data.valid if valid is None else valid
        return Source(jnp.asarray(data.train), held_out, transform, data.fingerprint)
    train = jax.tree.map(jnp.asarray, data)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(train):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return Source(train, valid, lambda key, rows: rows, digest.hexdigest())


def _as_float(key: jax.Array, rows: PyTree) -> PyTree:
    return rows.astype(jnp.result_type(float))


def _binarise(key: jax.Array, rows: PyTree) -> PyTree:
    # level / 255 is the probability of a 1: a byte of 0 is never, one of 255 always on
    u = jax.random.uniform(key, rows.shape)
    return (u * 255 < rows.astype(u.dtype)).astype(u.dtype)


def fit(
    pair: Pair,
    estimator: AbstractEstimator,
    data: Dataset | PyTree,
    *,
    num_epochs: int,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int = 50,
    seed: int = 0,
    valid: PyTree | None = None,
    valid_bound: str = "is:10",
    valid_every: int = 1,
    patience: int | None = None,
    max_seconds: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    log_every: int = 100,
    progress: bool = False,
    about: dict[str, Any] | None = None,
) -> FitResult:
    """Trains a pair.

    Args:
        pair: model and proposal; its arrays are trained.
        estimator: any estimator of `relbo.estimators`.
        data: a `Dataset`, or a pytree of arrays whose first axis runs over datapoints.
        num_epochs: passes over the data; a last incomplete batch of each is dropped.
        optimizer: any Optax optimiser; by default Adam at 1e-3.
        batch_size: datapoints per step.
        seed: root of all randomness.
        valid: held-out datapoints; by default those of the `Dataset`, if there are any.
        valid_bound: bound by which the best parameters are chosen.
        valid_every: epochs between validations.
        patience: stop after this many validations without a better bound; None never does.
        max_seconds: stop, and validate, once the steps have taken this long, those of a resumed run included; None
            never does.
        out: run directory; None keeps everything in memory.
        resume: go on from the last checkpoint in `out`.
        checkpoint_every: steps between checkpoints; by default an epoch.
        log_every: steps between records, and between chances to stop.
        progress: show a progress bar.
        about: what else identifies the run (plain JSON), recorded and compared on resumption.

    Returns:
        A `FitResult`.
    """
    source = source_of(data, valid)
    num_data = jax.tree.leaves(source.train)[0].shape[0]
    require(is_int(num_epochs, at_least=0), "fit: num_epochs", "an integer >= 0", num_epochs)
    require(
        is_int(batch_size, at_least=1) and batch_size <= num_data,
        "fit: batch_size",
        f"an integer from 1 to the {num_data} training datapoints",
        batch_size,
    )
    require(is_int(log_every, at_least=1), "fit: log_every", "an integer >= 1", log_every)
    require(is_int(valid_every, at_least=1), "fit: valid_every", "an integer >= 1", valid_every)
    require(patience is None or is_int(patience, at_least=1), "fit: patience", "None or an integer >= 1", patience)
    require(
        max_seconds is None or (is_real(max_seconds) and max_seconds > 0),
        "fit: max_seconds",
        "None or a number > 0",
        max_seconds,
    )
    bounds.parse(valid_bound)
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    per_epoch = num_data // batch_size
    checkpoint_every = per_epoch if checkpoint_every is None else checkpoint_every
    require(is_int(checkpoint_every, at_least=1), "fit: checkpoint_every", "an integer >= 1", checkpoint_every)

    key_init, key_valid = jax.random.split(root_key(seed))
    run = _Run(
        state=init_state(key_init, pair, estimator, optimizer, num_data),
        best=pair,
        log=MetricsLog(None if out is None else Path(out) / "metrics.jsonl"),
        checkpoints=None,
    )
    description, text = described(estimator)
    identity = {
        **(about or {}),
        "estimator_settings": text,
        "data_fingerprint": source.fingerprint,
        "batch_size": batch_size,
        "seed": seed,
    }
    if out is not None:
        run.open(Path(out), identity, description, resume=resume)
    chunk = make_chunk(estimator, optimizer, source.transform, batch_size)
    total = num_epochs * per_epoch
    bar = _progress_bar(total, int(run.state.step)) if progress else nullcontext()

    with _interrupts() as interrupted, bar as shown:
        while (step := int(run.state.step)) < total and not interrupted.is_set():
            if run.counters.stale >= (patience or 1 << 30) or run.counters.seconds >= (max_seconds or math.inf):
                break
            epoch, place = divmod(step, per_epoch)
            if place == 0 or run.order is None:
                run.order = epoch_order(run.state.key, epoch, num_data)
            marks = (log_every, checkpoint_every, per_epoch)
            stop = min(total, (epoch + 1) * per_epoch, *(step // mark * mark + mark for mark in marks))
            record = run.advance(chunk, source.train, place * batch_size, stop - step)
            record["epoch"] = int(run.state.step) / per_epoch
            is_over = run.counters.seconds >= (max_seconds or math.inf)  # what time allowed is to be judged whole
            if (stop % (per_epoch * valid_every) == 0 or is_over) and source.valid is not None:
                run.validate(source.valid, valid_bound, key_valid, record)
            run.log.append(record)
            if stop % checkpoint_every == 0 or stop == total:
                run.save()
            if shown is not None:
                shown.update(stop, record)
        run.save()
    reasons = {
        "finished": int(run.state.step) >= total,
        "interrupted": interrupted.is_set(),
        "time": run.counters.seconds >= (max_seconds or math.inf),
        "early": True,
    }
    stopped = next(name for name, holds in reasons.items() if holds)
    run.close()
    has_best = run.counters.best_bound is not None
    return FitResult(
        pair=run.state.pair,
        best=run.best if has_best else run.state.pair,
        best_bound=run.counters.best_bound,
        state=run.state,
        metrics=run.log.records,
        stopped=stopped,
    )


def _progress_bar(total: int, done: int) -> Any:
    from relbo.train.progress import Progress  # only who wants a bar pays for rich

    return Progress(total, done)


@dataclasses.dataclass
class Counters:
    """What a run counts on the host; saved with every checkpoint."""

    num_proposals: float = 0.0
    seconds: float = 0.0
    best_bound: float | None = None
    stale: int = 0
    """Validations since the best one."""
    starved: int = 0
    """Steps up to now, without a break, in which most rows ran out of proposals."""


@dataclasses.dataclass
class _Run:
    state: TrainState
    best: Pair
    log: MetricsLog
    checkpoints: Checkpoints | None
    counters: Counters = dataclasses.field(default_factory=Counters)
    order: Any = None
    compiled: bool = False
    warned: bool = False

    def open(self, out: Path, identity: dict[str, Any], description: Any, *, resume: bool) -> None:
        """Starts the run directory, or goes on from its last checkpoint."""
        file = out / "run.json"
        if file.exists() and not resume:
            raise ValueError(f"{out} holds a run already: resume it, or choose another directory.")
        if file.exists():
            refuse_other_run(out, json.loads(file.read_text())["identity"], identity)
        else:
            out.mkdir(parents=True, exist_ok=True)
            from relbo import __version__

            write_json(file, {"relbo": __version__, "identity": identity, "estimator": description})
        self.checkpoints = Checkpoints(out / "checkpoints")
        latest = self.checkpoints.latest()
        if latest is not None:
            items, counters = self.checkpoints.restore(latest, self._items())
            self.state, self.best = TrainState(pair=items["pair"], **items["rest"]), items["best"]
            self.counters = Counters(**counters)
        self.log.rewind(int(self.state.step))

    def advance(self, chunk: Any, data: PyTree, first: int, count: int) -> dict[str, Any]:
        """Takes `count` steps and reports on them."""
        step = int(self.state.step)
        args = (data, self.order, jnp.asarray(first, jnp.int32))
        if not self.compiled:  # so that compilation is not counted as training
            jax.block_until_ready(chunk(self.state, *args, jnp.asarray(0, jnp.int32)))
            self.compiled = True
        start = time.perf_counter()
        try:
            self.state, report = jax.block_until_ready(chunk(self.state, *args, jnp.asarray(count, jnp.int32)))
        except eqx.EquinoxRuntimeError as error:
            where = f"between steps {step} and {step + count}"
            raise TrainingError(f"training stopped {where}: {runtime_message(error)}") from error
        self.counters.seconds += time.perf_counter() - start
        self._refuse_fault(report)
        share = float(report.extra.get("exhausted", 0.0))
        self.warned, self.counters.starved = watch(share, count, self.counters.starved, warned=self.warned)
        self.counters.num_proposals += float(report.num_proposals)
        return {
            "step": int(self.state.step),
            "bound": float(report.bound),
            "num_proposals": self.counters.num_proposals,
            "num_left_out": float(report.num_left_out),
            "seconds": self.counters.seconds,
            **{name: float(value) for name, value in report.extra.items()},
        }

    def _refuse_fault(self, report: Chunk) -> None:
        step = int(self.state.step)
        for message, is_bad in report.fault.refused.items():
            if bool(is_bad):
                raise TrainingError(f"training stopped at step {step}: {message}")
        causes = {
            "the bound of a datapoint": report.fault.bound,
            "the model's gradient": report.fault.model,
            "the proposal's gradient": report.fault.proposal,
        }
        found = [name for name, is_bad in causes.items() if bool(is_bad)]
        if found:
            raise TrainingError(
                f"training stopped at step {step}: {' and '.join(found)} is not finite. The last "
                "checkpoint is untouched; lower the learning rate, or look for log p = -inf in the model."
            )

    def validate(self, valid: PyTree, name: str, key: jax.Array, record: dict[str, Any]) -> None:
        """Records the validation bound and keeps the best parameters."""
        bound = evaluate(self.state.pair, valid, [name], key=key, repeats=1)[str(bounds.parse(name))].mean
        record["valid_bound"] = bound
        if self.counters.best_bound is None or bound > self.counters.best_bound:
            self.counters.best_bound, self.counters.stale = bound, 0
            self.best = self.state.pair
        else:
            self.counters.stale += 1

    def save(self) -> None:
        """Writes a checkpoint."""
        if self.checkpoints is not None and self.checkpoints.latest() != int(self.state.step):
            record = dataclasses.asdict(self.counters)
            self.checkpoints.save(int(self.state.step), self._items(), record)

    def _items(self) -> dict[str, PyTree]:
        rest = {name: value for name, value in self.state._asdict().items() if name != "pair"}
        return {"pair": self.state.pair, "best": self.best, "rest": rest}

    def close(self) -> None:
        """Releases the run directory."""
        if self.checkpoints is not None:
            self.checkpoints.close()


def refuse_other_run(out: Path, recorded: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raises `ValueError` that names what differs, if a directory holds something made with other settings."""
    recorded, asked = json.loads(json.dumps(recorded)), json.loads(json.dumps(asked))
    wrong = [name for name in recorded.keys() | asked.keys() if recorded.get(name) != asked.get(name)]
    if wrong:
        differences = "; ".join(
            f"{name} was {recorded.get(name)!r} and is now {asked.get(name)!r}" for name in sorted(wrong)
        )
        raise ValueError(f"{out} cannot be resumed with another configuration: {differences}.")


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    # the first Ctrl-C ends the run after the current chunk, with a checkpoint; a second one is not caught
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)
