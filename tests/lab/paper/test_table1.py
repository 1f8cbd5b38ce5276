"""Table 1: the numbers are the paper's, every cell can be trained, and a stopped reproduction goes on."""

import dataclasses
import json

import jax
import pytest

from relbo.lab.config import RunConfig, build_estimator
from relbo.lab.paper import table1
from relbo.lab.paper.table1_collect import collect
from relbo.lab.paper.table1_page import markdown
from relbo.lab.paper.table1_rows import ARCHITECTURES, ROWS, TABLE
from relbo.lab.runs import train_run
from relbo.train.errors import Interrupted, TrainingError

PRINTED_A = {  # Table 1a as printed: 200, 200-200
    "nvil-1": (112.5, 99.6),
    "muprop": (111.7, 99.07),
    "rebar-0.1": (111.7, 99.0),
    "rebar": (111.6, 99.8),
    "concrete-0.1": (111.3, 102.8),
}
PRINTED_B = {  # Table 1b as printed: 200-200-200
    "nvil": {1: 95.2, 2: 93.6, 5: 93.7, 10: 93.4, 50: 96.2},
    "rws": {2: 94.6, 5: 93.4, 10: 93.0, 50: 92.5},
    "vimco": {2: 93.5, 5: 92.8, 10: 92.6, 50: 91.9},
}
PRINTED_VRS = {  # IS, RS on each architecture
    "vrs-0.95": ((106.97, 106.89), (96.38, 96.30), (92.01, 91.93)),
    "vrs-0.9": ((106.71, 106.63), (96.26, 96.36), (92.09, 91.69)),
}


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's schedules raise floats to integer powers, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def printed(row, arch):
    return [(n.nll, n.split, n.metric) for n in ROWS[row].published.get(arch, ()) if n.in_table]


def test_published_numbers_are_those_of_the_paper_with_their_metric():
    expected = {}
    for row, numbers in PRINTED_A.items():
        for arch, nll in zip(ARCHITECTURES, numbers, strict=False):
            expected[row, arch] = [(nll, "train", "1-sample ELBO")]
    for name, numbers in PRINTED_B.items():
        for k, nll in numbers.items():
            expected[f"{name}-{k}", "200-200-200"] = [(nll, "test", "NLL")]
    for row, numbers in PRINTED_VRS.items():
        for arch, (by_is, by_rs) in zip(ARCHITECTURES, numbers, strict=True):
            expected[row, arch] = [(by_is, "test", "IS-25"), (by_rs, "test", "RS-25")]
    found = {(row, arch): printed(row, arch) for row in ROWS for arch in ARCHITECTURES}
    assert {place: numbers for place, numbers in found.items() if numbers} == expected
    assert {row.name for row in TABLE} == {row for row, _ in expected}


def test_rows_beyond_the_paper():
    assert ROWS.keys() - {row.name for row in TABLE} == {"rloo-5", "rloo-6", "rloo-10", "vrs-0.5", "vrs-rate"}
    assert all(not ROWS[name].published for name in ("rloo-5", "rloo-6", "rloo-10", "vrs-0.5", "vrs-rate"))


@pytest.mark.parametrize("preset", table1.PRESETS.values(), ids=table1.PRESETS)
def test_every_cell_has_an_estimator_and_the_rest_in_common(preset, tmp_path):
    cells = table1.cells(tmp_path, preset, architectures=ARCHITECTURES)
    assert len(cells) == 3 * len(preset.rows)
    for cell in cells:
        config = cell.config()
        build_estimator(config, 10)
        assert len(config.layers) == len(cell.arch.split("-")) and set(config.layers) == {preset.width}
        assert config.estimator != "rebar" or config.settings["learning_rate"] == 10 * config.lr
        # validation may choose a rate for a family
        assert config.lr == preset.rates.get(config.estimator, preset.common.lr)
        varying = {"layers", "estimator", "num_samples", "threshold", "settings", "lr"}
        if preset.name in ("long", "headline"):
            varying |= {"num_proposals", "warmup_epochs", "epochs"}
        common = dataclasses.replace(config, **{name: getattr(preset.common, name) for name in varying})
        assert common == preset.common


def test_the_papers_protocol(tmp_path):
    preset = table1.PRESETS["paper"]
    (cell,) = table1.cells(tmp_path, preset, ["vrs-0.9"], ["200"])
    config, per_epoch = cell.config(), 50_000 // 50
    assert (config.data, config.batch_size, config.optimizer, config.lr) == ("binarized-mnist", 50, "adam", 3e-4)
    assert config.epochs * per_epoch == 5_000_000
    estimator = build_estimator(config, per_epoch)
    assert (estimator.num_samples, estimator.threshold.gamma, estimator.threshold.every) == (5, 0.9, 100_000)
    assert {"is:25", "rs:25"} <= set(preset.bounds) and preset.is_comparable()


def test_unknown_names_are_refused(tmp_path):
    preset = table1.PRESETS["smoke"]
    with pytest.raises(ValueError, match=r"a row must be one of nvil-1, muprop, .*vrs-rate; got 'vrs'"):
        table1.cells(tmp_path, preset, ["vrs"])
    with pytest.raises(ValueError, match=r"an architecture must be one of 200, 200-200, 200-200-200; got '400'"):
        table1.cells(tmp_path, preset, [], ["400"])


