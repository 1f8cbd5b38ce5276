"""The run directory: who may begin one, who may go on with it, and what its files say.

| file | what it holds |
| `run.json` | what the run is; written once, with a name that all other files repeat |
| `config.json` | runs of the command line: every setting |
| `metrics.jsonl`, `checkpoints/` | see `log.py` and `checkpoint.py` |
| `.lock` | held by the one writer, see `lock.py` |

Nothing is written into a folder that holds other things, and nothing before all is known to be good.
"""

import json
import os
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import jax

from relbo._check import shortened
from relbo._disk import PART, naming, refuse_unwritable
from relbo.train.checkpoint import Checkpoints
from relbo.train.errors import Damaged
from relbo.train.lock import FILE as LOCK
from relbo.train.lock import WriterLock
from relbo.train.log import Mark
from relbo.train.sealed import read_sealed, write_sealed
from relbo.train.together import Together

RUN, CONFIG, METRICS, CHECKPOINTS = "run.json", "config.json", "metrics.jsonl", "checkpoints"
BESIDE = (LOCK, "cell.json", ".cell.lock")
"""What may lie in a folder where a run begins: a lock, and what `relbo reproduce table1` has of the cell."""


class Description(NamedTuple):
    """What run.json says."""

    name: str
    """Tells this run from all others."""
    relbo: str
    """The version that began it."""
    identity: dict[str, Any]
    """What a resumed run must share."""
    estimator: Any
    """Its description, see `describe.py`; None if it has none."""


def read_description(path: Path) -> Description:
    """Reads RUN/run.json."""
    file = path / RUN
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a run directory: expected the file {file}.")
    found = read_sealed(file, "the description of a run")
    try:
        description = Description(**found)
    except TypeError as error:
        raise Damaged(f"{file}: expected the description of a run, got {error}.") from error
    if not isinstance(description.name, str) or not isinstance(description.identity, dict):
        raise Damaged(f"{file}: expected the description of a run, got other types.")
    return description


def read_config(path: Path) -> dict[str, Any]:
    """Reads RUN/config.json, the settings of the run that run.json describes."""
    file = path / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a run of `relbo train`: expected the file {file}.")
    found = read_sealed(file, "the configuration of a run")
    name = read_description(path).name
    if found.get("run") != name or not isinstance(found.get("settings"), dict):
        raise Damaged(f"{file} is damaged or of another run: it names run {found.get('run')!r}, {RUN} {name!r}.")
    return found["settings"]


def checkpoints_of(path: Path, name: str) -> Checkpoints:
    """The checkpoints of a run, to be read."""
    return Checkpoints(path / CHECKPOINTS, name)


def mark_of(record: dict[str, Any]) -> Mark:
    """How far the metrics had come when a checkpoint was made."""
    return Mark(*record["metrics"])


class RunDirectory:
    """A run directory and the right to write it.

    Args:
        path: the directory.
        identity: what identifies the run, plain JSON.
        estimator: description of its estimator.
        config: settings to keep in config.json; None keeps none.
        resume: whether a run that is there already is to be continued.
        together: the processes of the run; the first of them alone looks, locks and writes.
        parts: the shards of the run, see `Checkpoints`.

    Raises:
        ValueError: the directory holds something else, a run of other settings, or another process writes it. Then
            nothing in it has changed.
    """

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        estimator: Any,
        config: dict[str, Any] | None,
        *,
        resume: bool,
        together: Together,
        parts: int = 1,
    ) -> None:
        self.path = path
        self._config = config
        self._lock: WriterLock | None = None
        self.together = together
        if together.count < jax.process_count():
            raise ValueError(
                f"{jax.process_count()} processes were joined, and a run directory is written by all of them: give a "
                "mesh of all devices, jax.devices(), or out=None."
            )
        self.is_new, description = together.told(lambda: self._claim(identity, estimator, resume=resume))
        self.description = Description(*description)
        self.checkpoints = Checkpoints(path / CHECKPOINTS, self.description.name, together=together, parts=parts)

    def _claim(self, identity: dict[str, Any], estimator: Any, *, resume: bool) -> tuple[bool, Description]:
        from relbo import __version__

        refuse_foreign(self.path, resume=resume)
        if not (self.path / RUN).exists():
            return True, Description(uuid.uuid4().hex, __version__, identity, estimator)
        description = read_description(self.path)
        refuse_other_run(self.path, description.identity, identity)
        if self._config is not None and (self.path / CONFIG).exists():
            read_config(self.path)
        self._lock = WriterLock(self.path)
        return False, description

    def write(self) -> None:
        """Makes the directory what it was claimed for; called when all that the run needs is known to be good."""
        self.together.told(self._write)

    def _write(self) -> None:
        with naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = WriterLock(self.path)
            refuse_foreign(self.path, resume=False)  # another process may have been faster
        for left in self.path.glob(f".*{PART}"):
            left.unlink()
        self.checkpoints.sweep()
        if self.is_new:
            write_sealed(self.path / RUN, self.description._asdict())
        if self._config is not None:
            write_sealed(self.path / CONFIG, {"run": self.description.name, "settings": self._config})

    def close(self) -> None:
        """Lets others write."""
        if self._lock is not None:
            self._lock.release()


def refuse_foreign(path: Path, *, resume: bool) -> None:
    """Raises `ValueError` for a place where no run may begin, or go on; changes nothing."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"a run directory must be a folder, got the file {path}; choose another.")
    if (path / RUN).exists():
        if not resume:
            raise ValueError(
                f"{path} holds a run already: pass --resume (in Python resume=True) to go on with it, or choose "
                "another directory."
            )
        return
    refuse_unwritable(path / RUN)
    if not path.is_dir():
        return
    others = sorted(name for name in os.listdir(path) if name not in BESIDE and not name.endswith(PART))
    if others:
        raise ValueError(
            f"{path} is not empty and has no {RUN}, so it is not a run of relbo's: it holds {shortened(others)}; "
            "choose an empty or new directory."
        )


def refuse_other_run(out: Path, recorded: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raises `ValueError` that names what differs, if a directory holds something made with other settings."""
    recorded, asked = json.loads(json.dumps(recorded)), json.loads(json.dumps(asked))
    wrong = [name for name in recorded.keys() | asked.keys() if recorded.get(name) != asked.get(name)]
    if wrong:
        differences = "; ".join(
            f"{name} was {recorded.get(name)!r} and is now {asked.get(name)!r}" for name in sorted(wrong)
        )
        raise ValueError(f"{out} cannot be resumed with another configuration: {differences}.")
