"""`relbo train` and `relbo evaluate` as a user meets them: files, exit codes, one-line errors."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from relbo import data
from relbo.lab.cli import main
from relbo.lab.config import RunConfig
from relbo.train.directory import Description
from relbo.train.sealed import write_sealed

TINY = ["--layers", "4", "--num-samples", "2", "--batch-size", "64", "--valid-bound", "is:2", "--quiet"]


@pytest.fixture(autouse=True)
def standard_promotion():
    import jax

    with jax.numpy_dtype_promotion("standard"):
        yield


def run(*words):
    """Exit code of a command line."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0


def refused(capsys, *words):
    """The one line on standard error of a command that is refused."""
    assert run(*words) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert captured.out == "" and len(lines) == 1 and lines[0].startswith("relbo: error: ")
    return lines[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    import jax

    out = tmp_path_factory.mktemp("runs") / "rloo"
    with jax.numpy_dtype_promotion("standard"):
        assert run("train", "--estimator", "rloo", "--epochs", 2, "--out", out, *TINY) == 0
    return out


def test_half_of_a_run_is_without_rejection_by_default(trained):
    assert RunConfig.load(trained).warmup_epochs == 1.0  # of 2


DEFAULTS = {
    "the recipe": (["vrs"], 2, 6),
    "the paper's algorithm": (["vrs", "--num-samples", 5], 5, None),
    "a budget": (["vrs-raw", "--num-proposals", 9], 2, 9),
    "both": (["vrs", "--num-samples", 3, "--num-proposals", 4], 3, 4),
    "no budget": (["vimco"], 5, None),
    "no proposals of its own": (["vrs-all"], 5, None),
}


@pytest.mark.parametrize(("words", "num_samples", "num_proposals"), DEFAULTS.values(), ids=DEFAULTS)
def test_draws_by_default(monkeypatch, tmp_path, words, num_samples, num_proposals):
    seen = []

    def train_run(config, *args, **options):
        seen.append(config)
        raise ValueError("enough.")

    monkeypatch.setattr("relbo.lab.runs.train_run", train_run)
    assert run("train", "--estimator", *words, "--epochs", 40, "--out", tmp_path / "run") == 2
    (config,) = seen
    assert (config.num_samples, config.num_proposals) == (num_samples, num_proposals)
    assert (config.threshold, config.warmup_epochs, config.num_draws) == ("quantile:0.7", 20.0, 20)
    assert (config.valid_bound, config.valid_every) == ("is:100", 4)


def test_train_then_evaluate(trained, capsys, tmp_path):
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 2 * (1297 // 64) and records[-1]["epoch"] == 2
    assert records[-1]["num_proposals"] == records[-1]["step"] * 64 * 2
    out = tmp_path / "found.json"
    code = run("evaluate", trained, "--bound", "elbo", "--bound", "is:5", "--limit", 20, "--json", "--out", out)
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert [bound["bound"] for bound in printed["bounds"]] == ["elbo", "is:5"]
    assert printed["bounds"][0]["mean"] <= printed["bounds"][1]["mean"] + 1
    assert run("evaluate", trained, "--limit", 5, "--bound", "elbo") == 0
    assert "s.e." in capsys.readouterr().out


def test_resume_takes_the_runs_own_settings(trained, capsys):
    before = RunConfig.load(trained)
    assert run("train", "--resume", "--epochs", 3, "--quiet", "--out", trained) == 0
    capsys.readouterr()
    after = RunConfig.load(trained)
    assert after.epochs == 3 and after.layers == before.layers == (4,)
    assert "lr was 0.001 and is now 0.1" in refused(capsys, "train", "--resume", "--lr", 0.1, "--out", trained)
    assert "pass --resume" in refused(capsys, "train", "--out", trained, *TINY)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "4-x"], "--layers must be positive integers"),
        (["--estimator", "vsr"], "got 'vsr'; did you mean 'vrs'?"),
        (
            ["--estimator", "rloo", "--rate", "0.5"],
            "--rate means nothing to rloo, leave it out: it is for vrs, vrs-wake",
        ),
        (["--estimator", "vimco", "--acceptance", "hard"], "--acceptance means nothing to vimco"),
        (["--estimator", "rloo", "--threshold", "fixed:1"], "--threshold means nothing to rloo"),
        (["--estimator", "rloo", "--num-draws", "9"], "--num-draws means nothing to rloo"),
        (["--estimator", "rloo", "--refresh-epochs", "9"], "--refresh-epochs means nothing to rloo"),
        (["--estimator", "rloo", "--warmup-epochs", "9"], "--warmup-epochs means nothing to rloo"),
        (["--estimator", "vrs-all", "--num-proposals", "9"], "it is for vrs, vrs-wake, vrs-raw, vrs-path."),
        (["--rate", "0.5", "--refresh-epochs", "9"], "means nothing to the threshold rate:0.5, leave it out"),
        (["--threshold", "fixed:1", "--num-draws", "9"], "it is for quantile or rate."),
        (["--set", "throw=1", "--set", "throw=2"], "a setting must be given once, got throw twice: 1 and 2"),
        (
            ["--num-samples", "3", "--set", "num_samples=4"],
            "num_samples must be said once, got --num-samples and --set",
        ),
        (["--resume"], "to go on with: leave --resume out to begin one there"),
        (["--threshold", "quantil:0.9"], "did you mean 'quantile:0.9'?"),
        (["--acceptance", "sof:2"], "did you mean 'soft:2'?"),
        (["--valid-bound", "iss:25"], "did you mean 'is:25'?"),
        (["--schedule", "cosin"], "did you mean 'cosine'?"),
        (["--set", "num_sample=3"], "did you mean 'num_samples'?"),
        (["--threshold", "quantile:1.5"], r"gamma must be a number in (0, 1), or a schedule, got 1.5"),
        (["--threshold", "quantile:0.5", "--rate", "0.5"], "at most one of"),
        (["--num-samples", "1"], "num_samples must be an integer >= 2, got 1"),
        (
            ["--optimizer", "adman"],
            "optimizer must be the name of an Optax optimiser such as adam, got 'adman'; did you mean 'ada",
        ),
        (["--schedule", "steps"], "schedule must be one of constant, cosine, linear"),
        (["--lr", "-1"], "lr must be a number > 0"),
        (["--set", "speed=3"], "vrs has no setting 'speed'"),
        (["--set", "speed"], "a setting must be NAME=VALUE"),
        (
            ["--acceptance", "soft:x"],
            "acceptance must be soft:SHARPNESS (> 0), soft:SHARPNESS:FLOOR (in [0, 1)), hard or always",
        ),
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--batch-size", "5000"], "batch_size"),
        (["--batch-size", "0"], "batch_size must be an integer >= 1, got 0"),
        (["--lr", "1e30"], "lr must be a number <= 1000, got 1e+30"),
        (["--lr", "nan"], "lr must be a number > 0, got nan"),
        (["--refresh-epochs", "inf"], "refresh_epochs must be a number <= 1e+06, got inf"),
        (["--valid-bound", "is:99999999999999999999"], "a bound must be elbo, is:K or rs:K"),
        (["--optimizer", "lbfgs"], "optax.lbfgs cannot be used with these settings"),
        (["--optimizer-set", "b1=2"], "optimizer setting b1 must be a number in [0, 1), got 2"),
        (["--layers", "999999999999"], "layers must be a list in which each is an integer <= 100,000"),
        (["--layers", "99999-99999"], "layers must be a network that fits into"),
        (["--data-dir", "nowhere"], "the data directory nowhere does not exist"),
        (["--checkpoint-every", "0"], "--checkpoint-every must be an integer >= 1, got 0"),
        (["--epochs", "1" * 5000], "Invalid value for '--epochs'"),
        (["--out="], "no word of the command line may be empty, got an empty one at --out="),
        (["--no-such-flag"], "No such option: --no-such-flag"),
    ],
)
def test_train_refuses(capsys, tmp_path, words, message):
    assert message in refused(capsys, "train", "--out", tmp_path / "run", *words)
    assert not (tmp_path / "run").exists()


