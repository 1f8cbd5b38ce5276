"""The score family against exact gradients, by summing over all tuples of draws."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, draws_of, expected_gradient, reading_of, table_pair, vrs_extra

import relbo
from relbo import exact
from relbo.estimators import IWAE, NVIL, REINFORCE, RLOO, RWS, VIMCO, VRS, VRSAll, VRSRaw, VRSWake, WakeSleep
from relbo.estimators.nvil import NVILState
from relbo.estimators.vimco import arithmetic_without, geometric_without
from relbo.streams import split_streams
from relbo.types import EmptyState
from relbo.view import view_of

PAIR, X = table_pair(num_z=4), jnp.asarray(1)
SUPPORT = jnp.arange(4)
LOG_Q = exact.log_proposal(PAIR.proposal, X, SUPPORT)


def gradient(quantity, pair, *args):
    return jax.jit(lambda p: exact.gradient(quantity, p, *args))(pair)


def by_q(estimator, num_samples, **options):
    return expected_gradient(estimator, PAIR, X, SUPPORT, LOG_Q, num_samples, **options)


def by_r(estimator, t, num_samples, **options):
    log_r = exact.log_resampled(PAIR, X, SUPPORT, t)
    return expected_gradient(estimator, PAIR, X, SUPPORT, log_r, num_samples, vrs_extra(t, num_samples), **options)


def far_apart(a, b):
    difference = np.concatenate([np.ravel(u - v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)])
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(b))
    return np.abs(difference).max() > 1e-2 * scale


@pytest.mark.parametrize("estimator", [REINFORCE(1), REINFORCE(3), RLOO(2), RLOO(4)], ids=repr)
def test_elbo(estimator):
    assert_trees_close(by_q(estimator, estimator.num_samples), gradient(exact.elbo, PAIR, X, SUPPORT))


@pytest.mark.parametrize(
    "estimator",
    [
        IWAE(3),
        VIMCO(4, "arithmetic"),
        *(pytest.param(e, marks=pytest.mark.slow) for e in (IWAE(1), VIMCO(2), VIMCO(4), VIMCO(2, "arithmetic"))),
    ],
    ids=repr,
)
def test_iwae(estimator):
    k = estimator.num_samples
    assert_trees_close(by_q(estimator, k), gradient(exact.iwae, PAIR, X, SUPPORT, k))


@pytest.mark.parametrize("k", [1, 3])
def test_rws_theta_ascends_the_bound_and_phi_does_not(k):
    got, bound = by_q(RWS(k), k), gradient(exact.iwae, PAIR, X, SUPPORT, k)
    assert not RWS.unbiased
    assert_trees_close(got.model, bound.model)
    assert far_apart(got.proposal, bound.proposal)


def test_vimco_controls_by_hand():
    # a wrong constant in a control leaves no bias, so expectations cannot see it
    f = jnp.log(jnp.asarray([[1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(arithmetic_without(f), np.log([[2.5, 2.0, 1.5]]), rtol=1e-12)
    geometric = [[(6**0.5 + 2 + 3) / 3, (1 + 3**0.5 + 3) / 3, (1 + 2 + 2**0.5) / 3]]
    np.testing.assert_allclose(geometric_without(f), np.log(geometric), rtol=1e-12)
    # an impossible draw: the geometric mean of others with it is 0, without it that of the possible ones
    f = jnp.asarray([[0.0, -1.0, -jnp.inf]])
    np.testing.assert_allclose(3 * jnp.exp(geometric_without(f)[0]), [np.exp(-1), 1, 1 + np.exp(-1) + np.exp(-0.5)])


def test_nvil_by_hand():
    estimator = NVIL(width=2)
    state = estimator.init(jax.random.key(0), PAIR, 2)
    state = state._replace(mean=jnp.asarray(0.5), variance=jnp.asarray(4.0), has_begun=jnp.asarray(True))
    batch = relbo.Batch(jnp.asarray([0, 1]), jnp.asarray([0, 1]))
    log_w = jnp.asarray([[1.0], [3.0]])  # signals 0 and 2, baseline 0
    features = view_of(PAIR, batch.x).features(log_w.dtype)
    np.testing.assert_array_equal(features, [[0.0], [1.0]])
    step = jax.jit(lambda s: estimator.weigh(draws_of(None, log_w, jnp.zeros_like(log_w), features), s, batch))
    weights, after, info = step(state)
    np.testing.assert_allclose(weights.proposal, [[-0.25], [0.75]], rtol=1e-12)
    np.testing.assert_allclose(weights.model, 1.0)
    np.testing.assert_allclose(info.bound, [1.0, 3.0])
    np.testing.assert_allclose([after.mean, after.variance], [0.8 * 0.5 + 0.2 * 1, 0.8 * 4 + 0.2 * 1], rtol=1e-12)
    # the baseline moves towards the signal that is left, whose mean is above c
    assert float(after.baseline.output.bias[0]) > 0
    # the first step of all has nothing to centre with but itself
    weights, after, _ = step(state._replace(has_begun=jnp.asarray(False)))
    np.testing.assert_allclose(weights.proposal, [[-1.0], [1.0]], rtol=1e-12)
    np.testing.assert_allclose([after.mean, after.variance], [1.0, 1.0], rtol=1e-12)
    assert bool(after.has_begun)


def nvil_state(estimator, scale):
    state = estimator.init(jax.random.key(3), PAIR, 2)
    baseline = jax.tree.map(lambda v: v + 0.7, state.baseline)  # not zero
    return NVILState(baseline, state.optimiser, jnp.asarray(-1.3), jnp.asarray(scale**2), jnp.asarray(True))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_nvil_is_the_exact_gradient_divided_by_its_scale(k, scale):
    estimator = NVIL(k, width=5)
    got = by_q(estimator, k, state=nvil_state(estimator, scale), extra=lambda n: jnp.full((n, 1), X.astype(float)))
    bound = gradient(exact.iwae, PAIR, X, SUPPORT, k)
    assert_trees_close(got.model, bound.model)
    assert_trees_close(jax.tree.map(lambda v: v * max(1.0, scale), got.proposal), bound.proposal)
    assert not NVIL.unbiased
    assert far_apart(got.proposal, bound.proposal) == (scale > 1)


@pytest.mark.parametrize("t", [-2.0, 0.0, 2.0])
def test_vrs_and_its_variants_share_theta(t):
    bound = gradient(exact.r_elbo, PAIR, X, SUPPORT, t)
    plain, wake = by_r(VRS(3), t, 3), by_r(VRSWake(3), t, 3)
    assert_trees_close(plain, bound)
    assert_trees_close(wake.model, bound.model)

    def imitation(pair):
        log_r = jax.lax.stop_gradient(exact.log_resampled(pair, X, SUPPORT, t))
        return jnp.sum(jnp.exp(log_r) * exact.log_proposal(pair.proposal, X, SUPPORT))

    assert_trees_close(wake.proposal, gradient(imitation, PAIR).proposal)
    assert not VRSWake.unbiased
    assert far_apart(wake.proposal, bound.proposal)


@pytest.mark.parametrize("t", [-2.0, 1.0])
def test_vrs_raw_ascends_the_r_elbo_in_theta_and_the_elbo_in_phi(t):
    # accepted and raw draws are dependent in the sampler, but each gradient reads only one of them
    s, log_r = 2, exact.log_resampled(PAIR, X, SUPPORT, t)
    index = exact.tuples(4, 2 * s)  # the first round, rejected as a whole, then what was accepted later
    prob = jnp.exp(jnp.sum(LOG_Q[index[:, :s]], axis=-1) + jnp.sum(log_r[index[:, s:]], axis=-1))
    late = jnp.arange(2 * s)[None] >= s
    got = expected_gradient(
        VRSRaw(s), PAIR, X, SUPPORT, LOG_Q, 2 * s, vrs_extra(t, s), index=index, prob=prob, used=late
    )
    r_elbo = gradient(exact.r_elbo, PAIR, X, SUPPORT, t)
    assert_trees_close(got.model, r_elbo.model)
    assert_trees_close(got.proposal, gradient(exact.elbo, PAIR, X, SUPPORT).proposal)
    assert not VRSRaw.unbiased
    assert far_apart(got.proposal, r_elbo.proposal)


def test_vrs_raw_uses_the_first_proposals_and_not_the_accepted():
    """Over many rows the first N draws have frequencies q, those in use r (|z| < 5, 8 states: rate 5e-6)."""
    rows = 2_000
    batch = relbo.Batch(jnp.ones(rows, int), jnp.zeros(rows, int))
    estimator = VRSRaw(2, threshold=relbo.Fixed(2.0), num_proposals=3)
    state = estimator.init(jax.random.key(0), PAIR, 1)

    @jax.jit
    def run(key):
        draws, _ = estimator.draw(split_streams(key), view_of(PAIR, batch.x), state, batch)
        return draws._replace(pull_back=None), estimator.weigh(draws, state, batch)[0]

    draws, weights = run(jax.random.key(5))
    used = np.asarray(draws.used)
    assert draws.z.shape == (rows, 5)
    log_r = exact.log_resampled(PAIR, X, SUPPORT, 2.0)
    for part, log_prob in ((draws.z[:, :3], LOG_Q), (draws.z[used], log_r)):
        prob = np.exp(log_prob)
        count = np.bincount(np.ravel(part), minlength=4)
        z = (count - part.size * prob) / np.sqrt(part.size * prob * (1 - prob))
        assert np.abs(z).max() < 5
    # theta learns from what is in use, phi from the first N
    assert np.all(np.asarray(weights.model)[~used] == 0)
    assert np.all(np.asarray(weights.proposal)[:, 3:] == 0)
    assert np.any(np.asarray(weights.proposal)[:, :3][~used[:, :3]] != 0)


def all_extra(t):
    return lambda n: reading_of(t, n)


def multisets(num_states, size, log_prob):
    """All multisets of states with their probabilities: what a symmetric function of a tuple needs."""
    index = np.array(list(itertools.combinations_with_replacement(range(num_states), size)))
    counts = np.stack([(index == state).sum(axis=1) for state in range(num_states)], axis=1)
    log_orders = math.lgamma(size + 1) - np.vectorize(math.lgamma)(counts + 1.0).sum(axis=1)
    return index, jnp.exp(log_orders + counts @ np.asarray(log_prob))


def vrs_all_gradient(estimator, t, size):
    index, prob = multisets(4, size, LOG_Q)
    state = estimator.init(jax.random.key(0), PAIR, 1)
    return expected_gradient(estimator, PAIR, X, SUPPORT, LOG_Q, size, all_extra(t), state, index=index, prob=prob)


@pytest.mark.slow
def test_vrs_all_bias_vanishes_with_the_number_of_proposals():
    t = 0.5
    bound = gradient(exact.r_elbo, PAIR, X, SUPPORT, t)
    flat = lambda tree: np.concatenate([np.ravel(v) for v in jax.tree.leaves(tree)])  # noqa: E731
    bias = {
        n: np.abs(flat(vrs_all_gradient(VRSAll(n, threshold=relbo.Fixed(t)), t, n)) - flat(bound)).max()
        for n in (2, 4, 8, 16, 32)
    }
    assert not VRSAll.unbiased
    assert bias[2] > 1e-2 * np.abs(flat(bound)).max()
    assert bias[2] > bias[4] > bias[8] > bias[16] > bias[32]
    assert 1.7 < bias[16] / bias[32] < 2.3  # O(1/N)


def test_vrs_all_multisets_agree_with_tuples():
    estimator = VRSAll(3, threshold=relbo.Fixed(0.0))
    state = estimator.init(jax.random.key(0), PAIR, 1)
    assert_trees_close(vrs_all_gradient(estimator, 0.0, 3), by_q(estimator, 3, extra=all_extra(0.0), state=state))


def test_vrs_all_without_rejection_is_rloo_draw_for_draw():
    batch = relbo.Batch(jnp.asarray([0, 1, 1]), jnp.arange(3))
    rloo, every = RLOO(4), VRSAll(4, threshold=relbo.Fixed(0.0), acceptance=relbo.Always())
    key = jax.random.key(8)
    expected = jax.jit(rloo.estimate)(key, PAIR, rloo.init(key, PAIR, 3), batch)[0]
    got = jax.jit(every.estimate)(key, PAIR, every.init(key, PAIR, 3), batch)[0]
    assert_trees_close(got, expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2])
def test_wake_sleep_learns_theta_awake_and_phi_asleep(k):
    # all tuples of draws from q(z | x), times all tuples of dreams (x', z') from p
    awake, asleep = exact.tuples(4, k), exact.tuples(8, k)
    rows = [np.repeat(np.arange(len(awake)), len(asleep)), np.tile(np.arange(len(asleep)), len(awake))]
    log_p = jnp.ravel(PAIR.model.log_table())
    prob = jnp.exp(jnp.sum(LOG_Q[awake], axis=-1)[rows[0]] + jnp.sum(log_p[asleep], axis=-1)[rows[1]])
    dreamt_x, dreamt_z = np.divmod(asleep[rows[1]], 4)
    draws = (jnp.asarray(awake[rows[0]]), (jnp.asarray(dreamt_x), jnp.asarray(dreamt_z)))
    x = jnp.full(len(prob), X)
    got = gradient(lambda p: jnp.sum(prob * WakeSleep(k).surrogate(view_of(p, x), draws)[0]), PAIR)

    def imitation(pair):
        log_q = jax.vmap(lambda x: exact.log_proposal(pair.proposal, x, SUPPORT))(jnp.arange(2))
        return jnp.sum(jnp.exp(log_p) * jnp.ravel(log_q))

    bound = gradient(exact.iwae, PAIR, X, SUPPORT, k)
    assert_trees_close(got.model, bound.model)
    assert_trees_close(got.proposal, gradient(imitation, PAIR).proposal)
    assert not WakeSleep.unbiased
    assert far_apart(got.proposal, bound.proposal)


def test_wake_sleep_dreams_come_from_the_model():
    """Frequencies of the 8 states of (x, z) in 8,000 dreams: |z| < 5, false-failure rate 5e-6."""
    batch = relbo.Batch(jnp.zeros(2_000, int), jnp.zeros(2_000, int))
    streams, view = split_streams(jax.random.key(9)), view_of(PAIR, batch.x)
    (awake, (x, z)), _ = jax.jit(WakeSleep(4).draw)(streams, view, EmptyState.of(1), batch)
    assert awake.shape == x.shape == z.shape == (2_000, 4)
    prob = np.exp(np.ravel(PAIR.model.log_table()))
    count = np.bincount(np.ravel(4 * x + z), minlength=8)
    assert np.abs((count - 8_000 * prob) / np.sqrt(8_000 * prob * (1 - prob))).max() < 5


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: REINFORCE(0), "REINFORCE: num_samples must be an integer >= 1, got 0."),
        (lambda: RLOO(1), "RLOO: num_samples must be an integer >= 2, got 1."),
        (lambda: VIMCO(1), "VIMCO: num_samples must be an integer >= 2, got 1."),
        (lambda: NVIL(width=0), "NVIL: width must be an integer >= 1, got 0."),
        (lambda: NVIL(decay=1.0), r"NVIL: decay must be a number in \[0, 1\), got 1.0."),
        (lambda: NVIL(learning_rate=0.0), "NVIL: learning_rate must be a number > 0, got 0.0."),
        (lambda: VRSWake(1), "VRSWake: num_samples must be an integer >= 2, got 1."),
        (lambda: VRSRaw(max_rounds=0), "VRSRaw: max_rounds must be an integer >= 1, got 0."),
        (lambda: VRSAll(1), "VRSAll: num_samples must be an integer >= 2, got 1."),
    ],
)
def test_bad_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
