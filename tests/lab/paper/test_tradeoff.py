import jax.numpy as jnp
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


def test_iwae_is_that_of_all_tuples():
    """The integral against the sum over all tuples of the oracle, weights over many orders of magnitude."""
    from helpers import table_pair

    from relbo import exact

    pair, x, support = table_pair(scale=6.0), jnp.array(0), jnp.arange(4)
    log_q = exact.log_proposal(pair.proposal, x, support)
    log_w = exact.log_joint(pair.model, x, support) - log_q
    found = tradeoff.iwae(np.asarray(log_w), np.asarray(log_q), np.array([1, 2, 5]))
    expected = [float(exact.iwae(pair, x, support, k)) for k in (1, 2, 5)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.slow
def test_iwae_starts_at_the_elbo_and_rises(results):
    bounds = np.array([p["bound_nats"] for p in results["iwae"]])
    assert bounds[0] == pytest.approx(results["points"][0]["r_elbo_nats"], abs=1e-9)
    assert np.all(np.diff(bounds) > 0) and bounds[-1] < results["log_evidence_nats"]
