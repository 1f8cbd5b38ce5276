"""Laws of draws against enumeration over all tuples, and against relbo's own oracle."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import table_pair

from relbo import exact
from relbo.lab import closeness

PAIR, SUPPORT = table_pair(), jnp.arange(4)
X = jnp.arange(2)
LOG_P, LOG_Q = (np.asarray(part) for part in closeness.log_densities(PAIR, X, SUPPORT))


def test_resampling_is_that_of_all_tuples():
    w, costs = np.exp(LOG_P[0] - LOG_Q[0]), (1, 2, 4)
    for cost, law in zip(costs, closeness.resampling(LOG_P[0], LOG_Q[0], costs), strict=True):
        expected = np.zeros(4)
        for index in exact.tuples(4, cost):
            np.add.at(expected, index, np.exp(LOG_Q[0][index].sum()) * w[index] / w[index].sum())
        np.testing.assert_allclose(law, expected, atol=1e-9)


@pytest.mark.parametrize("cost", [10])
def test_rejection_is_r_at_that_rate(cost):
    law = closeness.rejection(LOG_P[1], LOG_Q[1], cost)
    # T follows from the law itself: q / r = Z / a, so two states tell it
    t = np.linspace(-20, 20, 40_001)
    rates = np.sum(np.exp(LOG_Q[1])[None] / (1 + np.exp(-(LOG_P[1] - LOG_Q[1])[None] - t[:, None])), axis=1)
    expected = np.exp(exact.log_resampled(PAIR, X[1], SUPPORT, t[np.argmin(np.abs(rates - 1 / cost))]))
    np.testing.assert_allclose(law, expected, atol=1e-3)


def test_more_proposals_come_closer():
    found = closeness.measure(PAIR, X, SUPPORT)
    for name in ("rejection", "resampling"):
        for distance in ("total_variation", "kl_nats"):
            values = [row[name][distance] for row in found]
            assert values == sorted(values, reverse=True)
    kl_of_q = np.mean([float(exact.kl(PAIR, x, SUPPORT, jnp.inf)) for x in X])
    assert found[0]["rejection"]["kl_nats"] == pytest.approx(kl_of_q)
    assert found[0]["rejection"] == pytest.approx(found[0]["resampling"])
