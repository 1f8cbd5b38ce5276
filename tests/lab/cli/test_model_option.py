"""`relbo train --model`: a pair of the user's own, from the first step to the report."""

import json
import re
import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import relbo as library
from relbo.lab import user_model
from relbo.lab.config import RunConfig
from relbo.lab.runs import open_run

PAGE = Path(__file__).parents[3] / "docs" / "runs.md"
EXAMPLE, LOADING = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
)
MIXTURE = (
    EXAMPLE
    + """

def other(key, data):
    return make(key, data)


def broken(key, data):
    return 1 / 0


def number(key, data):
    return 3
"""
)
QUICK = ("--batch-size", 10, "--num-samples", 2, "--lr", 0.05, "--valid-bound", "is:2", "--quiet")


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's schedules raise floats to integer powers, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def place(tmp_path, tiny_runs, monkeypatch):
    """A folder with the user's file, from which the commands run."""
    (tmp_path / "mixture.py").write_text(MIXTURE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train(relbo, tiny_runs):
    """Trains; returns (exit code, standard output, standard error)."""

    def call(out, *words, model="mixture.py:make"):
        data = ("--data", tiny_runs / "tiny.npz")
        return relbo("train", "--model", model, *data, "--estimator", "rloo", *QUICK, "--out", out, *words)

    return call


def test_from_the_first_step_to_the_report(relbo, train, place, tiny_runs, monkeypatch):
    assert train("run", "--epochs", 2)[0] == 0
    config = RunConfig.load(place / "run")
    assert config.model == f"{place / 'mixture.py'}:make"
    assert config.model_sha256 == user_model.sha256(user_model.find(config.model))
    monkeypatch.chdir(tiny_runs)

    code, out, err = relbo("evaluate", place / "run", "--json")
    found = json.loads(out)
    assert (code, err, found["notes"]) == (0, "", []) and np.isfinite(found["bounds"][1]["mean"])
    assert relbo("compare", place / "run", tiny_runs / "rloo")[0] == 0
    page = place / "report.html"
    assert relbo("report", place / "run", "--out", page)[0] == 0
    text = page.read_text()
    assert "Reconstructions" not in text and "Samples" not in text and config.model in text
    both = relbo("report", place / "run", tiny_runs / "rloo", "--bound", "elbo", "--out", page)
    assert both[0] == 0 and page.read_text().count("<figcaption>rloo</figcaption>") == 1

    code, out, _ = relbo(
        "variance", place / "run", "--estimator", "rloo", "--estimates", 40, "--warmup", 2, "--batch-size", 5
    )
    assert code == 0 and "mixture.py:make" in out

    loaded = library.load(place / "run")
    assert bool(eqx.tree_equal(loaded.pair, open_run(place / "run").pair)) and loaded.estimator == library.RLOO(2)


@pytest.mark.slow
def test_the_example_of_the_documentation(relbo, place, capsys):
    (place / "mixture.py").write_text(EXAMPLE)
    words = ("--estimator", "vrs", "--rate", 0.5, "--epochs", 1, "--out", "runs/mixture", "--quiet")
    assert relbo("train", "--model", "mixture.py:make", *words)[0] == 0
    exec(compile(LOADING, "runs.md", "exec"), {})
    assert capsys.readouterr().out.startswith("25 RLOO(")


def test_a_resumed_run_is_the_uninterrupted_run(train, relbo, place):
    assert train("whole", "--epochs", 3)[0] == 0
    assert train("parts", "--epochs", 1)[0] == 0
    assert relbo("train", "--resume", "--epochs", 3, "--out", "parts", "--quiet")[0] == 0
    assert bool(eqx.tree_equal(*(open_run(place / name, which="last").pair for name in ("whole", "parts"))))


def test_a_changed_file_is_refused_by_train_and_named_by_the_others(train, relbo, place):
    assert train("run", "--epochs", 1)[0] == 0
    (place / "mixture.py").write_text(MIXTURE + "# changed\n")
    for words in ((), ("--model", "mixture.py:make")):
        code, out, err = relbo("train", "--resume", "--epochs", 2, "--out", "run", "--quiet", *words)
        assert (code, out) == (2, "") and len(err.splitlines()) == 1
        assert f"run cannot be resumed: {place / 'mixture.py'} has changed since the run began: its SHA-256 was" in err
    for words in (("evaluate", "run"), ("report", "run", "--out", "page.html"), ("compare", "run", "run")):
        code, _, err = relbo(*words)
        assert code == 0 and f"relbo: note: run: {place / 'mixture.py'} has changed since the run began" in err
    assert "has changed since" in (place / "page.html").read_text()
    assert "has changed since" in library.load("run").record["notes"][0]
    (place / "mixture.py").write_text(MIXTURE.replace("COMPONENTS = 3", "COMPONENTS = 4"))
    code, _, err = relbo("evaluate", "run")
    assert code == 2 and "does not fit: 3 arrays differ" in err and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_file_may_move(train, relbo, place):
    assert train("run", "--epochs", 1)[0] == 0
    (place / "mixture.py").rename(place / "moved.py")
    code, _, err = relbo("evaluate", "run")
    assert code == 2 and f"needs the file {place / 'mixture.py'}, which is not there" in err
    assert relbo("train", "--resume", "--epochs", 2, "--model", "moved.py:make", "--out", "run", "--quiet")[0] == 0
    assert relbo("evaluate", "run")[0] == 0
    code, _, err = relbo("train", "--resume", "--model", "moved.py:other", "--out", "run", "--quiet")
    assert code == 2 and "model was 'make' and is now 'other'" in err


def test_a_module_is_found_by_its_name(train, place, monkeypatch):
    (place / "relbo_test_mixture.py").write_text(MIXTURE)
    monkeypatch.syspath_prepend(place)
    assert train("run", "--epochs", 1, model="relbo_test_mixture:make")[0] == 0
    assert RunConfig.load(place / "run").model == "relbo_test_mixture:make"
    sys.modules.pop("relbo_test_mixture")


REFUSALS = {
    "no function": ("mixture.py", "a model must be FILE:FUNCTION or MODULE:FUNCTION, such as mixture.py:make, got"),
    "no file": ("nowhere.py:make", "nowhere.py, which is not there"),
    "no module": ("nowhere.nothing:make", "needs the module nowhere.nothing, which cannot be found"),
    "no such function": ("mixture.py:make_it", "mixture.py has no function 'make_it'"),
    "not a pair": ("mixture.py:number", "must return a relbo.Pair, got int"),
    "an error inside": ("mixture.py:broken", "mixture.py:broken failed: ZeroDivisionError: division by zero"),
    "not Python": ("wrong.py:make", "wrong.py cannot be run: SyntaxError"),
}


@pytest.mark.parametrize(("model", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(train, place, model, message):
    (place / "wrong.py").write_text("def make(:\n")
    code, out, err = train("run", model=model)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and message in err
    assert not (place / "run").exists()


@pytest.mark.parametrize("words", [("--layers", "4"), ("--num-hidden", "1")], ids=" ".join)
def test_settings_of_the_network_are_refused_beside_a_model(train, place, words):
    code, _, err = train("run", *words)
    assert code == 2 and "--layers and --num-hidden are for the sigmoid belief network" in err


def test_an_estimator_whose_needs_the_pair_does_not_meet(train, place):
    code, _, err = train("run", "--estimator", "disarm")
    assert code == 2 and len(err.splitlines()) == 1 and "DisARM" in err
