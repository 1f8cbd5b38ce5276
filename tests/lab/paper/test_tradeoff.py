import numpy as np
import pytest

from relbo.lab.paper import tradeoff


@pytest.fixture(scope="module")
def results():
    return tradeoff.run(seed=0)


@pytest.mark.slow
def test_lower_threshold_buys_a_tighter_bound(results):
    points = results["points"]
    rate, bound, kl = (np.array([p[name] for p in points]) for name in ("acceptance_rate", "r_elbo_nats", "kl_nats"))
    assert rate[0] == pytest.approx(1, abs=1e-12)
    assert np.all(np.diff(rate) < 0) and np.all(np.diff(bound) > 0) and np.all(np.diff(kl) < 0)
    np.testing.assert_allclose(bound + kl, results["log_evidence_nats"], atol=1e-10)


@pytest.mark.slow
def test_the_picture_shows_something(results):
    # the inference network has been trained, and rejection still closes most of its gap
    first, last = results["points"][0], results["points"][-1]
    assert 0.05 < first["kl_nats"] < 1
    assert last["kl_nats"] < 0.35 * first["kl_nats"]
    assert 0.005 < last["acceptance_rate"] < 0.1


@pytest.mark.slow
def test_plot(results, tmp_path):
    path = tradeoff.plot(results, tmp_path / "tradeoff.png")
    assert path.read_bytes().startswith(b"\x89PNG")
