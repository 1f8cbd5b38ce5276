"""How often a step is compiled, and what it is compiled to."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import table_pair

import relbo

THRESHOLDS = [
    pytest.param(relbo.Fixed(0.0), marks=pytest.mark.slow),
    relbo.Quantile(0.5, 10, 2),
    pytest.param(relbo.Rate(0.5, 10), marks=pytest.mark.slow),
]


def counted(estimator):
    """The compiled step and a list that grows by one with each trace."""
    traces = []

    def step(key, pair, state, batch):
        traces.append(None)
        return estimator.estimate(key, pair, state, batch)

    return eqx.filter_jit(step), traces


def batch_of(rows):
    return relbo.Batch(jnp.asarray(rows), jnp.asarray(rows))


@pytest.mark.parametrize("threshold", THRESHOLDS, ids=repr)
def test_one_compilation_per_shape(threshold):
    # through refreshes, first visits, other rows, other parameters and another acceptance rate
    estimator = relbo.VRS(2, threshold)
    step, traces = counted(estimator)
    state = estimator.init(jax.random.key(0), table_pair(0, num_x=6), 6)
    for i, rows in enumerate([[0, 1], [2, 3], [0, 5], [4, 5], [1, 1]]):
        _, state, _ = step(jax.random.key(i), table_pair(i, num_x=6), state, batch_of(rows))
    assert len(traces) == 1
    step(jax.random.key(9), table_pair(0, num_x=6), state, batch_of([0, 1, 2]))
    assert len(traces) == 2


@pytest.mark.slow
def test_settings_are_part_of_the_program_and_state_is_not():
    pair = table_pair(0)
    step = eqx.filter_jit(lambda e, k, s: e.estimate(k, pair, s, batch_of([0, 1])))
    low, high = relbo.VRS(2, relbo.Fixed(-2.0)), relbo.VRS(2, relbo.Fixed(8.0))
    few = step(high, jax.random.key(0), high.init(jax.random.key(0), pair, 2))[2]
    many = step(low, jax.random.key(0), low.init(jax.random.key(0), pair, 2))[2]
    np.testing.assert_array_equal(few.extra.threshold, [8.0, 8.0])
    np.testing.assert_array_equal(many.extra.threshold, [-2.0, -2.0])
    assert many.num_proposals.sum() > few.num_proposals.sum()


def test_estimators_are_values():
    # equal settings compare and hash alike, so that they can key a cache; repr shows them
    assert relbo.VRS(3, relbo.Rate(0.4)) == relbo.VRS(3, relbo.Rate(0.4))
    assert relbo.VRS(3, relbo.Rate(0.4)) != relbo.VRS(3, relbo.Rate(0.5))
    assert "0.4" in repr(relbo.VRS(3, relbo.Rate(0.4)))
