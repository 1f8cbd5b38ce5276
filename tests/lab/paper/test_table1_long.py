"""Table 1, presets `long` and `headline`: what their cells are, seeds, paired differences, curves, the page."""

import dataclasses
import json
import math
import shutil

import jax
import numpy as np
import pytest

import relbo
from relbo.evaluate import Estimate
from relbo.lab.config import RunConfig, build_estimator
from relbo.lab.paper import table1, table1_values
from relbo.lab.paper.table1_collect import collect
from relbo.lab.paper.table1_figures import far_behind, plot
from relbo.lab.paper.table1_merge import merge
from relbo.lab.paper.table1_page import markdown, summary_sheets
from relbo.lab.paper.table1_presets import PRESETS, Group, Preset
from relbo.lab.paper.table1_rows import CLAIMS, LONG_ROWS, RECIPE, ROWS
from relbo.train.lock import WriterLock

LONG = PRESETS["long"]


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax's schedules raise floats to integer powers, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def config_of(preset, row, arch="200", tmp_path=None):
    (cell,) = table1.cells(tmp_path, preset, [row], [arch])
    return cell.config()


def test_the_long_protocol(tmp_path):
    config = config_of(LONG, "vrs-recipe", tmp_path=tmp_path)
    assert (config.data, config.schedule, config.epochs, config.batch_size) == ("binarized-mnist", "cosine", 100, 50)
    assert (config.valid_bound, config.valid_every) == ("is:100", 10)
    assert LONG.bounds == ("elbo", "is:25", "rs:25", "is:1000") and LONG.repeats == 2
    estimator = build_estimator(config, 1_000)
    assert (estimator.num_samples, estimator.num_proposals) == (2, 6)
    threshold = estimator.threshold
    assert (threshold.gamma, threshold.num_draws, threshold.warmup) == (0.7, 20, 50_000)
    paper = build_estimator(config_of(LONG, "vrs-0.9", tmp_path=tmp_path), 1_000)
    assert (paper.num_samples, paper.num_proposals, paper.threshold.warmup) == (5, 5, None)
    many = build_estimator(config_of(LONG, "vrs-recipe-20", tmp_path=tmp_path), 1_000)
    assert (many.num_samples, many.num_proposals, many.threshold.gamma) == (2, 20, 0.5)


@pytest.mark.parametrize(("arch", "evaluations"), [("200", 6), ("200-200", 6), ("200-200-200", 8)])
def test_disarm_spends_six_evaluations_where_its_sets_allow(tmp_path, arch, evaluations):
    config = config_of(LONG, "disarm-6", arch, tmp_path)
    assert config.num_samples * (len(config.layers) + 1) == evaluations


def test_headline_runs_warm_up_for_half_of_their_own_length(tmp_path):
    cells = table1.cells(tmp_path, PRESETS["headline"])
    found = {cell.arch: (cell.config().epochs, cell.config().warmup_epochs) for cell in cells}
    assert found == {"200": (1_000, 500.0), "200-200": (500, 250.0), "200-200-200": (500, 250.0)}
    assert "is:5000" in PRESETS["headline"].bounds and all(cell.row == RECIPE for cell in cells)
    assert all(cell.config().optimizer_settings == {"eps": 1e-3} for cell in cells)
    assert all(cell.config().valid_every == 25 for cell in cells)
    assert "Adam (eps 0.001) at a cosine schedule from 0.003, 1000, 500 epochs" in PRESETS["headline"].note()


def labels(**options):
    return [cell.label for cell in table1.cells(table1.Path("out"), LONG, **options)]


