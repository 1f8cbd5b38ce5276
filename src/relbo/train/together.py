"""Several processes as one run: what they must agree on, and who writes.

Every process runs the same program. All take part in collectives and in checkpoints; the first alone writes the other
files. What only one of them can know, such as a signal or a full disk, is told to all before it is acted upon, so that
none waits for another for ever.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np

from relbo.train.errors import TrainingError, first_line
from relbo.train.layout import Layout

PATIENCE = 1_800
"""Seconds that a process waits for the others to compile."""
Result = TypeVar("Result")


class Together:
    """The processes of a run.

    Args:
        layout: whose devices' processes they are.
    """

    def __init__(self, layout: Layout) -> None:
        devices = [] if layout.mesh is None else list(layout.mesh.devices.flat)
        self.count = len({device.process_index for device in devices}) or 1
        if self.count not in (1, jax.process_count()):
            raise ValueError(
                f"the mesh must have devices of all {jax.process_count()} processes, or of one alone; got {self.count}."
            )
        if devices and jax.process_index() not in {device.process_index for device in devices}:
            raise ValueError("the mesh has no device of this process: give one of all devices, jax.devices().")
        self.is_writer = self.count == 1 or jax.process_index() == 0
        self._barriers = 0

    def wait(self) -> None:
        """Waits for all, without a collective: those give up after half a minute, and some compile for longer."""
        if self.count == 1:
            return
        from orbax.checkpoint import multihost

        self._barriers += 1
        multihost.get_barrier_sync_fn()(key=f"relbo-{self._barriers}", timeout_ms=1_000 * PATIENCE)

    def gathered(self, value: np.ndarray) -> np.ndarray:
        """The arrays of all processes, of one shape, along a new first axis."""
        if self.count == 1:
            return value[None]
        from jax.experimental import multihost_utils

        # as bytes: without x64 JAX would round what is wider than 32 bits
        flat = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        found = np.asarray(multihost_utils.process_allgather(flat)).reshape(self.count, -1)
        return np.frombuffer(found.tobytes(), value.dtype).reshape(self.count, *value.shape)

    def largest(self, *numbers: float) -> list[float]:
        """The largest of each number over the processes."""
        return self.gathered(np.asarray(numbers, np.float64)).max(axis=0).tolist()

    def agreed(self, seconds: float, signal: int | None) -> tuple[float, int | None]:
        """The time that the slowest counts, and the signal that any process was sent, if one was."""
        if self.count == 1:
            return seconds, signal
        seconds, number = self.largest(seconds, signal or 0)
        return seconds, int(number) or None

    def refuse_others(self, facts: Mapping[str, Any]) -> None:
        """Raises `ValueError` everywhere if some process was started with other facts, and names them."""
        if self.count == 1:
            return
        own = {"version of Python, JAX or NumPy": [platform.python_version(), jax.__version__, np.__version__], **facts}
        texts = [json.dumps(value, sort_keys=True, default=str) for value in own.values()]
        digests = np.stack([np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in texts])
        found = self.gathered(digests)
        for i, name in enumerate(own):
            others = [process for process in range(self.count) if not np.array_equal(found[process, i], found[0, i])]
            if others:
                raise ValueError(
                    f"all processes of a run must have the same {name}: process {others[0]} has another than process "
                    "0; start them with the same command, data and software."
                )

    def told(self, action: Callable[[], Any]) -> Any:
        """What `action`, plain JSON, gave to the writer; what it raised there is raised everywhere."""
        if self.count == 1:
            return action()
        error: BaseException | None = None
        answer: dict[str, Any] = {}
        if self.is_writer:
            try:
                answer = {"value": action()}
            except (ValueError, OSError) as found:
                error, answer = found, {"kind": type(found).__name__, "error": str(found)}
        answer = json.loads(self._from_writer(json.dumps(answer).encode()))
        if error is not None:
            raise error
        if "error" in answer:
            kind = OSError if answer["kind"].endswith("Error") and answer["kind"] != "ValueError" else ValueError
            raise kind(answer["error"])
        return answer["value"]

    def _from_writer(self, text: bytes) -> bytes:
        size = int(self.largest(len(text) if self.is_writer else 0)[0])
        padded = np.zeros(size, np.uint8)
        if self.is_writer:
            padded[:] = np.frombuffer(text, np.uint8)
        return self.gathered(padded)[0].tobytes()

    def all_succeed(self, action: Callable[[], Result], kind: type[Exception]) -> Result:
        """What `action` gives here, once it succeeded everywhere; else its error, or `kind` where it did."""
        if self.count == 1:
            return action()
        error: Exception | None = None
        result: Any = None
        try:
            result = action()
        except Exception as found:
            error = found
        failed = np.flatnonzero(self.gathered(np.asarray([error is not None])).reshape(-1))
        if error is not None:
            raise error
        if failed.size:
            raise kind(f"process {failed[0]} of the run could not do this; see what it says.")
        return result


@contextmanager
def loss_of_a_process(safe: Callable[[], str] = lambda: "Nothing was written yet.") -> Iterator[None]:
    """Says in one sentence that another process is gone, wherever the runtime noticed it.

    Args:
        safe: what to add, such as which checkpoint is whole.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not _is_loss(cause):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise TrainingError(
            f"training stopped: another process of the run ended or cannot be reached ({first_line(cause)}). {safe()} "
            "Start all processes again with --resume, on as many devices as you like."
        ) from error


def _is_loss(error: BaseException) -> bool:
    signs = ("Gloo", "Connection closed", "coordination service", "NCCL", "heartbeat", "by peer")
    is_runtimes = isinstance(error, jax.errors.JaxRuntimeError | ValueError)  # some come out of JAX as the latter
    return is_runtimes and any(sign in str(error) for sign in signs)
