import json
import math

import numpy as np
import pytest
from scipy.stats import poisson as scipy_poisson

from relbo.lab.paper import poisson

pytestmark = pytest.mark.slow  # they share one experiment; that of figure 1 stands for both in the fast suite


@pytest.fixture(scope="module")
def results():
    return poisson.run(seed=0, num_seeds=3, num_steps=450)


def test_exact_maximiser_is_the_target_rate(results):
    exact = results["exact"]
    assert exact["r_elbo_maximiser_rate"] == pytest.approx(10, rel=1e-7)
    assert exact["elbo_maximiser_rate"] == pytest.approx(12.98, abs=0.005)
    # the bound is tight there: r is the target
    assert exact["r_elbo_maximum_nats"] == pytest.approx(math.log(scipy_poisson.sf(4, 10)), abs=1e-10)
    assert exact["log_mass_of_target_nats"] == pytest.approx(exact["r_elbo_maximum_nats"], abs=1e-10)


def test_acceptance_rate_is_the_poisson_tail(results):
    for row in results["exact"]["acceptance_check"]:
        assert row["acceptance_rate"] == pytest.approx(scipy_poisson.sf(4, row["rate"]), rel=1e-9)
        assert row["poisson_tail"] == pytest.approx(scipy_poisson.sf(4, row["rate"]), rel=1e-9)


def test_vrs_learns_the_rate_within_the_budget(results):
    assert results["budget"]["num_vrs_runs_within_tolerance"] == 3
    for run in results["vrs"]:
        assert run["phi"][0] == pytest.approx(math.log(3))
        assert run["learned_rate_at_budget"] == pytest.approx(10, rel=0.005)
        assert run["num_proposals_until_within_tolerance_for_good"] < 2_000
        # at the fixed point every gradient sample vanishes, not only their mean
        assert np.abs(run["gradient"][-50:]).max() < 1e-6


def test_acceptance_rises_with_training(results):
    for run in results["vrs"]:
        rate = np.array(run["exact_acceptance_rate"])
        assert rate[0] == pytest.approx(0.1847, abs=1e-4)
        assert rate[-1] == pytest.approx(0.9707, abs=1e-4)
        assert np.all(np.diff(rate[:30:10]) > 0)
        cost = np.array(run["num_proposals_of_step"])
        assert cost[:5].mean() > 2 * cost[-100:].mean()


def test_vimco_is_slower_per_proposal(results):
    for run in results["vimco"]:
        assert run["num_proposals_of_step"] == [100] * 450
        assert 3 < run["learned_rate_at_budget"] < 7
        assert 7 < run["learned_rate_at_end"] < 9.9
        assert run["num_proposals_until_within_tolerance_for_good"] is None


def test_rate_is_read_within_the_budget():
    phi = np.log(np.array([3.0, 9.0, 10.0, 11.0]))
    run = poisson.describe(7, poisson.Trace(phi, np.zeros(4), np.array([1_000, 1_000, 1, 5])))
    assert run["num_proposals_before_step"] == [0, 1_000, 2_000, 2_001]
    assert run["learned_rate_at_budget"] == pytest.approx(10)  # bought with 2,000 proposals, not with 2,001
    assert run["num_proposals_until_within_tolerance_for_good"] is None  # it left again
    settled = poisson.describe(7, poisson.Trace(phi[:3], np.zeros(3), np.array([1_000, 1_000, 1])))
    assert settled["num_proposals_until_within_tolerance_for_good"] == 2_000


def test_json_and_pictures(results, tmp_path):
    json.loads(json.dumps(results, allow_nan=False))
    files = poisson.plot(results, tmp_path)
    assert [f.name for f in files] == [f"poisson-{n}.png" for n in ("target", "acceptance", "vrs", "vimco")]
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files)


@pytest.mark.parametrize("bad", [{"num_seeds": 0}, {"num_steps": 1}, {"seed": -1}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        poisson.run(**bad)
