import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import (
    Impossible,
    assert_trees_close,
    assert_trees_equal,
    expected_gradient,
    table_pair,
    vrs_extra,
)

import relbo
from relbo import exact, rejection
from relbo.models.toy import TableProposal
from relbo.types import Draws

NEVER = float("inf")
ACCEPTANCES = {"t=0.5": relbo.Soft(0.5), "t=1": relbo.Soft(), "t=2": relbo.Soft(2.0), "hard": relbo.Hard()}


@pytest.mark.parametrize("num_samples", [2, 3])
@pytest.mark.parametrize("t", [-3.0, 0.0, 3.0, NEVER])
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_expected_gradient_is_exact(name, t, num_samples):
    pair, x, support, acceptance = table_pair(3), jnp.asarray(1), jnp.arange(4), ACCEPTANCES[name]
    estimator = relbo.VRS(num_samples, relbo.Fixed(t), acceptance)
    log_r = exact.log_resampled(pair, x, support, t, acceptance)
    got = expected_gradient(estimator, pair, x, support, log_r, num_samples, vrs_extra(t, num_samples))
    want = exact.gradient(exact.r_elbo, pair, x, support, t, acceptance)
    assert_trees_close(got.model, want.model)
    assert_trees_close(got.proposal, want.proposal)
    assert np.abs(want.model.table).max() > 1e-3  # a relative test of nothing would pass


def test_expected_gradient_of_a_network():
    # parameters shared by all z, layers as a pytree
    pair = relbo.sbn(jax.random.key(0), (2, 1), jnp.asarray([0.3, 0.6]))
    bits = exact.binary_states(3)
    support, x, t = (bits[:, :2], bits[:, 2:]), jnp.asarray([1.0, 0.0]), 0.5
    log_r = exact.log_resampled(pair, x, support, t)
    got = expected_gradient(relbo.VRS(2, relbo.Fixed(t)), pair, x, support, log_r, 2, vrs_extra(t, 2))
    assert_trees_close(got, exact.gradient(exact.r_elbo, pair, x, support, t))


