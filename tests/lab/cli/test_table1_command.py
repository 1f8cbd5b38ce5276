import json
import shutil

import jax
import pytest

from relbo.lab.config import RunConfig
from relbo.lab.paper import table1
from relbo.train.errors import Interrupted
from relbo.train.lock import WriterLock


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
    "unknown preset": (
        ("--preset", "huge"),
        "--preset must be one of smoke, budget, long, headline, paper; got 'huge'",
    ),
    "minutes of smoke": (("--minutes", "3"), "--minutes is for --preset budget"),
    "no minutes": (("--preset", "budget", "--minutes", "0"), "--minutes must be a number > 0, got 0"),
    "group of smoke": (("--group", "a"), "--group is for presets with groups (long), got it with smoke"),
    "unknown group": (("--preset", "long", "--group", "z"), "a group must be one of a, b, c, d, e, f; got 'z'"),
    "row of another group": (("--preset", "long", "--group", "a", "--only", "rebar"), "--group a has no cell of rebar"),
    "no seed": (("--seeds", "0"), "--seeds must be an integer from 1 to 1,000, got 0"),
    "negative seed": (("--seed", "3", "--seed", "-1"), "--seed must be an integer from 0 to 999,999,999, got -1"),
    "two ways to say seeds": (
        ("--seeds", "2", "--seed", "3"),
        "expected --seeds or --seed, got --seeds 2 and --seed 3",
    ),
    "unknown family": (("--lr", "adam=1"), "--lr must be LR or FAMILY=LR with one of nvil, muprop"),
    "no rate": (("--lr", "vrs=fast"), "--lr must be LR or FAMILY=LR with a number LR > 0, got 'vrs=fast'"),
    "rate below 0": (("--lr", "-1"), "lr must be a number >"),
    "no epochs": (("--epochs", "0"), "--epochs must be an integer >= 1, got 0"),
    "unknown bound": (("--bound", "iwae"), "'iwae'"),
    "nothing to draw from": (("--from", "nowhere.json"), "--from must be a table1.json"),
    "no data": (("--data", "nowhere.npz"), "nowhere.npz"),
}


@pytest.mark.parametrize(("words", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_exit_code_2(relbo, tmp_path, words, message):
    code, out, err = relbo("reproduce", "table1", "--out", tmp_path, "--quiet", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("relbo: error: ") and message in err


def test_no_directory_and_no_file(relbo):
    code, _, err = relbo("reproduce", "table1")
    assert code == 2 and "expected --out DIR for the cells and the table, or --from FILE" in err


def test_collecting_trains_nothing(relbo, tiny, tmp_path):
    code, out, err = relbo("reproduce", "table1", "--out", tmp_path, "--collect")
    assert code == 0 and "0 of 72 cells are evaluated" in out and "cell 1 of" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table1.json", "table1.md"]


def test_redrawn_from_the_json_alone(relbo, tiny, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    words = ("--out", first, "--only", "rloo-5", "--only", "rloo-6", "--arch", "200", "--seeds", "2")
    code, out, _ = relbo("reproduce", "table1", *words, "--quiet")
    assert code == 0 and "200: mean and standard deviation over seeds" in out
    drawn = {file.name: file.read_bytes() for file in first.iterdir() if file.suffix in (".md", ".png")}
    assert drawn.keys() == {"table1.md", "table1-200.png"}
    for name in ("rloo-5", "rloo-6", "seed-1"):
        shutil.rmtree(first / name)
    code, _, err = relbo("reproduce", "table1", "--from", first / "table1.json", "--out", second)
    assert code == 0 and "wrote" in err
    assert {file.name: file.read_bytes() for file in second.iterdir()} == drawn


def test_a_cell_of_another_seed_alone_is_in_every_table(relbo, tiny, tmp_path):
    words = ("--only", "rloo-5", "--only", "rloo-6", "--arch", "200", "--seed", "3", "--bound", "is:5")
    code, out, _ = relbo("reproduce", "table1", "--out", tmp_path, *words, "--quiet")
    assert code == 0 and not (tmp_path / "rloo-6").exists()
    found = json.loads((tmp_path / "table1.json").read_text())
    (mine,) = [cell for cell in found["cells"] if cell["evaluation"] and cell["row"] == "rloo-6"]
    assert mine["seed"] == 3 and f"{mine['evaluation']['test']['is:5']['nll']:.2f}, seed 3" in out
    page = (tmp_path / "table1.md").read_text()
    # of its bounds both rows, of differences to the reference the other one
    assert page.count("| rloo-6, seed 3 |") == 1 and page.count("| rloo-5, seed 3 |") == 2


def test_tables_of_several_files_are_drawn_as_one(relbo, tiny, tmp_path):
    places = [tmp_path / row for row in ("rloo-5", "rloo-6")]
    for place in places:
        code, _, _ = relbo("reproduce", "table1", "--out", place, "--only", place.name, "--arch", "200", "--quiet")
        assert code == 0
    words = [word for place in places for word in ("--from", place / "table1.json")]
    code, out, _ = relbo("reproduce", "table1", *words, "--out", tmp_path / "both")
    assert code == 0 and "2 of 72 cells are evaluated" in out
    found = json.loads((tmp_path / "both" / "table1.json").read_text())
    assert [cell["row"] for cell in found["cells"] if cell["evaluation"]] == ["rloo-5", "rloo-6"]
    code, out, err = relbo("reproduce", "table1", *words)
    assert (code, out) == (2, "") and "expected --out DIR for the table of 2 files" in err
    for damage in (
        {"comparisons": None},
        {"comparisons": [{}]},
        {"rows": []},
        {"cells": [{**found["cells"][0], "seed": []}]},
    ):
        (tmp_path / "damaged.json").write_text(json.dumps({**found, **damage}))
        words = ("--from", tmp_path / "damaged.json", "--from", tmp_path / "damaged.json", "--out", tmp_path / "none")
        code, out, err = relbo("reproduce", "table1", *words)
        assert (code, out) == (2, "") and "got a damaged one" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_cells_of_other_processes_are_said(relbo, tiny, tmp_path):
    place = tmp_path / "rloo-5" / "200"
    place.mkdir(parents=True)
    lock = WriterLock(place, table1.CELL_LOCK)
    try:
        code, _, err = relbo("reproduce", "table1", "--out", tmp_path, "--only", "rloo-5", "--arch", "200", "--quiet")
    finally:
        lock.release()
    assert code == 0 and "1 of 1 cells are left to other processes" in err


def test_a_json_of_something_else_is_refused(relbo, tmp_path):
    cases = {"{": "got", "[]": "without cells", '{"cells": 3}': "without cells", '{"cells": [{}]}': "without 'preset'"}
    for text, message in cases.items():
        (tmp_path / "else.json").write_text(text)
        code, out, err = relbo("reproduce", "table1", "--from", tmp_path / "else.json")
        assert (code, out) == (2, "") and "--from must be a table1.json" in err and message in err
        assert len(err.splitlines()) == 1


def test_help_has_examples(relbo):
    code, out, _ = relbo("reproduce", "table1", "--help")
    assert code == 0 and "Examples" in out and "--preset smoke --out out/table1" in out
