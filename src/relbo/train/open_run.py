"""What a run carries from chunk to chunk, and how it gets to and from its directory."""

import dataclasses
import math
import time
import warnings
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from relbo import bounds
from relbo.evaluate import evaluate
from relbo.train.checkpoint import Checkpoints
from relbo.train.directory import METRICS, RunDirectory, mark_of
from relbo.train.errors import Damaged, RunWarning, TrainingError, runtime_message
from relbo.train.feed import Part
from relbo.train.log import MetricsLog
from relbo.train.loop import Chunk, TrainState
from relbo.train.starving import LOGGER, edge_message, left_out_message, watch
from relbo.types import Pair

SCALE_LOST = 1e4
"""A bound that many times lower than the first one is no longer that of a model."""


@dataclasses.dataclass
class Counters:
    """What a run counts on the host; saved with every checkpoint."""

    num_proposals: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of all threads of this process: what the steps took, whatever else the machine did at the time."""
    best_bound: float | None = None
    stale: int = 0
    """Validations since the best one."""
    first_bound: float | None = None
    """Mean bound of the first record, by which later ones are judged."""
    starved: int = 0
    """Steps up to now, without a break, in which most rows ran out of proposals."""


class OpenRun:
    """A run in memory and, if it has a directory, on disk.

    Args:
        state: before the first step.
        directory: the run directory, claimed; None keeps everything in memory.
        mesh: the devices, for validation.
    """

    def __init__(self, state: TrainState, directory: RunDirectory | None, mesh: Mesh | None = None) -> None:
        self.state = state
        self._mesh = mesh
        self.best: Pair = state.pair
        self.counters = Counters()
        self._warned = self._told = self._told_of_edge = self.is_compiled = False
        self._directory = directory
        self._saved: int | None = None
        self._damaged: list[tuple[int, Damaged]] = []
        name = "" if directory is None else directory.description.name
        writes = directory is None or directory.together.is_writer
        self.log = MetricsLog(None if directory is None else directory.path / METRICS, name, writes=writes)
        if directory is not None and not directory.is_new:
            self._restore(directory.checkpoints)

    def _restore(self, checkpoints: Checkpoints) -> None:
        """Takes the state of the newest whole checkpoint; nothing is written."""
        mark = None
        for step in reversed(checkpoints.steps()):
            try:
                items, record = checkpoints.restore(step, self._items())
            except Damaged as error:
                self._damaged.append((step, error))
                continue
            self.state, self.best = TrainState(pair=items["pair"], **items["rest"]), items["best"]
            self.counters = Counters(**record["counters"])
            self._saved, mark = step, mark_of(record)
            break
        if self._damaged and self._saved is None:
            raise self._damaged[0][1]
        self.log.rewind(mark)

    def begin(self) -> None:
        """Makes the directory ready for this run to write, and says if checkpoints in it are damaged."""
        if self._directory is None:
            return
        self._directory.write()
        self.log.rewrite()
        for step, error in self._damaged:
            if self._directory.together.is_writer:
                self._directory.checkpoints.set_aside(step)
            warnings.warn(f"{error} Going on from step {self._saved}.", RunWarning, stacklevel=3)

    def compile(self, chunk: Any, part: Part) -> None:
        """Compiles a chunk, by taking no step; what is wrong with model and estimator shows here."""
        zero = jnp.asarray(0, jnp.int32)
        jax.block_until_ready(chunk(self.state, part.data, part.order, zero, zero))
        self.is_compiled = True

    def advance(self, chunk: Any, part: Part, count: int) -> dict[str, Any]:
        """Takes `count` steps and reports on them."""
        step = int(self.state.step)
        args = (part.data, part.order, jnp.asarray(part.first, jnp.int32), jnp.asarray(count, jnp.int32))
        start, cpu_start = time.perf_counter(), time.process_time()
        try:
            state, report = jax.block_until_ready(chunk(self.state, *args))
        except eqx.EquinoxRuntimeError as error:
            self._stop(f"between steps {step} and {step + count}", runtime_message(error))
        self.counters.seconds += time.perf_counter() - start
        self.counters.cpu_seconds += time.process_time() - cpu_start
        self._refuse_fault(step + int(report.num_steps), report)
        self.state = state
        share = float(report.extra.get("exhausted", 0.0))
        if report.num_left_out > 0 and not self._told:
            LOGGER.warning(left_out_message(int(report.num_left_out), int(state.step)))
            self._told = True
        self._warned, self.counters.starved = watch(
            share,
            count,
            self.counters.starved,
            warned=self._warned,
            all_left_out=math.isnan(float(report.bound)),
        )
        if not self._told_of_edge and report.extra.get("edge", 0.0) > 0:
            LOGGER.warning(edge_message())
            self._told_of_edge = True
        self.counters.num_proposals += float(report.num_proposals)
        return {
            "step": int(self.state.step),
            "bound": float(report.bound),
            "num_proposals": self.counters.num_proposals,
            "num_left_out": float(report.num_left_out),
            "seconds": self.counters.seconds,
            "cpu_seconds": self.counters.cpu_seconds,
            **{name: float(value) for name, value in report.extra.items()},
        }

    def _refuse_fault(self, step: int, report: Chunk) -> None:
        for message, is_bad in report.fault.refused.items():
            if bool(is_bad):
                self._stop(f"at step {step}", message)
        causes = {
            "the bound of a datapoint": report.fault.bound,
            "the model's gradient": report.fault.model,
            "the proposal's gradient": report.fault.proposal,
        }
        found = [name for name, is_bad in causes.items() if bool(is_bad)]
        if found:
            advice = "Lower the learning rate, or look for log p = -inf in the model."
            self._stop(f"at step {step}", f"{' and '.join(found)} is not finite. {advice}")
        bound = float(report.bound)
        if self.counters.first_bound is None and not math.isnan(bound):
            self.counters.first_bound = bound
        if self.counters.first_bound is not None and bound < -SCALE_LOST * max(1.0, abs(self.counters.first_bound)):
            self._stop(
                f"by step {step}",
                f"the bound has lost all scale, it was {self.counters.first_bound:.4g} at first and is {bound:.4g}. "
                "Lower the learning rate, or use a schedule.",
            )

    def _stop(self, where: str, why: str) -> NoReturn:
        """Ends the run with what happened and where it can go on."""
        safe = "" if self._directory is None else f" {self.safe()}"
        raise TrainingError(f"training stopped {where}: {why}{safe}")

    def safe(self) -> str:
        """The sentence that says which checkpoint is whole."""
        if self._directory is None or self._saved is None:
            return "No checkpoint was saved yet."
        return f"The checkpoint of step {self._saved} in {self._directory.path} is whole."

    def _evaluated(self, valid: PyTree, name: str, key: jax.Array) -> float:
        found = evaluate(self.state.pair, valid, [name], key=key, repeats=1, mesh=self._mesh)
        return found[str(bounds.parse(name))].mean

    def validate(self, valid: PyTree, name: str, key: jax.Array, record: dict[str, Any]) -> None:
        """Records the validation bound and keeps the best parameters."""
        bound = self._evaluated(valid, name, key)
        if not np.isfinite(bound):
            self._stop(
                f"at step {int(self.state.step)}",
                f"the validation bound {name} is {bound}. Lower the learning rate, or look for datapoints that the "
                "model holds to be impossible.",
            )
        record["valid_bound"] = bound
        if self.counters.best_bound is None or bound > self.counters.best_bound:
            self.counters.best_bound, self.counters.stale = bound, 0
            self.best = self.state.pair
        else:
            self.counters.stale += 1

    def record(self, record: dict[str, Any]) -> None:
        """Adds a record to the metrics."""
        try:
            self.log.append(record)
        except OSError as error:
            raise OSError(f"{error} {self.safe()}") from error

    def save(self) -> None:
        """Writes a checkpoint, unless this step has one."""
        step = int(self.state.step)
        if self._directory is None or self._saved == step:
            return
        try:
            record = {"counters": dataclasses.asdict(self.counters), "metrics": list(self.log.mark())}
            self._directory.checkpoints.save(step, self._items(), record)
        except OSError as error:
            raise OSError(f"{error} {self.safe()}") from error
        self._saved = step

    def _items(self) -> dict[str, PyTree]:
        rest = {name: value for name, value in self.state._asdict().items() if name != "pair"}
        return {"pair": self.state.pair, "best": self.best, "rest": rest}
