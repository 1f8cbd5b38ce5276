import json

import jax
import pytest

from relbo.lab.bench import contenders, timing
from relbo.lab.bench import run as bench_run
from relbo.lab.cli import main


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
@pytest.mark.filterwarnings("ignore:Currently, SVI with Trace_ELBO")
def test_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load = contenders.load
    monkeypatch.setattr(contenders, "load", lambda name: "torch is gone" if name == "eager_torch" else load(name))
    monkeypatch.setattr(bench_run, "waste", type("Waste", (), {"table": staticmethod(lambda: {"0.9": 1.1})}))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # for Optax and for NumPyro
        code = run("--layers", "3", "--rounds", 1, "--steps", 2, "--out", tmp_path / "out")
    assert code == 0
    printed = capsys.readouterr().out
    assert "step / its matrix products" in printed and "not measured" in printed
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    network = found["networks"]["3"]
    assert network["step_over_products"] > 0 and found["waste"] == {"0.9": 1.1}
    assert network["not_measured"] == dict.fromkeys(("PyTorch eager, VRS", "torch.compile, VRS"), "torch is gone")
    ratios = ("step_over_roofline", "step_over_rloo", "paper_step_over_products", "rs25_over_products")
    assert all(network[name] > 0 for name in ratios)
    assert set(network["refresh_share_of_time"]) == {"100 draws", "20 draws", "10 draws"}
    assert set(network["following_share_of_time"]) == {"online quantile", "rate"}
    assert set(network["times_faster_than"]) == {
        f"NumPyro {name}, no rejection" for name in ("Trace_ELBO", "TraceGraph_ELBO")
    }


@pytest.mark.slow
def test_profile(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"):
        assert run("--profile", "--layers", "3", "--steps", 2, "--out", tmp_path / "out") == 0
    assert "instructions in the loop" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "profile.json").read_text())["3"]
    assert found["parts"]["Adam"]["milliseconds"] > 0 and found["longest"]
    assert all(0 < found["following_share_of_time"][name] < 1 for name in ("online quantile", "rate"))


def test_help_and_bad_input(tmp_path, capsys):
    assert run("--help") == 0
    assert "relbo bench --growth" in capsys.readouterr().out
    assert run("--layers", "2x", "--out", tmp_path) == 2
    assert "--layers must be positive integers" in capsys.readouterr().err
    assert run("--growth", "--curve", "height", "--out", tmp_path) == 2
    assert "--curve must be one of batch size, S, N" in capsys.readouterr().err
