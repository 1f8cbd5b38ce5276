"""What the cases act on: a folder with two small runs, data and a user's own files, and what commands say of them."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SMALL = {"layers": (2,), "num_samples": 2, "num_draws": 4, "batch_size": 8, "valid_bound": "is:2", "lr": 0.01}
RUNS = ("vrs", "rloo")
READERS = {
    "evaluate": ["evaluate", "{run}", "--bound", "elbo", "--limit", "3", "--repeats", "1", "--json"],
    "last": [
        "evaluate",
        "{run}",
        "--bound",
        "elbo",
        "--limit",
        "3",
        "--repeats",
        "1",
        "--json",
        "--parameters",
        "last",
    ],
    "compare": ["compare", "{run}", "{other}", "--bound", "elbo", "--limit", "3", "--repeats", "1", "--json"],
    "resume": ["train", "--resume", "--out", "{run}", "--quiet", "--log-every", "1", "--checkpoint-every", "3"],
}
"""Commands that read a run; the last one goes on with it, which leads a finished run to where it was."""


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str
    seconds: float


class World:
    """The folder and what is known of it."""

    def __init__(self, cache: Path | None = None) -> None:
        from relbo.lab.compiled import keep_compiled

        self.root = Path(tempfile.mkdtemp(prefix="relbo-fuzz-"))
        keep_compiled(cache or self.root.with_name("relbo-fuzz-cache"), min_seconds=0.0)
        for variable in ("RELBO_DATA",):
            os.environ.pop(variable, None)
        rows = np.random.default_rng(0).random((40, 6)) < np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.5])
        self.splits = {"train": rows[:24], "valid": rows[24:32], "test": rows[32:]}
        np.savez(self.root / "tiny.npz", **self.splits, image_shape=np.array([2, 3]))
        (self.root / "notes").mkdir()
        (self.root / "notes" / "config.json").write_text("my own")
        (self.root / "notes" / "metrics.jsonl").write_text("my own\n")
        os.chdir(self.root)
        self._train()
        self.scratch = self.root / "scratch"
        self.expected = {
            (name, run): self._read(name, self.root / run, self.root / RUNS[1 - RUNS.index(run)])
            for name in READERS
            for run in RUNS
        }
        self.fingerprint = self.command("data", "check", "tiny.npz").out
        self.before = contents(self.root)
        self.kept = {name: (self.root / name).read_bytes() for name in self.before}
        self.skeletons = {run: skeleton_of(self.root / run) for run in RUNS}
        self.expected |= {("everything", run): everything(self.root / run, self.skeletons[run]) for run in RUNS}

    def _train(self) -> None:
        from relbo.lab.config import RunConfig
        from relbo.lab.runs import train_run

        for name in RUNS:
            config = RunConfig(data="tiny.npz", estimator=name, threshold="rate:0.5", epochs=2, **SMALL)
            train_run(config, self.root / name, checkpoint_every=3, log_every=1)

    def _read(self, name: str, run: Path, other: Path) -> str:
        outcome = self.reader(name, run, other)
        if outcome.code != 0:
            raise RuntimeError(f"the undamaged run is refused: {outcome.err}")
        return self.comparable(name, run, outcome)

    def reader(self, name: str, run: Path, other: Path) -> Outcome:
        """Runs one of the reading commands, or reads all there is."""
        if name == "everything":
            begin = time.process_time()
            try:
                text, code = everything(run, self.skeletons[run.name]), 0
            except (ValueError, OSError) as error:
                return Outcome(2, "", f"relbo: error: {error}", time.process_time() - begin)
            return Outcome(code, text, "", time.process_time() - begin)
        return self.command(*(word.format(run=run, other=other) for word in READERS[name]))

    def comparable(self, name: str, run: Path, outcome: Outcome) -> str:
        """What a reading command gave, apart from where the run was and how long it took."""
        return state(run) if name == "resume" else outcome.out.replace(str(run), "RUN")

    def command(self, *words: str) -> Outcome:
        """Runs a command line in this process."""
        from relbo.lab.cli import main

        out, err = io.StringIO(), io.StringIO()
        begin = time.process_time()
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(list(words))
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        return Outcome(code, out.getvalue(), err.getvalue(), time.process_time() - begin)

    def copy(self, run: str) -> Path:
        """A fresh copy of a run, to be damaged."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.root / run, self.scratch / run)
        return self.scratch / run

    def had(self, owned: str | None) -> bool:
        """Whether there was something under a name before any case."""
        return owned is not None and any(name == owned or name.startswith(f"{owned}/") for name in self.before)

    def restore(self, owned: str | None) -> None:
        """Makes what a command was allowed to write what it was before."""
        if owned is None or str((self.root / owned).resolve()).startswith(str(self.scratch)):
            return
        for name in self.changed():
            if name == owned or name.startswith(f"{owned}/"):
                if name in self.kept:
                    (self.root / name).write_bytes(self.kept[name])
                else:
                    (self.root / name).unlink()
        if not self.had(owned):
            shutil.rmtree(self.root / owned, ignore_errors=True)

    def changed(self) -> list[str]:
        """Names of files outside of the scratch folder that are not what they were."""
        now = contents(self.root)
        names = {name for name in now.keys() | self.before.keys() if not name.startswith("scratch/")}
        return sorted(name for name in names if now.get(name) != self.before.get(name))

    def close(self) -> None:
        """Removes everything."""
        os.chdir("/")
        shutil.rmtree(self.root, ignore_errors=True)


def state(run: Path) -> str:
    """The hashes of all arrays of a run's last checkpoint, what it counted, and its records, without times."""
    last = max((path for path in (run / "checkpoints").iterdir() if path.name.isdecimal()), key=lambda p: int(p.name))
    record = json.loads((last / "record" / "metadata").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for clock in ("seconds", "cpu_seconds"):
        record["record"]["counters"].pop(clock)
    timeless = [{k: v for k, v in line.items() if k not in ("seconds", "cpu_seconds", "sha256")} for line in lines]
    return json.dumps([record["step"], record["arrays"], record["record"]["counters"], timeless], sort_keys=True)


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def skeleton_of(run: Path) -> dict[str, Any]:
    """What the checkpoints of a run are restored into, as `fit` makes it."""
    import jax

    from relbo import data
    from relbo.lab.config import RunConfig, build_estimator, build_optimizer, build_pair
    from relbo.train.loop import init_state

    config = RunConfig.load(run)
    rows = data.load(config.data)
    pair, per_epoch = build_pair(config, rows), len(rows.train) // config.batch_size
    parts = build_estimator(config, per_epoch), build_optimizer(config, per_epoch * config.epochs)
    state = init_state(jax.random.key(0), pair, *parts, len(rows.train))
    rest = {name: value for name, value in state._asdict().items() if name != "pair"}
    return {"pair": pair, "best": pair, "rest": rest}


def everything(run: Path, skeletons: dict[str, Any]) -> str:
    """Every value that can be read from a run, all arrays of all checkpoints included."""
    from relbo.train.checkpoint import named_arrays
    from relbo.train.directory import METRICS, checkpoints_of, mark_of, read_config, read_description
    from relbo.train.log import read_metrics
    from relbo.train.sealed import array_digest

    description = read_description(run)
    checkpoints = checkpoints_of(run, description.name)
    text = repr([description, read_config(run)])
    for step in checkpoints.steps():
        items, record = checkpoints.restore(step, skeletons)
        arrays = {name: array_digest(array) for name, array in named_arrays(items).items()}
        text += repr([step, arrays, record, read_metrics(run / METRICS, description.name, mark_of(record))])
    return text
