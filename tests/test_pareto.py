"""Tails that continuous weights never have: those of discrete z."""

import numpy as np

from relbo.pareto import fit, khat


def test_equal_excesses_have_a_shape():
    # 30 + sqrt(100) = 40 candidates, of which the third is theta = 0
    shape, scale = fit(np.full(100, 0.5))
    assert np.isfinite(shape) and scale > 0


def test_weights_of_two_values_have_a_tail():
    assert np.isfinite(khat(np.concatenate([np.zeros(2_000), np.full(100, 1.0)])))
