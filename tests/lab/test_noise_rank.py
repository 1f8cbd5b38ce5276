"""From figures to a sentence."""

import pytest

from relbo.lab.noise_rank import ranked, recommend


def row(name, ratio, error=0.01, seconds=1.0, unbiased=True, variance=1.0, proposals=10.0):
    part = {"variance": variance, "signal_to_noise": ratio, "signal_to_noise_standard_error": error}
    return {
        "estimator": name,
        "unbiased": unbiased,
        "seconds": seconds,
        "mean_num_proposals": proposals,
        "num_proposals_scaled_to": 10,
        "theta": dict(part),
        "phi": dict(part),
    }


def test_equal_time_counts_seconds_and_not_proposals():
    # the second takes 4 times as long for one estimate of 20 proposals: sqrt(20 / 10 / 4) of its ratio at 10
    first, second = ranked([row("a", 1.0), row("b", 0.8, seconds=4.0, proposals=20.0)])
    assert first["phi"]["signal_to_noise_equal_time"] == 1.0
    assert second["phi"]["signal_to_noise_equal_time"] == pytest.approx(0.8 * 0.5**0.5)


def test_the_best_comes_first_and_nothing_last():
    found = ranked([row("a", 0.1), row("b", None, None), row("c", 0.3)])
    assert [r["estimator"] for r in found] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row("a", 1.0), row("b", 0.5)], "Take a: of the unbiased estimators"),
        ([row("a", 1.0), row("b", 0.99, error=0.02)], "Take a (as are b, within the errors)"),
        ([row("a", 1.0, seconds=9.0), row("b", 0.5)], "Take a if a draw is what costs you (signal-to-noise 1 at 10"),
        ([row("best", 9.0, unbiased=False), row("b", 0.5)], "Take b: "),
        ([row("a", 0.0), row("b", None, None)], "No unbiased estimator shows a signal for the proposal"),
    ],
)
def test_one_sentence(rows, sentence):
    found = recommend(ranked(rows), 10)
    assert found.startswith(sentence) and found.endswith(".") and found.count(". ") == 0


def test_without_parameters_of_the_proposal_the_model_decides():
    rows = [row("a", 1.0), row("b", 0.5)]
    for r in rows:
        r["phi"] |= {"variance": 0.0, "signal_to_noise": None, "signal_to_noise_standard_error": None}
    assert "gradient of the model" in recommend(ranked(rows), 10)
