"""The exact test of uniformity, against all possible ranks."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from relbo.calibration import simultaneous_band, uniformity_p_value


def gamma(ranks, num_samples):
    """The statistic, written out."""
    size, tails = len(ranks), []
    for i in range(1, num_samples + 1):
        count, share = sum(r < i for r in ranks), i / (num_samples + 1)
        tails.append(2 * min(binom.cdf(count, size, share), binom.sf(count - 1, size, share)))
    return min(tails)


@pytest.mark.parametrize(("num_ranks", "num_samples"), [(4, 3), (5, 2), (3, 6)])
def test_p_values_are_those_of_all_ranks(num_ranks, num_samples):
    everything = np.array(list(itertools.product(range(num_samples + 1), repeat=num_ranks)))
    gammas = np.array([gamma(ranks, num_samples) for ranks in everything])
    for i in range(0, len(everything), 7):
        expected = np.mean(gammas <= gammas[i] * (1 + 1e-9))
        assert uniformity_p_value(everything[i], num_samples) == pytest.approx(expected, rel=1e-10)


def test_band_holds_for_all_ranks():
    band = simultaneous_band(5, 3, 0.8)
    everything = np.array(list(itertools.product(range(4), repeat=5)))
    below = np.stack([np.mean(everything < i, axis=1) for i in range(5)], axis=1)
    inside = np.all((below >= band.lower - 1e-12) & (below <= band.upper + 1e-12), axis=1)
    assert 0.8 <= np.mean(inside) < 1


def test_small_p_values_keep_their_digits():
    # all ranks are 0: C_1 = N, the most extreme of all; both ends are as extreme
    assert uniformity_p_value(np.zeros(50, int), 4) == pytest.approx(2 * 5.0**-50, rel=1e-8)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (np.array([0, 5]), "from 0 to num_samples = 3"),
        (np.array([-1, 2]), "from 0 to num_samples = 3"),
        (np.array([0.5]), "a non-empty vector of integers"),
        (np.zeros((2, 2), int), "a non-empty vector of integers"),
        (np.zeros(0, int), "a non-empty vector of integers"),
    ],
)
def test_what_is_no_rank_is_refused(ranks, message):
    with pytest.raises(ValueError, match=message):
        uniformity_p_value(ranks, 3)


def test_a_probability_is_one():
    with pytest.raises(ValueError, match=r"probability must be a number in \(0, 1\)"):
        simultaneous_band(5, 3, 1.0)