def test_groups_are_the_issues_order():
    main, rest = ("rloo-6", "vrs-recipe", "vimco-6", "rws-6"), ("vrs-0.9", "disarm-6", "nvil-6", "rebar")
    archs = ("200", "200-200", "200-200-200")
    assert labels(groups=["a"]) == [f"{row}/{arch}" for arch in archs for row in main]
    of_seeds = [f"{seed}{row}/200" for seed in ("", "seed-1/", "seed-2/") for row in main]
    assert labels(groups=["b"]) == of_seeds
    assert labels(groups=["c"]) == [f"{row}/{arch}" for arch in archs for row in rest]
    many = ("vrs-recipe-20", "vimco-20", "rws-20", "rloo-20")
    assert labels(groups=["d"]) == [f"{row}/200-200-200" for row in many]
    single = ("nvil-1", "muprop", "rebar-0.1", "concrete-0.1")
    assert labels(groups=["e"]) == [f"{row}/{arch}" for arch in archs[:2] for row in single]
    by_k = [f"{name}-{k}" for k in (2, 5, 10, 50) for name in ("nvil", "rws", "vimco")]
    assert labels(groups=["f"]) == [f"{row}/200-200-200" for row in (*by_k, "nvil-1")]
    everything = labels(groups=["a", "b", "c", "d", "e", "f"])
    assert len(everything) == len(set(everything)) == 12 + 8 + 12 + 4 + 8 + 13  # what two groups share is there once
    assert labels() == everything and len(labels(only=["rloo-20"])) == 3
    assert labels(groups=["b"], seeds=[0]) == of_seeds[:4]
    assert labels(groups=["b"], seeds=[2, 1, 2]) == of_seeds[8:] + of_seeds[4:8]
    assert labels(only=["rws-6"], architectures=["200"], seeds=[3]) == ["seed-3/rws-6/200"]
    assert labels(groups=["a"], only=["rws-6"], architectures=["200"]) == ["rws-6/200"]
    assert {row.name for row in LONG_ROWS} == {*main, *rest, *many, *single, *by_k, "vrs-0.95"}


def test_learning_rates_by_family(tmp_path):
    preset = LONG.with_rates(["1e-3", "vrs=3e-3"])
    rates = {row.name: config_of(preset, row.name, tmp_path=tmp_path).lr for row in LONG_ROWS}
    of_vrs = {"vrs-recipe", "vrs-recipe-20", "vrs-0.9", "vrs-0.95"}
    assert {name for name, rate in rates.items() if rate == 3e-3} == of_vrs
    assert set(rates.values()) == {1e-3, 3e-3}
    assert config_of(preset, "rebar", tmp_path=tmp_path).settings["learning_rate"] == pytest.approx(1e-2)
    assert "from 0.001 (rloo, vimco, rws, disarm, nvil, rebar, muprop, concrete) and 0.003 (vrs)," in preset.note()
    assert (
        "from 0.003 (rloo, vrs, vimco, rws, disarm, rebar, concrete) and 0.001 (nvil, muprop), 100 epochs"
        in LONG.note()
    )
    assert "a cosine schedule from 0.003, 100 epochs" in LONG.with_rates(["3e-3"]).note()
    assert config_of(LONG.with_epochs(20), "vrs-recipe", tmp_path=tmp_path).warmup_epochs == 10


def test_claims_are_the_papers_numbers():
    def numbers(row, arch):
        return [number.nll for number in ROWS[row].published[arch]]

    others = {"200": "concrete-0.1", "200-200": "rebar-0.1", "200-200-200": "vimco-50"}
    for arch, claim in CLAIMS.items():
        assert claim.vrs in numbers("vrs-0.9", arch) and claim.other in numbers(others[arch], arch)
    gains = [claim.other - claim.vrs for claim in CLAIMS.values()]
    assert sum(gains[:2]) / 2 == pytest.approx(3.705) and gains[2] == pytest.approx(0.21)


def test_paired_difference_by_hand():
    mine = {"test/elbo": np.array([[-1.0, -2.0, -6.0], [-1.0, -4.0, -6.0]])}
    other = {"test/elbo": np.array([[-2.0, -3.0, -5.0], [-2.0, -5.0, -5.0]])}
    found = table1_values.difference(mine, other, "elbo")
    # NLL 1, 3, 6 against 2, 4, 5: differences -1, -1, 1, the same in both repeats
    assert found["nll"] == pytest.approx(-1 / 3)
    assert found["standard_error"] == pytest.approx(math.sqrt(4 / 3) / math.sqrt(3))
    assert found["monte_carlo_error"] == 0
    assert table1_values.difference(mine, other, "is:25") is None
    assert table1_values.difference(mine, {"test/elbo": np.zeros((1, 3))}, "elbo") is None


def test_values_are_kept_exactly_and_damage_is_noticed(tmp_path):
    estimates = {"test": {"is:25": Estimate("is:25", np.arange(6.0).reshape(2, 3))}, "train": {}}
    file = tmp_path / table1_values.FILE
    digest = table1_values.save(file, estimates)
    found = table1_values.load(file, digest)
    assert found.keys() == {"test/is:25"}
    np.testing.assert_array_equal(found["test/is:25"], estimates["test"]["is:25"].values)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"values.npz is damaged or missing: .*Remove evaluation.json"):
        table1_values.load(file, digest)


