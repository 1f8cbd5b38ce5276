import json
import shutil

import numpy as np
import pytest

from relbo.data import load
from relbo.train.sealed import read_sealed, write_sealed


def numbers(out, label):
    """Words of the table's rows about a run."""
    return [line.split() for line in out.splitlines() if f" {label} " in f" {line} "]


def test_table_json_and_files_agree(relbo, tiny_runs, tmp_path):
    words = ("compare", tiny_runs / "vrs", tiny_runs / "rloo", "--bound", "elbo", "--bound", "is:3", "--out", tmp_path)
    code, out, err = relbo(*words)
    assert code == 0 and f"wrote {tmp_path / 'compare.json'} and {tmp_path / 'curves.png'}" in err
    found = json.loads((tmp_path / "compare.json").read_text())
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "12 images" in out and found["random_numbers"] == "common to all runs"
    assert "All runs share images and random numbers" in out
    elbo, importance = found["runs"][1]["bounds"]
    first, second = numbers(out, "rloo")
    expected = [-elbo["mean"], elbo["standard_error"], elbo["monte_carlo_error"]]
    expected += [elbo["difference_to_first"], elbo["difference_standard_error"], elbo["difference_monte_carlo_error"]]
    assert first[:2] == ["rloo", "rloo"] and [float(word) for word in first[2:8]] == pytest.approx(expected, abs=6e-4)
    assert first[8] == "160" and float(second[2]) == pytest.approx(-importance["mean"], abs=6e-4)

    code, out, _ = relbo(*words[:-2], "--json")
    assert code == 0 and json.loads(out) == found


def test_no_infinity_or_nan_in_json(relbo, tiny_runs):
    code, out, _ = relbo(
        "compare", tiny_runs / "vrs", tiny_runs / "rloo", "--bound", "elbo", "--repeats", 1, "--limit", 3, "--json"
    )
    assert code == 0 and "NaN" not in out
    assert json.loads(out)["runs"][0]["bounds"][0]["monte_carlo_error"] is None


@pytest.fixture
def elsewhere(tiny_runs, tmp_path):
    """A copy of a run whose data are others."""
    shutil.copytree(tiny_runs / "rloo", tmp_path / "elsewhere")
    with np.load(tiny_runs / "tiny.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "other.npz", **{**arrays, "test": 1 - arrays["test"].astype(np.uint8)})
    run = tmp_path / "elsewhere"
    changes = {
        "config.json": lambda value: value["settings"].update(data=str(tmp_path / "other.npz")),
        "run.json": lambda value: value["identity"].update(data_fingerprint=load(tmp_path / "other.npz").fingerprint),
    }
    for name, change in changes.items():
        value = read_sealed(run / name, "a file of a run")
        change(value)
        write_sealed(run / name, value)
    return run


def test_a_run_whose_data_have_changed_is_refused(relbo, tiny_runs, tmp_path):
    shutil.copytree(tiny_runs / "rloo", tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    value = read_sealed(path, "a file of a run")
    value["settings"]["data"] = "digits"
    write_sealed(path, value)
    code, out, err = relbo("evaluate", tmp_path / "run")
    assert (code, out) == (2, "") and "was trained on other data: those of digits have fingerprint" in err


def test_different_data_are_refused(relbo, tiny_runs, elsewhere):
    for command in (("compare",), ("report", "--out", elsewhere.parent / "report.html")):
        code, out, err = relbo(*command, tiny_runs / "vrs", elsewhere)
        assert (code, out) == (2, "") and len(err.splitlines()) == 1
        assert err.startswith("relbo: error: runs must be on the same data to be compared, got tiny (")
    assert not (elsewhere.parent / "report.html").exists()


FAILURES = {
    "one run": (("{runs}/vrs",), "two or more runs, got 1"),
    "no run there": (("{runs}/vrs", "{runs}/none"), "none is not a run of `relbo train`"),
    "unknown bound": (("{runs}/vrs", "{runs}/rloo", "--bound", "is"), "a bound must be elbo, is:K or rs:K"),
    "unknown split": (("{runs}/vrs", "{runs}/rloo", "--split", "exam"), "split must be one of"),
    "no image": (("{runs}/vrs", "{runs}/rloo", "--limit", "0"), "limit must be an integer >= 1"),
    "unwritable": (("{runs}/vrs", "{runs}/rloo", "--out", "/dev/null/x"), "/dev/null"),
    "no repeat": (("{runs}/vrs", "{runs}/rloo", "--repeats", "0"), "repeats must be an integer >= 1"),
}


@pytest.mark.parametrize(("words", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_exit_code_2(relbo, tiny_runs, words, message):
    code, out, err = relbo("compare", *(word.format(runs=tiny_runs) for word in words))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("relbo: error: ") and message in err


def test_help_has_examples(relbo):
    code, out, _ = relbo("compare", "--help")
    assert code == 0 and "Examples" in out and "relbo compare runs/vrs runs/rloo" in out
