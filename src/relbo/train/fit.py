"""`relbo.fit`: trains any pair with any estimator, with checkpoints, validation and metrics.

Everything is checked, and the step compiled, before anything is written. What a run directory holds is said in
`directory.py`.
"""

import dataclasses
import hashlib
import logging
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from relbo import bounds
from relbo._check import checked_estimator, checked_pair, checked_x, num_datapoints, refuse, require, root_key
from relbo._options import check
from relbo._table import html_table, text_table
from relbo.data import Dataset, RowFiles
from relbo.devices import as_mesh
from relbo.estimators.base import AbstractEstimator
from relbo.train.describe import described
from relbo.train.directory import RunDirectory
from relbo.train.feed import AbstractFeed, DiskFeed, ResidentFeed, Visit
from relbo.train.layout import Layout
from relbo.train.loop import Settings, TrainState, Transform
from relbo.train.open_run import OpenRun
from relbo.train.optimizers import as_optimizer
from relbo.train.sealed import array_digest
from relbo.train.shards import init_state_on, is_of_rows, make_chunk_on
from relbo.train.signals import answer, stop_requests
from relbo.train.together import Together, loss_of_a_process
from relbo.types import Pair, Schedule

LOGGER = logging.getLogger("relbo")


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What training gives.

    Example:
        >>> result = relbo.fit(pair, relbo.RLOO(2), x, num_epochs=1, batch_size=2)
        >>> result.stopped
        'finished'
    """

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
    signal: int | None = None
    """The signal that interrupted it, SIGINT or SIGTERM."""

    def _figures(self) -> dict[str, str]:
        last = self.metrics[-1] if self.metrics else {}
        found = {
            "bound": f"{last['bound']:.2f} nats at the last record" if last else None,
            "best validation bound": None if self.best_bound is None else f"{self.best_bound:.2f} nats",
            "acceptance rate": f"{last['acceptance']:.3f}" if "acceptance" in last else None,
            "time": f"{last['seconds']:.1f} s" if last else None,
            "records": f"{len(self.metrics)} in .metrics; parameters in .pair and .best",
        }
        return {"training": f"{self.stopped} after {int(self.state.step):,} steps"} | {
            name: value for name, value in found.items() if value is not None
        }

    def __repr__(self) -> str:
        return text_table(self._figures())

    def _repr_html_(self) -> str:
        return html_table(self._figures())


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
        return Source(data.train, held_out, transform, data.fingerprint)
    num_datapoints(data, "fit: data")
    train = jax.tree.map(_canonical, data)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(train):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return Source(train, valid, _as_is, digest.hexdigest())


def refuse_unlike(valid: PyTree, train: PyTree) -> None:
    """Raises `ValueError` for held-out rows that are no other rows of the same kind as those to be trained on."""
    num_datapoints(valid, "fit: valid")
    expected, got = str(jax.tree.structure(train)), str(jax.tree.structure(valid))
    if expected != got:
        raise ValueError(f"fit: valid must be like the data, a tree such as {expected}, got {got}.")
    for mine, other in zip(jax.tree.leaves(train), jax.tree.leaves(valid), strict=True):
        if mine.shape[1:] != other.shape[1:] or _kind(mine) != _kind(other):
            raise ValueError(
                f"fit: valid must be like the data, rows of {_kind(mine)} of shape {mine.shape[1:]}, got rows of "
                f"{_kind(other)} of shape {other.shape[1:]}."
            )


def _kind(leaf: Any) -> str:
    # bytes are stored images, which models are given as floats
    kind = "f" if leaf.dtype == np.uint8 else np.dtype(leaf.dtype).kind
    return {"b": "booleans", "i": "integers", "u": "integers", "f": "floats"}.get(kind, str(leaf.dtype))


def _canonical(leaf: Any) -> Any:
    # on the host what is on the host: where rows are split no device has room for all
    if isinstance(leaf, jax.Array):
        return leaf
    found = np.asarray(leaf)
    return found.astype(jax.dtypes.canonicalize_dtype(found.dtype))


def _as_is(key: jax.Array, rows: PyTree) -> PyTree:
    return rows


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
    optimizer: optax.GradientTransformation | str | None = None,
    lr: float | Schedule | None = None,
    batch_size: int = 50,
    seed: int = 0,
    mesh: Mesh | int | None = None,
    shards: int | None = None,
    valid: PyTree | None = None,
    valid_bound: str = "is:10",
    valid_every: int = 1,
    patience: int | None = None,
    max_seconds: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    log_every: int = 100,
    progress: bool | None = None,
    about: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> FitResult:
    """Trains a pair.

    Args:
        pair: model and proposal; its arrays are trained.
        estimator: any estimator of `relbo.estimators`.
        data: a `Dataset`, or a pytree of arrays whose first axis runs over datapoints.
        num_epochs: passes over the data; a last incomplete batch of each is dropped.
        optimizer: the name of an Optax optimiser, or such an optimiser; by default Adam.
        lr: learning rate of a named optimiser, a number or a schedule, by default 1e-3. A later call with the same
            shapes and other numbers (this one, those of the estimator, the seed) compiles nothing; an optimiser or a
            schedule that is an object compiles once per object.
        batch_size: datapoints per step.
        seed: root of all randomness.
        mesh: the devices to train on, in one axis, or how many of JAX's; None is its default device.
        shards: L, parts that the rows are split into, a power of 2 and a multiple of the devices. It decides which rows
            meet in a batch, and with which random numbers; the number of devices then changes neither. By default as
            many as there are devices, at a single one 1.
        valid: held-out datapoints; by default those of the `Dataset`, if there are any.
        valid_bound: bound by which the best parameters are chosen.
        valid_every: epochs between validations.
        patience: stop after this many validations without a better bound; None never does.
        max_seconds: stop, and validate, once the steps have taken this long, those of a resumed run included; None
            never does.
        out: run directory, new or empty or a run to be resumed; None keeps everything in memory.
        resume: go on from the last checkpoint in `out`.
        checkpoint_every: steps between checkpoints; by default an epoch.
        log_every: steps between records, and between chances to stop.
        progress: show a progress bar; None does so in a terminal and in a notebook.
        about: what else identifies the run (plain JSON), recorded and compared on resumption.
        config: settings of whoever calls (plain JSON), kept in config.json.

    Returns:
        A `FitResult`.

    Raises:
        ValueError: a setting is wrong, or `out` is not ours to write; nothing was written.
        TrainingError: the bound or a gradient is not finite, or has lost all scale.
        OSError: a file cannot be written; the message names the checkpoint that is whole.

    Example:
        >>> result = relbo.fit(pair, relbo.RLOO(2), x, num_epochs=2, batch_size=2)
        >>> type(result.pair).__name__
        'Pair'
    """
    from relbo import __version__

    checked_pair(pair, "fit: pair")
    checked_estimator(estimator, "fit: estimator")
    source = source_of(data, valid)
    num_data = num_datapoints(source.train, "fit: data")
    if not isinstance(data, Dataset):  # which holds what it says it does
        checked_x(pair, data, "fit: data")
    if valid is not None:
        refuse_unlike(valid, source.train)
        checked_x(pair, valid, "fit: valid")
    check("fit: ", num_epochs=num_epochs, valid_every=valid_every, patience=patience, resume=resume)
    check("fit: ", max_seconds=max_seconds, checkpoint_every=checkpoint_every, log_every=log_every, progress=progress)
    if patience is not None:
        if source.valid is None:
            refuse("fit: patience", "None where nothing is validated; give valid=, or leave it out", patience)
        if valid_every > num_epochs:
            refuse("fit: valid_every", f"at most the {num_epochs} epochs that patience is to end", valid_every)
    devices = as_mesh(mesh, "fit: mesh")
    layout = Layout(num_data, (1 if devices is None else devices.size) if shards is None else shards, devices)
    layout.check_batch(batch_size, "fit: batch_size")
    bounds.parse(valid_bound)
    require(out is None or isinstance(out, str | Path) and str(out) != "", "fit: out", "None or a directory", out)
    per_epoch = layout.steps_per_epoch(batch_size)
    total = num_epochs * per_epoch
    require(total < 2**31, "fit: num_epochs", f"less than 2^31 steps at {per_epoch} steps per epoch", num_epochs)
    checkpoint_every = per_epoch if checkpoint_every is None else checkpoint_every
    optimizer = as_optimizer(optimizer, lr)
    key_init, key_valid = jax.random.split(root_key(seed))
    description, text = described(estimator)
    identity = {
        **(about or {}),
        "estimator_settings": text,
        "data_fingerprint": source.fingerprint,
        "batch_size": batch_size,
        "seed": seed,
        **({"shards": layout.num_shards} if layout.num_shards > 1 else {}),
    }
    together = Together(layout)
    limits = (num_epochs, valid_bound, valid_every, patience, max_seconds, checkpoint_every, log_every)
    with loss_of_a_process():
        together.wait()
        together.refuse_others(
            {
                "version of relbo": __version__,
                "data": source.fingerprint,
                "settings": [identity, limits, config],
                "directory": str(out),
                "parameters": digests(pair),
            }
        )
    from_disk, per_step = isinstance(source.train, RowFiles), batch_size // layout.num_shards
    settings = Settings(estimator, optimizer, source.transform, batch_size, in_order=from_disk)
    chunk = make_chunk_on(layout, settings, is_of_rows(estimator, key_init, pair, layout))
    with ExitStack() as stack:
        directory = None
        if out is not None:
            directory = RunDirectory(
                Path(out), identity, description, config, resume=resume, together=together, parts=layout.num_shards
            )
            stack.callback(directory.close)
        run = OpenRun(init_state_on(layout, key_init, pair, estimator, optimizer), directory, layout.mesh)

        def say(number: int) -> None:
            LOGGER.warning(answer(number, is_compiled=run.is_compiled, is_saved=out is not None))

        asked = stack.enter_context(stop_requests(say))
        stack.enter_context(loss_of_a_process(run.safe))
        first = int(run.state.step)
        if first > total:
            had = f"at least the {first / per_epoch:g} that {out} has had already"
            refuse("fit: num_epochs", f"{had}, so that it can go on", num_epochs)
        shown = stack.enter_context(
            _progress_bar(total, int(run.state.step), wanted=progress if together.is_writer else False)
        )

        feed: AbstractFeed = (
            DiskFeed(layout, source.train, run.state.key, per_step, min(log_every, checkpoint_every, per_epoch))
            if from_disk
            else ResidentFeed(layout, source.train, run.state.key, per_step)
        )
        stack.callback(feed.close)
        marks = (log_every, checkpoint_every, per_epoch)

        def is_time_up() -> bool:
            return run.counters.seconds >= (max_seconds or math.inf)

        def is_over() -> bool:
            return int(run.state.step) >= total or run.counters.stale >= (patience or math.inf) or is_time_up()

        def visit_from(step: int) -> Visit:
            stop = min(total, step + feed.most_steps, *(step // mark * mark + mark for mark in marks))
            return Visit(*divmod(step, per_epoch), stop - step)

        if not is_over():
            run.compile(chunk, feed.part(visit_from(int(run.state.step))))
            together.wait()
        run.begin()
        signal = together.agreed(0.0, asked.number)[1]
        while not is_over() and signal is None:
            visit = visit_from(step := int(run.state.step))
            part, stop = feed.part(visit), step + visit.num_steps
            if stop < total:
                feed.expect(visit_from(stop))
            record = run.advance(chunk, part, visit.num_steps)
            run.counters.seconds, signal = together.agreed(run.counters.seconds, asked.number)
            if step == first:  # optimisers are functions, which can only be compared by what they do
                together.refuse_others({"parameters after its first steps": digests(run.state.pair)})
            record["epoch"] = int(run.state.step) / per_epoch
            is_due = stop % (per_epoch * valid_every) == 0 or is_time_up()  # what time allowed is to be judged whole
            if is_due and source.valid is not None:
                run.validate(source.valid, valid_bound, key_valid, record)
            run.record(record)
            if stop % checkpoint_every == 0 or stop == total:
                run.save()
            if shown is not None:
                shown.update(stop, record)
        run.save()
        together.wait()
        return _result(run, signal, is_finished=int(run.state.step) >= total, is_time_up=is_time_up())


def digests(tree: PyTree) -> list[str]:
    """Hashes of the arrays of a tree, of which every process has a copy."""
    return [array_digest(np.asarray(leaf)) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def _result(run: OpenRun, signal: int | None, *, is_finished: bool, is_time_up: bool) -> FitResult:
    reasons = {"finished": is_finished, "interrupted": signal is not None, "time": is_time_up, "early": True}
    return FitResult(
        pair=run.state.pair,
        best=run.state.pair if run.counters.best_bound is None else run.best,
        best_bound=run.counters.best_bound,
        state=run.state,
        metrics=run.log.records,
        stopped=next(name for name, holds in reasons.items() if holds),
        signal=signal,
    )


def _progress_bar(total: int, done: int, *, wanted: bool | None) -> Any:
    from relbo.train.progress import progress_bar  # only who trains pays for rich

    return progress_bar(total, done, wanted=wanted)