@pytest.fixture(scope="module")
def tiny(tiny_runs):
    """The rows of group a and their groups, on cells that train in no time."""
    config = RunConfig(
        data=str(tiny_runs / "tiny.npz"), batch_size=10, epochs=2, schedule="cosine", lr=0.01, num_draws=5,
        refresh_epochs=1.0, valid_bound="is:5",
    )  # fmt: skip
    rows = ("rloo-6", "vrs-recipe")
    return Preset(
        "tiny", "nothing", config, width=2, bounds=("elbo", "is:5"), checkpoint_every=2, rows=LONG_ROWS[:3],
        groups={"a": Group((*rows, "vimco-6"), ("200",)), "b": Group(rows, ("200",), num_seeds=2)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """Group b of them, trained and evaluated; look, do not touch."""
    out = tmp_path_factory.mktemp("table1")
    with jax.numpy_dtype_promotion("standard"):
        assert table1.run(table1.cells(out, tiny, groups=["b"])) == {}
    return out


def entry(results, row, seed=0, arch="200"):
    (found,) = [c for c in results["cells"] if (c["row"], c["seed"], c["architecture"]) == (row, seed, arch)]
    return found


def test_seeds_have_folders_of_their_own_and_differ(made, tiny):
    results = collect(made, tiny)
    assert (made / "rloo-6" / "200" / "evaluation.json").exists()
    assert json.loads((made / "seed-1" / "rloo-6" / "200" / "config.json").read_text())["settings"]["seed"] == 1
    first, second = (entry(results, "rloo-6", seed)["evaluation"]["test"]["elbo"]["nll"] for seed in (0, 1))
    assert first != second
    (spread,) = [group for group in results["seeds"] if group["row"] == "rloo-6"]
    assert spread["seeds"] == [0, 1]
    assert spread["test"]["elbo"]["mean"] == pytest.approx((first + second) / 2)
    assert spread["test"]["elbo"]["sd"] == pytest.approx(abs(first - second) / math.sqrt(2))
    everything = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    assert table1.run(table1.cells(made, tiny, groups=["b"])) == {}
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == everything


def test_only_bounds_that_are_missing_are_evaluated(made, tiny, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    wider = dataclasses.replace(tiny, bounds=("elbo", "rs:5", "is:5"))
    before = table1.cells(tmp_path, tiny, ["vrs-recipe"], ["200"])[0].finished()
    (cell,) = table1.cells(tmp_path, wider, ["vrs-recipe"], ["200"])
    asked = []

    def evaluate(pair, rows, names, **options):
        asked.append(names)
        return relbo.evaluate(pair, rows, names, **options)

    monkeypatch.setattr(table1, "evaluate", evaluate)
    found = table1.make(cell)
    assert asked == [["rs:5"]]
    assert found["test"].keys() == {"elbo", "is:5", "rs:5"} and "acceptance_rate" in found["test"]["rs:5"]
    assert all(found["test"][name] == before["test"][name] for name in ("elbo", "is:5"))
    assert found["train"] == before["train"] and cell.results()[1].keys() == {f"test/{n}" for n in found["test"]} | {
        "train/elbo"
    }
    again = dataclasses.replace(wider, bounds=("rs:5", "is:6"))
    assert (
        table1.make(table1.cells(tmp_path, again, ["vrs-recipe"], ["200"])[0])["test"]["rs:5"]
        == (found["test"]["rs:5"])
    )
    more = dataclasses.replace(wider, repeats=3)  # other repeats are other numbers: all is evaluated again
    table1.make(table1.cells(tmp_path, more, ["vrs-recipe"], ["200"])[0])
    assert asked[1:] == [["is:6"], ["elbo", "rs:5", "is:5"], ["elbo"]]


def test_differences_are_those_of_the_values_of_each_seed(made, tiny):
    results = collect(made, tiny)
    for seed, folder in ((0, made), (1, made / "seed-1")):
        values = {}
        for row in ("rloo-6", "vrs-recipe"):
            with np.load(folder / row / "200" / "values.npz") as found:
                values[row] = found["test/is:5"].mean(axis=0)
        gap = values["rloo-6"] - values["vrs-recipe"]
        found = entry(results, "vrs-recipe", seed)["difference_to_reference"]["is:5"]
        assert found["nll"] == pytest.approx(gap.mean()) and found["monte_carlo_error"] > 0
        assert found["standard_error"] == pytest.approx(gap.std(ddof=1) / math.sqrt(gap.size))
        (pair,) = [p for p in results["comparisons"] if p["seed"] == seed]
        assert (pair["row"], pair["against"]) == ("vrs-recipe", "rloo-6") and pair["matched"]["is:5"] == found
    assert entry(results, "rloo-6")["difference_to_reference"] is None


def test_curves_have_what_is_drawn(made, tiny):
    cell = entry(collect(made, tiny), "vrs-recipe")
    assert [point["epoch"] for point in cell["curve"]] == [1, 2]
    assert [point["step"] for point in cell["curve"]] == [4, 8]
    assert cell["curve"][0]["num_proposals"] == 4 * 10 * 6  # nothing is rejected in the first half
    assert cell["progress"]["epoch"] == 2 and cell["lr"] == 0.01


def test_the_page_is_made_of_the_json_alone(made, tiny, tmp_path):
    results = json.loads(json.dumps(collect(made, tiny), allow_nan=False))
    page = markdown(results)
    cell = entry(results, "vrs-recipe")
    bound, gap = cell["evaluation"]["test"]["is:5"], cell["difference_to_reference"]["is:5"]
    for number in (bound, gap):
        text = f"{number['nll']:.2f} +- {number['standard_error']:.2f} ({number['monte_carlo_error']:.2f})"
        assert text in page
    assert (
        "| vimco-6 | VIMCO (k = 6) | - | missing |" in page
        and "4 of 5 cells are evaluated; missing: vimco-6 on 200." in page
    )
    assert "### 200: test NLL minus that of rloo-6, image by image" in page
    assert "### 200: VRS minus others, as the paper compares and matched" in page
    assert "VRS 106.63 (test RS-25) against 111.3 (train 1-sample ELBO of Concrete), 4.67 ahead" in page
    assert "minus rloo-6 | 0, 1 |" in page and "![" in page
    (file,) = plot(results, tmp_path)
    assert file.name == "table1-200.png" and f"]({file.name})" in page and file.stat().st_size > 10_000


def test_the_summary_has_the_longest_is_bound_and_means_over_seeds(made, tiny):
    results = collect(made, tiny)
    (sheet,) = summary_sheets({**results, "bounds": ["is:5", "elbo", "is:1"]})
    assert (sheet.title, sheet.headings) == ("Test NLL by IS-5", ("row", "method", "200"))
    found = {row: text for row, _, text in sheet.rows}
    first, second = (entry(results, "rloo-6", seed)["evaluation"]["test"]["is:5"]["nll"] for seed in (0, 1))
    mean, sd = (first + second) / 2, abs(first - second) / math.sqrt(2)
    assert found["rloo-6"] == f"{mean:.2f}, sd {sd:.2f} (2 seeds)" and found["vimco-6"] == "missing"
    one = {**results, "cells": [cell for cell in results["cells"] if cell["seed"] == 0], "seeds": []}
    (sheet,) = summary_sheets(one, only_found=True)
    assert [(row[0], row[2]) for row in sheet.rows][0] == ("rloo-6", f"{first:.2f}") and len(sheet.rows) == 2
    assert f"| rloo-6 | RLOO (S = 6) | {first:.2f} |" in markdown(one)
    assert summary_sheets({**results, "bounds": ["elbo"]}) == []


def test_rows_far_behind_do_not_press_the_others_together():
    def cells(**ends):
        return [{"row": row, "curve": [{"valid_bound": -200.0}, {"valid_bound": end}]} for row, end in ends.items()]

    # gaps 1, 2, 9: the median is 2, and 9 is more than four times as much
    assert far_behind(cells(a=-90.0, b=-91.0, c=-92.0, d=-99.0)) == {"d"}
    assert far_behind(cells(a=-90.0, b=-91.0, c=-92.0, d=-98.0)) == set()
    assert far_behind([*cells(a=-90.0, b=-91.0, c=-92.0, d=-99.0), *cells(d=-91.5)]) == set()  # its best seed counts
    assert far_behind(cells(a=-90.0, b=-99.0)) == far_behind(cells(a=-90.0)) == set()


def test_as_the_paper_compares():
    """Test RS-25 of VRS minus the train ELBO of the other."""

    def found(row, rs, elbo):
        numbers = {"standard_error": 0.1, "monte_carlo_error": None}
        evaluation = {
            "test": {"rs:25": {"nll": rs, "matched_is_mean": -rs, **numbers}},
            "train": {"elbo": {"nll": elbo, **numbers}},
            "proposals_per_datapoint": 6.0, "step": 8, "seconds": 1.0,
        }  # fmt: skip
        return {
            "row": row, "label": row, "architecture": "200", "seed": 0, "layers": [200], "published": [], "curve": [],
            "progress": None, "evaluation": evaluation, "difference_to_reference": None,
        }  # fmt: skip

    matched = {"rs:25": {"nll": -1.25, "standard_error": 0.05, "monte_carlo_error": 0.01}}
    results = {
        "preset": "long", "note": "", "rows": [], "reference": "rloo-6", "bounds": ["rs:25"], "valid_bound": "is:100",
        "cells": [found("vrs-recipe", 106.5, 110.0), found("rloo-6", 107.75, 111.25)],
        "seeds": [],
        "comparisons": [
            {"row": "vrs-recipe", "against": "rloo-6", "architecture": "200", "seed": 0, "matched": matched}
        ],
    }  # fmt: skip
    assert "| vrs-recipe | rloo-6 | -4.75 | -1.25 +- 0.05 (0.01) |" in markdown(results)


def test_a_cell_under_way_is_shown_and_one_of_another_rate_refused(tiny, tmp_path):
    (cell,) = table1.cells(tmp_path, tiny, ["rloo-6"], ["200"])
    cell.begin()
    stopped = table1.train_run(cell.config(), cell.path, resume=True, checkpoint_every=2, max_seconds=1e-9, log_every=2)
    assert stopped.stopped == "time"
    results = collect(tmp_path, tiny)
    assert entry(results, "rloo-6")["evaluation"] is None and "missing, at epoch 0.5 of 2" in markdown(results)
    with pytest.raises(ValueError, match="rloo-6/200 cannot be resumed with another configuration: lr was 0.01"):
        collect(tmp_path, tiny.with_rates(["rloo=0.02"]))


@pytest.mark.parametrize("file", [".lock", ".cell.lock"], ids=["trained", "trained or evaluated"])
def test_a_cell_of_another_process_is_left_to_it(tiny, tmp_path, file):
    first, second = table1.cells(tmp_path, tiny, ["rloo-6", "vrs-recipe"], ["200"])
    first.begin()
    stopped = table1.train_run(first.config(), first.path, resume=True, checkpoint_every=2, max_seconds=1e-9)
    assert stopped.stopped == "time"
    before = (first.path / "metrics.jsonl").read_bytes()
    stages = []
    lock = WriterLock(first.path, file)
    try:
        assert table1.run([first, second], on_stage=stages.append) == {}
    finally:
        lock.release()
    assert stages.count("rloo-6/200 is left to the process that is at it") == 2  # asked again at the end
    assert first.finished() is None and (first.path / "metrics.jsonl").read_bytes() == before
    assert second.finished() is not None
    assert table1.run([first, second]) == {} and first.finished() is not None


def test_what_another_process_finished_meanwhile_is_not_made_again(made, tiny, monkeypatch):
    (cell,) = table1.cells(made, tiny, ["rloo-6"], ["200"])
    monkeypatch.setattr(table1, "train_run", None)
    assert table1.make(cell) == cell.finished()


def test_cells_beside_the_groups_are_collected_once_begun(tiny, tmp_path):
    (cell,) = table1.cells(tmp_path, tiny, ["vimco-6"], ["200-200"], seeds=[0])
    assert "vimco-6 on 200-200" not in markdown(collect(tmp_path, tiny))
    cell.begin()
    assert "vimco-6 on 200-200" in markdown(collect(tmp_path, tiny))


def test_cells_of_earlier_versions_are_evaluated_again(made, tiny, tmp_path, monkeypatch):
    (cell,) = table1.cells(made, tiny, ["rloo-6"], ["200"])
    earlier = {name: value for name, value in cell.finished().items() if name != "values"}
    monkeypatch.setattr(table1, "_read", lambda file, *fields: earlier if file.name == table1.EVALUATION else None)
    assert cell.finished() is None and cell.results()[1] == {}
    with pytest.raises(ValueError, match="rloo-6/200 cannot be resumed"):
        dataclasses.replace(cell, seed=1).finished()


def test_tables_of_two_machines_are_one(made, tiny, tmp_path):
    """Each has some of the cells: together they are the table of one directory that has all."""
    everything = collect(made, tiny)
    for machine, paths in {"here": ["rloo-6/200", "vrs-recipe/200"], "there": ["seed-1"]}.items():
        for path in paths:
            shutil.copytree(made / path, tmp_path / machine / path)
    here, there = (collect(tmp_path / machine, tiny) for machine in ("here", "there"))
    assert here["seeds"] == [] and merge([here]) == here and merge([here, here]) == here
    assert merge([here, there]) == everything and merge([there, here]) == everything


def test_of_two_cells_the_one_with_more_bounds_and_no_difference_of_other_numbers(made, tiny):
    mine = collect(made, tiny)
    other = json.loads(json.dumps(mine))
    vrs = entry(other, "vrs-recipe")
    vrs["evaluation"]["test"]["is:6"] = vrs["evaluation"]["test"]["is:5"]
    vrs["evaluation"]["test"]["elbo"]["nll"] += 1  # as another machine rounds
    merged = merge([mine, other])
    cell = entry(merged, "vrs-recipe")
    assert cell["evaluation"] == vrs["evaluation"]
    assert cell["difference_to_reference"] == vrs["difference_to_reference"]
    entry(other, "rloo-6")["evaluation"]["test"]["elbo"]["nll"] += 1  # the reference that is kept is the first table's
    cell = entry(merge([mine, other]), "vrs-recipe")
    assert cell["difference_to_reference"]["elbo"] is None and cell["difference_to_reference"]["is:5"] is not None
    (pair,) = [pair for pair in merge([mine, other])["comparisons"] if pair["seed"] == 0]
    assert pair["matched"] == cell["difference_to_reference"]


def test_tables_of_other_settings_or_data_are_not_one(made, tiny):
    mine = collect(made, tiny)

    def changed(change):
        other = json.loads(json.dumps(mine))
        change(other)
        return [mine, other]

    with pytest.raises(ValueError, match="same settings, got valid_bound 'is:5' and 'is:6'"):
        merge(changed(lambda table: table.update(valid_bound="is:6")))
    with pytest.raises(ValueError, match="same data"):
        merge(changed(lambda table: entry(table, "rloo-6")["evaluation"].update(data_fingerprint="0")))
    with pytest.raises(ValueError, match="got rloo-6/200, seed 0, with lr 0.5 and 0.01"):
        merge(changed(lambda table: entry(table, "rloo-6")["evaluation"]["identity"].update(lr=0.5)))
    with pytest.raises(ValueError, match="got vimco-6/200, seed 0, with epochs 3 and 2"):  # not evaluated yet
        merge(changed(lambda table: entry(table, "vimco-6").update(epochs=3)))
    with pytest.raises(ValueError, match="same settings, got valid_every 7 and 1"):
        merge(changed(lambda table: table["common"].update(valid_every=7))[::-1])


def test_cells_of_other_data_are_no_table(made, tiny, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "vrs-recipe" / "200" / "evaluation.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "data_fingerprint": "0"}))
    with pytest.raises(ValueError, match="made from the same data"):
        collect(tmp_path, tiny)


def test_a_cell_is_read_whole_while_another_process_evaluates_it(made, tiny, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (cell,) = table1.cells(tmp_path, tiny, ["rloo-6"], ["200"])
    before, values = cell.results()
    load, later = table1_values.load, {**before, "step": 9}

    def replaced_meanwhile(path, digest):
        if json.loads((cell.path / table1.EVALUATION).read_text())["step"] != 9:
            (cell.path / table1.EVALUATION).write_text(json.dumps(later))
            raise ValueError("the values are those of the other evaluation")
        return load(path, digest)

    monkeypatch.setattr(table1_values, "load", replaced_meanwhile)
    found, again = cell.results()
    assert found == later and again.keys() == values.keys()
    (cell.path / table1_values.FILE).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="damaged or missing"):
        cell.results()


def test_a_cell_of_other_settings_is_refused_even_while_it_is_made(tiny, tmp_path):
    (cell,) = table1.cells(tmp_path, tiny, ["rloo-6"], ["200"])
    cell.begin()
    lock = WriterLock(cell.path, table1.CELL_LOCK)
    (other,) = table1.cells(tmp_path, tiny.with_rates(["0.02"]), ["rloo-6"], ["200"])
    try:
        with pytest.raises(ValueError, match="cannot be resumed with another configuration: lr was 0.01"):
            table1.make(other)
    finally:
        lock.release()