@pytest.fixture
def preset(tiny_runs):
    """Cells that train in no time."""
    config = RunConfig(data=str(tiny_runs / "tiny.npz"), batch_size=10, epochs=2, valid_bound="elbo")
    return table1.Preset("tiny", "nothing", config, width=2, bounds=("elbo",), repeats=1, checkpoint_every=2)


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_a_stopped_reproduction_goes_on(preset, tmp_path):
    first, second = cells = table1.cells(tmp_path, preset, ["rws-2", "rloo-5"], ["200"])
    assert table1.run([first]) == {}
    # as a kill during the second cell would leave it
    stopped = train_run(second.config(), second.path, checkpoint_every=2, max_seconds=1e-9, log_every=2)
    assert stopped.stopped == "time" and not (second.path / "evaluation.json").exists()
    before, halfway = contents(first.path), (second.path / "metrics.jsonl").read_text()

    said = []
    assert table1.run(cells, on_stage=said.append) == {}
    assert contents(first.path) == before
    after = (second.path / "metrics.jsonl").read_text()
    assert after.startswith(halfway) and json.loads(after.splitlines()[-1])["step"] == 8
    assert "1 of 2 cells are finished already" in said and "cell 1 of 1: rloo-5/200" in said

    found = json.loads((second.path / "evaluation.json").read_text())
    assert found["proposals_per_datapoint"] == 5 and found["step"] == 8
    assert found["test"]["elbo"]["num_datapoints"] == found["train"]["elbo"]["num_datapoints"] == 12
    everything = contents(tmp_path)
    assert table1.run(cells) == {}
    assert contents(tmp_path) == everything

    results = collect(tmp_path, preset)
    assert [c["row"] for c in results["cells"] if c["evaluation"]] == ["rws-2", "rloo-5"]
    page = markdown(results)
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("|")}
    assert f"{found['test']['elbo']['nll']:.2f}" in page and "NOT COMPARABLE" in page
    assert "106.71 test IS-25; 106.63 test RS-25" in page and "112.5 train 1-sample ELBO" in page
    assert lines["vrs-rate"].endswith("| missing | missing | missing | missing | missing | missing |")
    assert "2 of 72 cells are evaluated; missing: nvil-1 on 200, " in page

    other = dataclasses.replace(preset, common=dataclasses.replace(preset.common, lr=0.5))
    with pytest.raises(ValueError, match="rws-2/200 cannot be resumed with another configuration: lr was 0.001"):
        table1.run(table1.cells(tmp_path, other, ["rws-2"], ["200"]))
    # a bound more is asked for: what there is still stands in the table
    wider = dataclasses.replace(preset, bounds=("elbo", "is:5000"))
    assert [c["row"] for c in collect(tmp_path, wider)["cells"] if c["evaluation"]] == ["rws-2", "rloo-5"]
    file = first.path / "evaluation.json"
    file.write_text(json.dumps(first.finished() | {"data_fingerprint": "else"}))
    with pytest.raises(ValueError, match="rws-2/200 was made from other contents of its data"):
        table1.run(cells)
    file.write_text(json.dumps({k: v for k, v in first.finished().items() if k != "data_fingerprint"}))
    with pytest.raises(ValueError, match=r"evaluation.json is damaged .*data_fingerprint"):
        table1.run(cells)
    (first.path / "evaluation.json").write_text("{")
    with pytest.raises(ValueError, match=r"evaluation.json is damaged .*: remove it"):
        collect(tmp_path, preset)


def test_more_minutes_go_on_and_fewer_are_refused(preset, tmp_path):
    def cell(seconds):
        return table1.cells(tmp_path, dataclasses.replace(preset, max_seconds=seconds), ["rloo-5"], ["200"])[0]

    table1.make(cell(1e-9))
    assert cell(1e-9).finished()["step"] == 2  # a chance to stop after each checkpoint
    assert cell(1e9).finished() is None
    assert table1.make(cell(1e9))["step"] == 8
    for name in (
        "evaluation.json",
        "cell.json",
    ):  # as a kill during the evaluation would leave it; what it was made with
        with pytest.raises(ValueError, match="a longer time limit than the 1 minutes asked for"):
            table1.make(cell(60.0))
        (cell(60.0).path / name).unlink()


FAILURES = {
    "diverged": TrainingError("no reason."),
    "another process": ValueError("no reason."),
    "full disk": OSError("no reason."),
}


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES)
def test_a_cell_that_fails_does_not_stop_the_others(preset, tmp_path, monkeypatch, error):
    def make(cell, **options):
        if cell.row.name == "rws-2":
            raise error
        return {"test": {"elbo": {"nll": 1.0}}}

    monkeypatch.setattr(table1, "make", make)
    said = []
    failures = table1.run(table1.cells(tmp_path, preset, ["rws-2", "rloo-5"], ["200"]), on_stage=said.append)
    assert failures == {"rws-2/200": "no reason."}
    assert said[-1] == "test NLL elbo 1.00"


def test_an_interruption_ends_it(preset, tmp_path, monkeypatch):
    interrupted = dataclasses.make_dataclass("R", ["stopped", "signal"])("interrupted", 15)
    monkeypatch.setattr(table1, "train_run", lambda *words, **options: interrupted)
    with pytest.raises(Interrupted) as caught:
        table1.run(table1.cells(tmp_path, preset, ["rloo-5"], ["200"]))
    assert caught.value.exit_code == 143
