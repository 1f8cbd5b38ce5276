"""The run directory is owned: nothing foreign is touched, one writer at a time, and damage is named."""

import json
import os
import shutil
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import relbo
from relbo.train.errors import Damaged, RunWarning, TrainingError
from relbo.train.lock import WriterLock
from relbo.train.log import Mark, MetricsLog, read_metrics
from relbo.train.sealed import read_sealed, write_sealed

ROWS = np.random.default_rng(0).integers(0, 2, (24, 5)).astype(float)
OPTIONS = {"num_epochs": 3, "batch_size": 8, "checkpoint_every": 3, "log_every": 1, "valid": ROWS[:8]}
OPTIONS |= {"valid_bound": "is:2"}


def make_pair():
    return relbo.sbn(jax.random.key(0), [2], jnp.asarray(ROWS.mean(axis=0)))


def fit(out, **options):
    return relbo.fit(make_pair(), relbo.RLOO(2), ROWS, out=out, **{**OPTIONS, **options})


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with checkpoints of steps 6 and 9; look, do not touch."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with jax.numpy_dtype_promotion("standard"):
        return out, fit(out)


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "notes.txt", "checkpoints/3/x"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_the_users_is_left_alone(tmp_path, name, resume):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="is not empty and has no run.json, so it is not a run of relbo's"):
        fit(tmp_path, resume=resume)
    assert contents(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"optimizer": "lbfgs"}, {"valid_bound": "is:x"}, {"log_every": 0}, {"valid": ROWS[:0]}],
    ids=str,
)
def test_a_refused_setting_leaves_no_trace(tmp_path, options):
    with pytest.raises(ValueError, match="must be|cannot be used"):
        fit(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_traced_leaves_no_trace(tmp_path):
    class Wrong(relbo.AbstractModel):
        a: jax.Array

        def log_joint(self, x, z):
            return self.a + x  # a vector

        def sample(self, key):
            raise AssertionError("not used")

    with pytest.raises(ValueError, match="must return one number"):
        pair = relbo.Pair(Wrong(jnp.zeros(())), make_pair().proposal)
        relbo.fit(pair, relbo.RLOO(2), ROWS, num_epochs=1, batch_size=8, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_writer_at_a_time(copied):
    before = contents(copied)
    lock = WriterLock(copied)
    with pytest.raises(ValueError, match=rf"is being written by process {os.getpid()} on .*: wait for it to end"):
        fit(copied, resume=True)
    lock.release()
    assert {name: content for name, content in contents(copied).items() if name != ".lock"} == {
        name: content for name, content in before.items() if name != ".lock"
    }
    assert relbo.load(copied, make_pair).step == 9  # readers are never blocked
    fit(copied, resume=True)


def test_the_lock_dies_with_its_process(tmp_path):
    script = f"from pathlib import Path; from relbo.train.lock import WriterLock; WriterLock(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", script + "; import os; os._exit(9)"], check=False)
    assert (tmp_path / ".lock").read_text().startswith("process ")
    WriterLock(tmp_path).release()


def test_no_locks_is_said(tmp_path, monkeypatch):
    import errno
    import fcntl

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(RunWarning, match="cannot be locked: its file system has none .No locks available"):
        WriterLock(tmp_path).release()


def damage(path):
    content = path.read_bytes()
    path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])


def data_file(step):
    """The file of a checkpoint with the arrays of all that the next step needs."""
    return max((step / "rest").rglob("d/*"), key=lambda path: path.stat().st_size)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(finished, copied):
    for path in (copied / "checkpoints" / "9").rglob("d/*"):
        damage(path)
    message = r"checkpoint .*/9 cannot be read.*The one of step 6 is whole: `relbo train --resume"
    with pytest.raises(Damaged, match=message):
        relbo.load(copied, make_pair)
    with pytest.warns(RunWarning, match=r"checkpoint .*/9 cannot be read.*Going on from step 6\."):
        again = fit(copied, resume=True)
    assert bool(eqx.tree_equal(again.state, finished[1].state)) and again.best_bound == finished[1].best_bound
    assert {path.name for path in (copied / "checkpoints").iterdir()} == {"6", "9", "9.damaged"}
    assert relbo.load(copied, make_pair).metrics == again.metrics


