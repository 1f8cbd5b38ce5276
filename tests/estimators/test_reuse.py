"""The gradient from the accept test's own evaluation against the one from a second evaluation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_equal, small_batch, small_sbn

import relbo
from relbo.models.sbn import SBN


class Doubted(SBN):
    """The same network, which does not promise to be finite: its draws are evaluated again."""

    always_finite = False


def doubted(pair):
    return relbo.Pair(Doubted(pair.model.downward, pair.model.prior), pair.proposal)


@pytest.mark.parametrize(
    ("estimator", "rows"),
    [
        (relbo.VRS(3, relbo.Fixed(0.0)), 12),  # most draws are late: several blocks
        pytest.param(relbo.VRSWake(2, relbo.Fixed(0.0)), 3, marks=pytest.mark.slow),
        pytest.param(relbo.VRS(2, relbo.Fixed(2.0), max_rounds=3, throw=False), 12, marks=pytest.mark.slow),
    ],
    ids=["late", "wake", "exhausted"],
)
def test_same_gradient_as_a_second_evaluation(estimator, rows):
    pair, batch = small_sbn()[0], small_batch(rows)
    results = []
    for each in (pair, doubted(pair)):
        state = estimator.init(jax.random.key(0), each, rows)
        grads, _, info = eqx.filter_jit(estimator.estimate)(jax.random.key(5), each, state, batch)
        results.append((jax.tree.leaves(grads), info.bound, info.num_proposals))
    if estimator.throw:
        assert int(results[0][2].max()) > estimator.num_samples, "some draws are late"
    else:
        assert 0 < int(np.sum(np.isnan(results[0][1]))) < rows, "some rows are exhausted, some are not"
    for ours, theirs in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-12)
    np.testing.assert_array_equal(results[0][2], results[1][2])


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.float64, marks=pytest.mark.slow)])
def test_nothing_rejected_is_rloo_bit_for_bit(dtype):
    pair, batch = small_sbn(dtype=dtype)[0], small_batch(3, dtype=dtype)
    results = []
    for estimator in (relbo.RLOO(4), relbo.VRS(4, relbo.Fixed(float("inf")))):
        state = estimator.init(jax.random.key(0), pair, 3)
        step = eqx.filter_jit(estimator.estimate)
        steps = [step(k, pair, state, batch) for k in jax.random.split(jax.random.key(2), 5)]
        results.append([(grads, info.bound) for grads, _, info in steps])
    assert_trees_equal(*results)


@pytest.fixture
def optimised():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.usefixtures("optimised")
def test_the_first_round_is_evaluated_once():
    # the compiler must see that sampler and gradient ask for the same products: 13 x 3 draws through the 7 x 11 weights
    pair = relbo.sbn(jax.random.key(0), (7,), jnp.full(11, 0.3))
    estimator = relbo.VRS(3, relbo.Fixed(0.0), throw=False)
    batch = relbo.Batch(jnp.zeros((13, 11)), jnp.arange(13))
    state = estimator.init(jax.random.key(0), pair, 13)
    step = jax.jit(lambda k, p, s: estimator.estimate(k, p, s, batch)[0])
    lines = step.lower(jax.random.key(0), pair, state).compile().as_text().splitlines()
    assert sum(" dot(" in line and "[39,11]" in line.split(" dot(")[0] for line in lines) == 1
