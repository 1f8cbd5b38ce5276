import dataclasses

import jax
import numpy as np
import pytest

from relbo.acceptance import Hard, Soft
from relbo.evaluate import FRESH_DRAWS, evaluate
from relbo.lab.compare import comparable_curve, compare_runs, curve, labels_of, refuse_different_data, rejection_of
from relbo.lab.runs import open_run
from relbo.thresholds import Fixed, Quantile, Rate


@pytest.fixture(scope="module")
def runs(tiny_runs):
    return [open_run(tiny_runs / name) for name in ("vrs", "rloo")]


def test_differences_are_paired_and_random_numbers_common(runs):
    found = compare_runs(runs, ["is:3"], seed=5, repeats=3)
    one, two = (evaluate(run.pair, run.data.test, ["is:3"], key=jax.random.key(5), repeats=3)["is:3"] for run in runs)
    np.testing.assert_array_equal(found.estimates["is:3"][1].values, two.values)
    paired = (two.values - one.values).mean(axis=0)
    difference = found.difference("is:3", 1)
    assert difference.mean == pytest.approx(paired.mean(), abs=1e-12)
    assert difference.standard_error == pytest.approx(paired.std(ddof=1) / np.sqrt(len(paired)), rel=1e-12)
    per_repeat = (two.values - one.values).var(axis=0, ddof=1)
    assert difference.monte_carlo_error == pytest.approx(np.sqrt(per_repeat.sum() / 3) / len(paired), rel=1e-12)
    assert difference.standard_error < np.hypot(one.standard_error, two.standard_error), "pairing brought nothing"


def test_a_run_does_not_differ_from_itself(runs):
    difference = compare_runs([runs[0], runs[0]], ["elbo"]).difference("elbo", 1)
    assert (difference.mean, difference.standard_error, difference.monte_carlo_error) == (0, 0, 0)


def test_summary_holds_bounds_cost_and_curves(runs):
    first, second = compare_runs(runs, ["elbo", "is:3", "elbo"], limit=5).summary()["runs"]
    assert [b["bound"] for b in second["bounds"]] == ["elbo", "is:3"]
    assert first["bounds"][0]["difference_to_first"] == 0 and first["bounds"][0]["num_datapoints"] == 5
    # 2 epochs x 4 steps x 10 images x 2 draws
    assert second["num_proposals"] == 160 and first["num_proposals"] > 160
    assert [point["step"] for point in second["curve"]] == [2, 4, 6, 8]
    assert second["curve"][0]["valid_bound"] is None and second["curve"][1]["valid_bound"] < 0


def test_different_data_are_refused(runs):
    rows = np.concatenate([runs[0].data.test, runs[0].data.test])
    other = dataclasses.replace(runs[1], data=dataclasses.replace(runs[1].data, test=rows))
    with pytest.raises(ValueError, match="same data to be compared, got tiny .* in .*vrs and tiny .* in .*rloo"):
        refuse_different_data([runs[0], other])
    with pytest.raises(ValueError, match="same data"):
        compare_runs([runs[0], other])


def test_gray_training_images_are_refused(runs):
    gray = dataclasses.replace(runs[0], data=dataclasses.replace(runs[0].data, kind="gray"))
    with pytest.raises(ValueError, match="no fixed binary values"):
        compare_runs([gray], split="train")


@pytest.mark.parametrize(("arguments", "message"), [({"limit": 0}, "limit must be"), ({"split": "exam"}, "split must")])
def test_bad_arguments_are_refused(runs, arguments, message):
    with pytest.raises(ValueError, match=message):
        compare_runs(runs, ["elbo"], **arguments)


def test_no_run_is_refused():
    with pytest.raises(ValueError, match="at least one run"):
        compare_runs([])


@pytest.mark.parametrize(
    ("threshold", "acceptance", "expected"),
    [
        ("rate:0.3", "soft:1.0", (Rate(0.3, FRESH_DRAWS), Soft())),
        ("quantile:0.8", "hard", (Quantile(0.8, FRESH_DRAWS), Hard())),
        ("fixed:-2.5", "soft:3", (Fixed(-2.5), Soft(3.0))),
    ],
)
def test_held_out_images_are_rejected_as_in_training(runs, threshold, acceptance, expected):
    config = dataclasses.replace(runs[0].config, threshold=threshold, acceptance=acceptance)
    assert rejection_of(dataclasses.replace(runs[0], config=config)) == expected


def test_a_run_without_rejection_gets_the_papers(runs):
    assert rejection_of(runs[1]) == (Quantile(0.9, FRESH_DRAWS), Soft())


def test_labels_are_short_where_that_is_enough(runs, tmp_path):
    assert labels_of(runs) == ("vrs", "rloo")
    namesakes = [dataclasses.replace(run, path=tmp_path / str(i) / "run") for i, run in enumerate(runs)]
    assert labels_of(namesakes) == (str(tmp_path / "0" / "run"), str(tmp_path / "1" / "run"))


def test_curves_leave_out_what_is_missing_and_thin_by_means(runs):
    records = [{"step": i, "bound": float(i)} for i in range(10)] + [{"step": 10, "bound": None}, {"step": 11}]
    run = dataclasses.replace(runs[0], metrics=records)
    xs, ys = curve(run, "step", "bound", most=5)
    np.testing.assert_array_equal(xs, [1, 3, 5, 7, 9])
    np.testing.assert_array_equal(ys, [0.5, 2.5, 4.5, 6.5, 8.5])
    assert len(curve(run, "step", "age")[0]) == 0


def test_only_a_bound_that_all_share_is_compared(runs):
    assert comparable_curve(runs) == ("valid_bound", "validation bound, is:10 (nats)")
    other = dataclasses.replace(runs[1], config=dataclasses.replace(runs[1].config, valid_bound="elbo"))
    without = dataclasses.replace(runs[1], metrics=[{"step": 1, "bound": -3.0}])
    assert comparable_curve([runs[0], other])[0] == "bound"
    assert comparable_curve([runs[0], without])[0] == "bound"
