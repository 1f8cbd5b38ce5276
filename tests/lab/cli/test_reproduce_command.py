import json

import pytest

from relbo.lab.cli import main
from relbo.lab.paper import figure1


def run(*words):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *map(str, words)])
    return stop.value.code or 0


@pytest.mark.slow
def test_figure1(tmp_path, capsys):
    out = tmp_path / "new" / "directory"
    assert run("figure1", "--out", out, "--draws", 1000, "--seed", 3) == 0
    printed = capsys.readouterr().out
    assert "reconstruction" in printed
    assert "figure1.json" in printed and "figure1.png" in printed
    found = json.loads((out / "figure1.json").read_text())
    assert found["settings"]["seed"] == 3
    assert (out / "figure1.png").stat().st_size > 1_000


@pytest.mark.slow
def test_poisson(tmp_path, capsys):
    assert run("poisson", "--out", tmp_path, "--seeds", 1, "--steps", 450) == 0
    printed = capsys.readouterr().out
    assert "10.000000" in printed and "12.98" in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "poisson-acceptance.png",
        "poisson-target.png",
        "poisson-vimco.png",
        "poisson-vrs.png",
        "poisson.json",
    ]


@pytest.mark.slow
def test_tradeoff(tmp_path, capsys):
    assert run("tradeoff", "--out", tmp_path) == 0
    assert "log p(x)" in capsys.readouterr().out
    assert (tmp_path / "tradeoff.json").exists() and (tmp_path / "tradeoff.png").exists()


@pytest.mark.parametrize("command", ["figure1", "poisson", "tradeoff"])
def test_out_is_checked_before_anything_is_computed(command, tmp_path, capsys, monkeypatch):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for bad in (taken, taken / "below"):
        assert run(command, "--out", bad) == 2
        error = capsys.readouterr().err
        assert error.startswith("relbo: error: --out must be") and error.count("\n") == 1
    assert taken.read_text() == "mine"


def test_unwritable_directory(tmp_path, capsys, monkeypatch):
    # permissions do not bind a superuser, so the answer of the system is replaced
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert run("figure1", "--out", tmp_path) == 2
    assert "writable" in capsys.readouterr().err


def test_debug_shows_the_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--out must be"):
        main(["reproduce", "figure1", "--out", str(tmp_path / "file"), "--debug"])


@pytest.mark.parametrize("command", ["figure1", "poisson", "tradeoff"])
def test_help_has_examples(command, capsys):
    assert run(command, "--help") == 0
    assert f"relbo reproduce {command} --out" in capsys.readouterr().out


def test_usage_errors(capsys):
    assert run("figure1") == 2
    assert run("figure1", "--out", "x", "--draws", 3) == 2
    assert run("figure7", "--out", "x") == 2


def test_a_failing_experiment_leaves_no_results(tmp_path, monkeypatch):
    def fail(**settings):
        raise ValueError("log p must be a number")

    monkeypatch.setattr(figure1, "run", fail)
    assert run("figure1", "--out", tmp_path) == 2
    assert list(tmp_path.iterdir()) == []