def test_what_bounds_do_not_need_is_refused(capsys, trained):
    assert "--rate are for the bounds rs:K, got only elbo, is:25" in refused(capsys, "evaluate", trained, "--rate", 0.5)


def test_the_version(capsys):
    import relbo

    assert run("--version") == 0
    assert capsys.readouterr().out == f"relbo {relbo.__version__}\n"


def test_out_that_cannot_be_written(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    assert "file" in refused(capsys, "train", "--out", file / "run", *TINY)
    assert file.read_text() == "mine"


def test_evaluate_refuses_what_is_not_a_run(capsys, tmp_path, trained):
    assert "is not a run" in refused(capsys, "evaluate", tmp_path / "missing")
    assert "a bound must be" in refused(capsys, "evaluate", trained, "--bound", "is")
    assert "split must be one of" in refused(capsys, "evaluate", trained, "--split", "tset")
    assert "best or last" in refused(capsys, "evaluate", trained, "--parameters", "worst")
    about = {"data_fingerprint": data.load("digits").fingerprint}
    write_sealed(tmp_path / "run.json", Description("name", "0", about, None)._asdict())
    write_sealed(tmp_path / "config.json", {"run": "name", "settings": dataclasses.asdict(RunConfig())})
    assert "no checkpoint yet" in refused(capsys, "evaluate", tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert "holds no whole checkpoint" in refused(capsys, "evaluate", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "expected the configuration of a run" in refused(capsys, "evaluate", tmp_path)


def test_a_limit_below_one_is_refused(capsys, trained):
    assert "--limit must be an integer >= 1, got -1" in refused(capsys, "evaluate", trained, "--limit=-1")


def test_help(capsys):
    for command in ("train", "evaluate"):
        assert run(command, "--help") == 0
        assert "Examples" in capsys.readouterr().out


def start(out, *words):
    return subprocess.Popen(
        [sys.executable, "-c", "from relbo.lab.cli import main; main()", "train", *TINY, "--out", str(out), *words],
        env={**os.environ, "JAX_ENABLE_X64": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path, number, process, seconds=240):
    """Waits until the metrics have so many records."""
    for _ in range(seconds * 20):
        if path.exists() and path.read_text().count("\n") >= number:
            return
        if process.poll() is not None:
            raise AssertionError(f"the run ended early: {process.stderr.read()}")
        time.sleep(0.05)
    raise AssertionError("the run did not get there in time")


def arrays(out):
    import jax

    from relbo.lab.runs import open_run

    return [np.asarray(leaf) for leaf in jax.tree.leaves(open_run(out, which="last").pair)]


@pytest.mark.slow
def test_killed_and_interrupted_runs_go_on(tmp_path):
    """SIGKILL, then SIGTERM, then to the end: the parameters of the run that nothing happened to, bit for bit."""
    words = [
        *("--estimator", "vrs", "--rate", "0.5", "--warmup-epochs", "0", "--epochs", "40"),
        *("--checkpoint-every", "10", "--log-every", "5"),
    ]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    process = start(whole, *words)
    killed = start(parts, *words)
    wait_for(parts / "metrics.jsonl", 40, killed)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    interrupted = start(parts, *words, "--resume")
    wait_for(parts / "metrics.jsonl", 80, interrupted)
    interrupted.send_signal(signal.SIGTERM)
    _, said = interrupted.communicate(timeout=240)
    assert interrupted.returncode == 143 and "Go on with" in said and "Traceback" not in said
    last = start(parts, *words, "--resume")
    _, said = last.communicate(timeout=240)
    assert last.returncode == 0, said
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    for a, b in zip(arrays(whole), arrays(parts), strict=True):
        np.testing.assert_array_equal(a, b)
