import dataclasses
import json

import jax
import pytest

from relbo.lab import demo
from relbo.lab.config import RunConfig


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's schedules raise floats to integer powers, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def small(tiny_runs, monkeypatch):
    """The demonstration with two quick runs in place of its own."""
    one = RunConfig(data=str(tiny_runs / "tiny.npz"), layers=(2,), estimator="rloo", num_samples=2, batch_size=20)
    configs = {"one": dataclasses.replace(one, epochs=2), "two": dataclasses.replace(one, epochs=2, seed=1)}
    monkeypatch.setattr(demo, "CONFIGS", configs)
    monkeypatch.setattr(demo, "BOUNDS", ("elbo",))
    monkeypatch.setattr(demo, "SMALL", dataclasses.replace(one, epochs=2, layers=(3,)))
    return configs


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_trains_reports_and_resumes(relbo, small, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    code, out, err = relbo("demo", "--out", tmp_path)
    assert code == 0 and f"Report: {tmp_path / 'report.html'}" in out and "training one" in err
    assert "elbo" in out and " two " in out and " 160 " in out
    assert "r at 0.1" in out and "importance resampling" in out
    costs = json.loads((tmp_path / "closeness.json").read_text())["costs"]
    assert [row["proposals"] for row in costs] == [1, 2, 5, 10, 20, 50]
    assert costs[-1]["rejection"]["kl_nats"] < costs[0]["rejection"]["kl_nats"]
    assert "distance to the exact posterior" in (tmp_path / "report.html").read_text()
    before = contents(tmp_path)

    code, again, err = relbo("demo", "--out", tmp_path)
    assert code == 0 and again == out and f"resuming the demo in {tmp_path}" in err
    assert contents(tmp_path) == before and (tmp_path / "mine.txt").read_text() == "keep"

    # as a kill during the second run would leave it
    for path in sorted((tmp_path / "two").rglob("*"), reverse=True):
        if path.name != "run.json":
            path.unlink() if path.is_file() else path.rmdir()
    assert relbo("demo", "--out", tmp_path)[0] == 0
    assert json.loads((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4


@pytest.mark.parametrize("name", ["one", "two", "report.html"])
def test_what_is_not_its_own_is_left_alone(relbo, small, tmp_path, name):
    (tmp_path / name).write_text("precious")
    code, out, err = relbo("demo", "--out", tmp_path)
    assert (code, out) == (2, "") and f"{tmp_path / name} exists and is not from a demo: choose another --out." in err
    assert contents(tmp_path) == {tmp_path / name: b"precious"}


@pytest.mark.parametrize("text", ['{"relbo demo": {}}', "not JSON", "[]"])
def test_another_versions_folder_is_left_alone(relbo, small, tmp_path, text):
    (tmp_path / "demo.json").write_text(text)
    code, out, err = relbo("demo", "--out", tmp_path)
    assert (code, out) == (2, "") and "is not that of this demo" in err
    assert contents(tmp_path) == {tmp_path / "demo.json": text.encode()}


def test_an_interruption_is_said(relbo, small, tmp_path, monkeypatch):
    monkeypatch.setattr(
        demo, "train_run", lambda *a, **k: dataclasses.make_dataclass("R", ["stopped", "signal"])("interrupted", 2)
    )
    code, _, err = relbo("demo", "--out", tmp_path)
    assert code == 130 and f"Go on with: relbo demo --out {tmp_path}" in err


def test_unwritable_is_one_line(relbo, small):
    code, out, err = relbo("demo", "--out", "/dev/null/x")
    assert (code, out) == (2, "") and [line for line in err.splitlines() if "error" in line] == err.splitlines()[-1:]


def test_help_has_examples(relbo):
    code, out, _ = relbo("demo", "--help")
    assert code == 0 and "Examples" in out and "relbo demo --out out/demo" in out


@pytest.mark.slow
def test_proposals_match(tmp_path):
    found = demo.run(tmp_path, bounds=("elbo",))
    vrs, rloo, vimco = (run.record["num_proposals"] for run in found.comparison.runs)
    assert rloo == vimco
    assert abs(vrs / rloo - 1) < 0.1 and abs((vrs + found.threshold_draws) / rloo - 1) < 0.1
    # a sanity bound, not a claim: independent pixels reach -25.2 nats
    assert all(estimate.mean > -25.5 for estimate in found.comparison.estimates["elbo"])
