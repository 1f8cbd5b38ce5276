import json
import math

import numpy as np
import pytest

from relbo.lab.paper import figure1


@pytest.fixture(scope="module")
def results():
    return figure1.run(num_draws=1000, seed=0)


def test_exact_figures_round_to_the_printed_ones(results):
    # decimals that the paper prints for the rate and for the KL, T = inf, 10, 0, -5
    decimals = ((0, 0), (1, 1), (1, 1), (2, 3))
    for panel, (rate_digits, kl_digits) in zip(results["panels"], decimals, strict=True):
        assert round(panel["exact"]["acceptance_rate"], rate_digits) == panel["printed"]["acceptance_rate"]
        assert round(panel["exact"]["kl_nats"], kl_digits) == panel["printed"]["kl_nats"]


def test_exact_figures_by_hand(results):
    # summed here without the library: a = w / (w + M)
    p = np.exp(figure1.log_target())
    p, q = p / p.sum(), 1 / 25
    for panel in results["panels"]:
        m = math.exp(-float(panel["threshold"]))
        kept = q * (p / q) / (p / q + m)
        assert panel["exact"]["acceptance_rate"] == pytest.approx(kept.sum(), rel=1e-12)
        r = kept / kept.sum()
        assert panel["exact"]["kl_nats"] == pytest.approx((r * np.log(r / p)).sum(), rel=1e-9)
        np.testing.assert_allclose(panel["exact"]["resampled_probability"], r, rtol=1e-9, atol=1e-300)


def test_sampled_figures_agree_with_exact_ones(results):
    # 7 comparisons at 5.5 standard errors, normal approximation: a false failure has probability below 3e-7
    for panel in results["panels"]:
        for name in ("acceptance_rate", "kl_nats"):
            error = panel["sampled"][f"{name}_standard_error"]
            assert abs(panel["sampled"][name] - panel["exact"][name]) <= 5.5 * error + 1e-12
        assert panel["sampled"]["num_accepted"] == 1000


def test_json_is_strict_and_says_what_the_target_is(results):
    again = json.loads(json.dumps(results, allow_nan=False))
    assert again["target_is_a_reconstruction"] is True
    assert "reconstruction" in again["note"]
    assert [float(p["threshold"]) for p in again["panels"]] == [math.inf, 10, 0, -5]


def test_target_has_the_symmetry_of_the_grid():
    grid = figure1.log_target()
    np.testing.assert_array_equal(grid, grid.T)
    np.testing.assert_array_equal(grid, grid[::-1])
    assert sorted(set(grid.ravel())) == sorted(figure1.LEVELS.values())


def test_plot(results, tmp_path):
    path = figure1.plot(results, tmp_path / "figure1.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("bad", [{"num_draws": 10}, {"seed": -1}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        figure1.run(**bad)
