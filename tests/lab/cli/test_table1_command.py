import json

import jax
import pytest

from relbo.lab.config import RunConfig
from relbo.lab.paper import table1
from relbo.train.errors import Interrupted


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's schedules raise floats to integer powers, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def tiny(tiny_runs, monkeypatch):
    """The smoke preset with cells that train in no time."""
    config = RunConfig(data=str(tiny_runs / "tiny.npz"), batch_size=10, epochs=1, valid_bound="elbo")
    preset = table1.Preset("smoke", "nothing", config, width=2, bounds=("elbo",), repeats=1)
    monkeypatch.setitem(table1.PRESETS, "smoke", preset)


def test_one_cell(relbo, tiny, tmp_path):
    words = ("reproduce", "table1", "--out", tmp_path, "--only", "rloo-5", "--arch", "200")
    code, out, err = relbo(*words)
    assert code == 0 and "cell 1 of 1: rloo-5/200" in err
    found = json.loads((tmp_path / "table1.json").read_text())
    assert [cell["row"] for cell in found["cells"] if cell["evaluation"]] == ["rloo-5"]
    page = (tmp_path / "table1.md").read_text()
    for text in (out, page):
        assert "NOT COMPARABLE" in text and "VRS without rejection" in text
        assert f"{found['cells'][19]['evaluation']['test']['elbo']['nll']:.2f}" in text
    assert "106.97 test IS-25; 106.89 test RS-25" in page and "106.97" not in out  # only what was asked for is shown
    code, again, err = relbo(*words, "--quiet")
    assert code == 0 and again == out and "cell 1 of" not in err


def test_an_interruption_is_said(relbo, tiny, tmp_path, monkeypatch):
    def interrupt(*words, **options):
        raise Interrupted

    monkeypatch.setattr(table1, "make", interrupt)
    code, _, err = relbo("reproduce", "table1", "--out", tmp_path)
    assert code == 130 and "Stopped, saved. Give the same command again" in err


def test_a_failed_cell_is_said_after_the_table(relbo, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(table1, "run", lambda cells, **options: {"muprop/200": "no reason."})
    code, out, err = relbo("reproduce", "table1", "--out", tmp_path)
    assert code == 2 and "muprop" in out
    assert err.splitlines()[-1] == "relbo: error: 1 of 72 cells failed, the first being muprop/200: no reason."


FAILURES = {
    "unknown row": (("--only", "vrs"), "a row must be one of nvil-1, muprop, rebar-0.1, rebar, concrete-0.1, nvil-2"),
    "unknown architecture": (("--arch", "300"), "an architecture must be one of 200, 200-200, 200-200-200; got '300'"),
    "unknown preset": (("--preset", "huge"), "--preset must be one of smoke, budget, paper; got 'huge'"),
    "minutes of smoke": (("--minutes", "3"), "--minutes is for --preset budget"),
    "no minutes": (("--preset", "budget", "--minutes", "0"), "--minutes must be a number > 0, got 0"),
    "no data": (("--data", "nowhere.npz"), "nowhere.npz"),
}


@pytest.mark.parametrize(("words", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_exit_code_2(relbo, tmp_path, words, message):
    code, out, err = relbo("reproduce", "table1", "--out", tmp_path, "--quiet", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("relbo: error: ") and message in err


def test_help_has_examples(relbo):
    code, out, _ = relbo("reproduce", "table1", "--help")
    assert code == 0 and "Examples" in out and "--preset smoke --out out/table1" in out