@pytest.mark.parametrize(
    "t", [pytest.param(-3.0, marks=pytest.mark.slow), 0.0, pytest.param(3.0, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_info_bound_is_unbiased(name, t):
    # sum over all pairs of draws and over the negative binomial law of the number of proposals
    pair, x, support, acceptance, size = table_pair(3), jnp.asarray(0), jnp.arange(4), ACCEPTANCES[name], 2
    log_r = exact.log_resampled(pair, x, support, t, acceptance)
    rate = float(jnp.exp(exact.log_z(pair, x, support, t, acceptance)))
    index = exact.tuples(4, size)
    failures = np.arange(int(scipy.stats.nbinom.isf(1e-13, size, rate)) + 1)

    def bound(num_proposals, z):
        first = rejection.LogProbs(jnp.zeros((num_proposals.size, size)), jnp.zeros((num_proposals.size, size)))
        n = num_proposals.size
        accepted = rejection.Accepted(None, num_proposals, jnp.zeros(n, bool), first, jnp.zeros((), jnp.int32))
        draws = Draws(z, (jnp.full(n, t), jnp.zeros(n, jnp.int32), accepted))
        log_p = exact.log_joint(pair.model, x, support)[z]
        log_q = exact.log_proposal(pair.proposal, x, support)[z]
        estimator = relbo.VRS(size, relbo.Fixed(t), acceptance)
        state = estimator.init(jax.random.key(0), pair, 1)
        batch = relbo.Batch(jnp.full(n, x), jnp.zeros(n, int))
        return np.asarray(estimator.coefficients(log_p, log_q, draws, state, batch)[2].bound)

    # the bound is a function of z plus one of N: two sums give the double one
    of_z = bound(jnp.full(index.shape[0], size, jnp.int32), jnp.asarray(index))
    of_n = bound(jnp.asarray(failures + size, jnp.int32), jnp.zeros((failures.size, size), int))
    mean = np.sum(np.exp(np.asarray(log_r)[index].sum(-1)) * of_z)
    mean += np.sum(scipy.stats.nbinom.pmf(failures, size, rate) * (of_n - of_n[0]))
    np.testing.assert_allclose(mean, exact.r_elbo(pair, x, support, t, acceptance), rtol=1e-8)


@pytest.mark.parametrize(
    "num_samples, dtype",
    [
        (2, jnp.float32),
        *(pytest.param(size, jnp.float64, marks=pytest.mark.slow) for size in (3, 5)),
    ],
)
def test_nothing_rejected_is_rloo_bit_for_bit(num_samples, dtype):
    # compiled, where a compiler is free to round the same sum differently
    pair = table_pair(5, num_x=3, dtype=dtype)
    batch = relbo.Batch(jnp.arange(3), jnp.arange(3))

    def run(estimator):
        state = estimator.init(jax.random.key(0), pair, 3)
        step = eqx.filter_jit(estimator.estimate)
        results = [step(k, pair, state, batch) for k in jax.random.split(jax.random.key(7), 10)]
        return [(grads, info.bound, info.num_proposals) for grads, _, info in results]

    expected = run(relbo.RLOO(num_samples))
    for same in (
        relbo.VRS(num_samples, relbo.Fixed(NEVER)),
        relbo.VRS(num_samples, relbo.Fixed(0.0), relbo.Always()),
        relbo.VRS(num_samples, relbo.Quantile(every=10), relbo.Hard()),  # before its first refresh
    ):
        assert_trees_equal(run(same), expected)


def exhausted_case():
    # x = 1 is accepted with probability about e^-60
    table = jnp.asarray([[0.0, -1.0, -0.5], [-60.0, -60.0, -60.0], [-1.0, 0.3, -2.0]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((3, 3))))
    return pair, relbo.Batch(jnp.asarray([0, 1, 2]), jnp.asarray([0, 1, 2]))


def test_exhausted_rows_are_left_out_and_counted(key):
    pair, batch = exhausted_case()
    estimator = relbo.VRS(2, relbo.Fixed(0.0), max_rounds=50, throw=False)
    state = estimator.init(key, pair, 3)
    step = eqx.filter_jit(estimator.estimate)
    grads, _, info = step(key, pair, state, batch)
    np.testing.assert_array_equal(info.valid, [True, False, True])
    np.testing.assert_array_equal(info.extra.exhausted, ~info.valid)
    np.testing.assert_array_equal(np.isnan(info.bound), ~info.valid)
    assert info.num_proposals[1] == 100

    # the same streams with one row at a time left to succeed
    def alone(row):
        x = jnp.ones(3, int).at[row].set(batch.x[row])
        return step(key, pair, state, relbo.Batch(x, batch.index))[0]

    mean = jax.tree.map(lambda a, b: (a + b) / 2, alone(0), alone(2))
    assert_trees_close(grads, mean, rtol=1e-14)


def test_a_batch_of_exhausted_rows_moves_nothing(key):
    pair, batch = exhausted_case()
    estimator = relbo.VRS(2, relbo.Fixed(0.0), max_rounds=5, throw=False)
    grads, _, info = estimator.estimate(
        key, pair, estimator.init(key, pair, 3), relbo.Batch(jnp.ones(3, int), jnp.arange(3))
    )
    assert not info.valid.any()
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(grads))


class PowerLaw(relbo.AbstractModel):
    """Log p = theta log z on z >= 1: a z of 0, or one that stands for nothing, has an infinite derivative."""

    theta: jax.Array

    def log_joint(self, x, z):
        return jnp.where(x > 0, 0.0, -500.0) + self.theta * jnp.log(z)

    def sample(self, key):
        raise NotImplementedError


class OneOrTwo(relbo.AbstractProposal):
    logit: jax.Array

    def sample(self, key, x):
        return 1.0 + jax.random.bernoulli(key, jax.nn.sigmoid(self.logit)).astype(jnp.float64)

    def log_prob(self, z, x):
        return jax.nn.log_sigmoid(jnp.where(z > 1.5, self.logit, -self.logit))


@pytest.mark.parametrize("x", [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_gradient_is_finite_beside_exhausted_rows(key, x):
    pair = relbo.Pair(PowerLaw(jnp.asarray(1.0)), OneOrTwo(jnp.asarray(0.3)))
    estimator = relbo.VRS(2, relbo.Fixed(0.0), max_rounds=5, throw=False)
    grads, _, info = estimator.estimate(
        key, pair, estimator.init(key, pair, 3), relbo.Batch(jnp.asarray(x), jnp.arange(3))
    )
    np.testing.assert_array_equal(info.valid, np.asarray(x) > 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_exhaustion_raises_by_default(key):
    pair, batch = exhausted_case()
    estimator = relbo.VRS(2, relbo.Fixed(0.0), max_rounds=5)
    with pytest.raises(Exception, match=r"exhausted.*5 \* 2.*threshold T.*gamma.*max_rounds.*throw=False"):
        jax.block_until_ready(estimator.estimate(key, pair, estimator.init(key, pair, 3), batch))


@pytest.mark.slow
def test_impossible_proposals_are_legal(key):
    table = jnp.asarray([[0.0, -jnp.inf, -1.0, -jnp.inf]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((1, 4))))
    batch = relbo.Batch(jnp.zeros(5, int), jnp.zeros(5, int))
    for threshold in (relbo.Fixed(0.0), relbo.Fixed(NEVER), relbo.Quantile(0.9, 20, 1), relbo.Rate(0.4, 20)):
        for acceptance in (relbo.Soft(), relbo.Hard()):
            estimator = relbo.VRS(3, threshold, acceptance)
            state = estimator.init(key, pair, 1)
            step = eqx.filter_jit(estimator.estimate)
            for k in jax.random.split(key, 3):
                grads, state, info = step(k, pair, state, batch)
                assert info.valid.all() and np.isfinite(info.bound).all()
                assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_acceptance_in_info_is_unbiased():
    # 4000 rows of S = 2; |z-score| <= 6 fails a correct program with probability 2e-9
    pair, x, t = table_pair(3), 0, 0.0
    rate = float(jnp.exp(exact.log_z(pair, jnp.asarray(x), jnp.arange(4), t)))
    estimator = relbo.VRS(2, relbo.Fixed(t))
    batch = relbo.Batch(jnp.full(4000, x), jnp.zeros(4000, int))
    state = estimator.init(jax.random.key(0), pair, 1)
    _, _, info = eqx.filter_jit(estimator.estimate)(jax.random.key(11), pair, state, batch)
    seen = np.asarray(info.extra.acceptance)
    assert abs(seen.mean() - rate) < 6 * seen.std() / np.sqrt(seen.size)