def test_no_whole_checkpoint_is_refused(copied):
    for path in (copied / "checkpoints").rglob("d/*"):
        damage(path)
    before = contents(copied)
    with pytest.raises(Damaged, match="No other checkpoint of this run is whole"):
        relbo.load(copied, make_pair)
    with pytest.raises(Damaged, match="9 cannot be read"):
        fit(copied, resume=True)
    assert contents(copied).keys() == before.keys()


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_other_files_are_sealed_too(copied, name):
    text = (copied / name).read_text()
    number = next(i for i, c in enumerate(text) if c in "123456")
    (copied / name).write_text(text[:number] + "7" + text[number + 1 :])
    with pytest.raises(Damaged, match=f"{name}.* is damaged or was changed"):
        relbo.load(copied, make_pair)
    with pytest.raises(Damaged, match=f"{name}.* is damaged or was changed"):
        fit(copied, resume=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff\xfe", b'{"a": 1}', b"[" * 100_000, b'{"sha256": NaN}', b"1" * 5_000, b"null"],
    ids=len,
)
def test_what_is_not_the_description_of_a_run(copied, content):
    (copied / "run.json").write_bytes(content)
    with pytest.raises(Damaged, match="expected the description of a run|has no content hash|is damaged"):
        relbo.load(copied, make_pair)


def test_records_that_got_lost_are_noticed(copied):
    log = copied / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    for kept in (lines[:-1], lines[1:], [*lines[:3], *lines[4:]], []):
        log.write_text("".join(kept))
        with pytest.raises(Damaged, match="metrics.jsonl"):
            relbo.load(copied, make_pair)
    log.unlink()
    with pytest.raises(Damaged, match=r"expected the 9 records that the checkpoint counts, got 0\."):
        relbo.load(copied, make_pair)


def test_the_log_goes_back_to_a_mark(tmp_path):
    log = MetricsLog(tmp_path / "log", "run")
    marks = []
    for step in range(4):
        log.append({"step": step, "bound": float("nan")})
        marks.append(log.mark())
    assert marks[2].num_records == 3
    with (tmp_path / "log").open("a") as file:
        file.write('{"step": 4')
    again = MetricsLog(tmp_path / "log", "run")
    again.rewind(marks[1])
    again.rewrite()
    again.append({"step": 2, "bound": None})
    assert again.mark() == marks[2] and len(read_metrics(tmp_path / "log", "run", marks[2])) == 3
    with pytest.raises(Damaged, match="expected the 4 records"):
        read_metrics(tmp_path / "log", "run", marks[3])
    with pytest.raises(Damaged, match="line 1"):
        read_metrics(tmp_path / "log", "another", None)
    assert read_metrics(tmp_path / "nothing", "run", Mark(0, "run")) == []


def test_files_of_two_runs_are_not_mixed(finished, copied, tmp_path):
    fit(tmp_path / "other", optimizer=optax.adam(1e-2))
    for name in ("run.json", "metrics.jsonl", "checkpoints"):
        mixed = tmp_path / f"with {name}"
        shutil.copytree(copied, mixed)
        shutil.rmtree(mixed / name) if (mixed / name).is_dir() else (mixed / name).unlink()
        source = tmp_path / "other" / name
        shutil.copytree(source, mixed / name) if source.is_dir() else shutil.copy(source, mixed / name)
        with pytest.raises(Damaged, match=r"it is of run|does not have the hash"):
            relbo.load(mixed, make_pair)


def test_seals_survive_their_file(tmp_path):
    value = {"a": [1, 2.5, None, "x"], "b": {"c": 1e-300, "d": float("inf")}}
    write_sealed(tmp_path / "file", value)
    assert read_sealed(tmp_path / "file", "it") == {"a": [1, 2.5, None, "x"], "b": {"c": 1e-300, "d": None}}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_fills_is_one_sentence_with_the_step_that_is_safe(copied, monkeypatch):
    def append(self, record):
        raise OSError(f"{self._path} cannot be written: No space left on device.")

    monkeypatch.setattr(MetricsLog, "append", append)
    with pytest.raises(OSError, match=r"metrics.jsonl cannot be written: No space left .* step 9 in .* is whole"):
        fit(copied, num_epochs=4, resume=True)


def test_a_bound_that_loses_all_scale_stops_the_run(tmp_path):
    with pytest.raises(TrainingError, match=r"lost all scale, it was -.* at first and is -.*Lower the learning rate"):
        fit(tmp_path / "run", optimizer=optax.sgd(1e4), num_epochs=50)
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["bound"] > -1e6
