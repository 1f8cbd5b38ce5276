import json

import jax
import pytest

from relbo.bench import run as bench_run
from relbo.bench import timing
from relbo.cli import main


def run(*words):
    with pytest.raises(SystemExit) as stop:
        main(["bench", *map(str, words)])
    return stop.value.code or 0


def test_contenders_take_turns():
    calls = []
    found = timing.take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, units=10)
    assert calls == ["a", "b"] * 4  # one round is not counted
    assert found["a"].low <= found["a"].median <= found["a"].high
    assert timing.ratio(timing.Timing(4.0, 1, 5), timing.Timing(2.0, 1, 3)) == 2


@pytest.mark.slow
def test_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_run, "waste", type("Waste", (), {"table": staticmethod(lambda: {"0.9": 1.1})}))
    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to integer powers
        code = run("--layers", "3", "--rounds", 1, "--steps", 2, "--contenders", tmp_path, "--out", tmp_path / "out")
    assert code == 0
    printed = capsys.readouterr().out
    assert "step / its matrix products" in printed and "not measured" in printed
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    network = found["networks"]["3"]
    assert network["step_over_products"] > 0 and found["waste"] == {"0.9": 1.1}
    assert "PyTorch eager, VRS" in network["not_measured"]


def test_help_and_bad_input(tmp_path, capsys):
    assert run("--help") == 0
    assert "relbo bench --growth" in capsys.readouterr().out
    assert run("--layers", "2x", "--out", tmp_path) == 2
    assert "--layers must be positive integers" in capsys.readouterr().err
