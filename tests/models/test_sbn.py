import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_frequencies

import relbo
from relbo import exact, units

WIDTHS = [(3,), (2, 2), (2, 1, 2)]


def small(widths=(2, 2), num_hidden=0, data=2, seed=0):
    """A network with biases and priors away from their initial zeros, so that a forgotten one shows."""
    pair = relbo.sbn(jax.random.key(seed), widths, jnp.linspace(0.2, 0.8, data), num_hidden=num_hidden)
    leaves, tree = jax.tree.flatten(pair)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [leaf + jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    pair = jax.tree.unflatten(tree, noisy)
    support = jnp.split(exact.binary_states(sum(widths)), np.cumsum(widths)[:-1], axis=1)
    return pair, tuple(support)


@pytest.mark.parametrize(
    ("widths", "num_hidden"),
    [
        *(case for case in itertools.product(WIDTHS, (0, 1, 2)) if case != (WIDTHS[2], 2)),
        pytest.param(WIDTHS[2], 2, marks=pytest.mark.slow),
    ],
)
def test_model_and_proposal_are_normalised(widths, num_hidden):
    pair, support = small(widths, num_hidden)
    observations = exact.binary_states(2)
    joint = jax.vmap(lambda x: exact.log_joint(pair.model, x, support))(observations)
    np.testing.assert_allclose(np.exp(joint).sum(), 1, rtol=1e-12)
    proposal = jax.vmap(lambda x: exact.log_proposal(pair.proposal, x, support))(observations)
    np.testing.assert_allclose(np.exp(proposal).sum(axis=1), np.ones(4), rtol=1e-12)
    assert len(np.unique(np.round(proposal, 9))) > 4  # q depends on x


def sigmoid(v):
    return 1 / (1 + np.exp(-np.asarray(v)))


def bernoulli(value, p):
    return np.prod(np.where(np.asarray(value) == 1, p, 1 - p))


def test_log_joint_and_log_prob_by_hand():
    # a two-layer linear network, written out unit by unit
    pair, _ = small((2, 3))
    down, up, mean = pair.model.downward, pair.proposal.upward, pair.proposal.data_mean
    for bits in list(itertools.product((0.0, 1.0), repeat=7))[::9]:
        x, h1, h2 = (np.array(bits[i:j]) for i, j in ((0, 2), (2, 4), (4, 7)))
        p = bernoulli(h2, sigmoid(pair.model.prior))
        p *= bernoulli(h1, sigmoid(down[1].output.matrix.T @ (2 * h2 - 1) + down[1].output.bias))
        p *= bernoulli(x, sigmoid(down[0].output.matrix.T @ (2 * h1 - 1) + down[0].output.bias))
        q = bernoulli(h1, sigmoid(up[0].output.matrix.T @ (x - mean) + up[0].output.bias))
        q *= bernoulli(h2, sigmoid(up[1].output.matrix.T @ (2 * h1 - 1) + up[1].output.bias))
        z = (jnp.asarray(h1), jnp.asarray(h2))
        np.testing.assert_allclose(pair.model.log_joint(jnp.asarray(x), z), np.log(p), rtol=1e-10)
        np.testing.assert_allclose(pair.proposal.log_prob(z, jnp.asarray(x)), np.log(q), rtol=1e-10)


def state_number(layers):
    bits = np.concatenate([np.asarray(layer, int) for layer in layers], axis=-1)
    return bits @ (2 ** np.arange(bits.shape[-1])[::-1])


@pytest.mark.parametrize("widths", [*WIDTHS[:2], pytest.param(WIDTHS[2], marks=pytest.mark.slow)])
def test_sample_frequencies(widths):
    pair, support = small(widths)
    keys = jax.random.split(jax.random.key(3), 20_000)
    x = jnp.asarray([1.0, 0.0])
    z = jax.jit(jax.vmap(lambda k: pair.proposal.sample(k, x)))(keys)
    assert_frequencies(state_number(z), exact.log_proposal(pair.proposal, x, support))

    x, z = jax.jit(jax.vmap(pair.model.sample))(keys)
    joint = jax.vmap(lambda x: exact.log_joint(pair.model, x, support))(exact.binary_states(2))
    assert_frequencies(state_number((x, *z)), joint.reshape(-1))


@pytest.mark.parametrize("dtype", [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.float64])
def test_sample_and_log_prob_agree(dtype):
    pair = relbo.sbn(jax.random.key(0), (4, 3), jnp.full(5, 0.3, dtype))
    x = jnp.asarray([1, 0, 0, 1, 1], dtype)
    for key in jax.random.split(jax.random.key(1), 5):
        z, log_q = pair.proposal.sample_and_log_prob(key, pair.proposal.condition(x))
        jax.tree.map(np.testing.assert_array_equal, z, pair.proposal.sample(key, x))
        np.testing.assert_allclose(log_q, pair.proposal.log_prob(z, x), rtol=1e-5)
        assert log_q.dtype == dtype and all(layer.dtype == dtype for layer in z)
        assert pair.model.log_joint(x, z).dtype == dtype


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_initial_values(dtype):
    mean = jnp.asarray([0.0, 0.25, 1.0], dtype)
    pair = relbo.sbn(jax.random.key(0), (4, 2), mean, num_hidden=1)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(pair))
    share = np.array([0.001, 0.25, 0.999])
    np.testing.assert_allclose(pair.model.downward[0].output.bias, np.log(share / (1 - share)), rtol=1e-4)
    np.testing.assert_array_equal(pair.model.prior, np.zeros(2))
    np.testing.assert_array_equal(pair.proposal.data_mean, mean)
    for conditional, fan in ((pair.model.downward[0], (4, 3)), (pair.proposal.upward[0], (3, 4))):
        first, last = conditional.hidden[0].matrix, conditional.output.matrix
        assert first.shape == fan and last.shape == (fan[1], fan[1])
        assert 0 < np.abs(first).max() <= np.sqrt(6 / sum(fan))
        assert 0 < np.abs(last).max() <= np.sqrt(6 / (2 * fan[1]))
    assert not np.array_equal(pair.model.downward[1].output.matrix, pair.proposal.upward[1].output.matrix.T)


def test_one_observable_and_one_unit():
    pair = relbo.sbn(jax.random.key(0), [1], jnp.asarray([1.0]))
    x, z = pair.model.sample(jax.random.key(1))
    assert x.shape == (1,) and z[0].shape == (1,)
    support = (exact.binary_states(1),)
    log_p = [exact.log_evidence(pair.model, jnp.full(1, v), support) for v in (0.0, 1.0)]
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, rtol=1e-12)


@pytest.mark.slow
def test_data_mean_is_not_trained():
    pair, _ = small()
    batch = relbo.Batch(jnp.asarray([[1.0, 0.0], [0.0, 1.0]]), jnp.arange(2))
    estimator = relbo.VRS(3, relbo.Fixed(0.0))
    grads, _, _ = jax.jit(estimator.estimate)(
        jax.random.key(0), pair, estimator.init(jax.random.key(0), pair, 2), batch
    )
    np.testing.assert_array_equal(grads.proposal.data_mean, np.zeros(2))
    assert np.abs(grads.proposal.upward[0].output.matrix).max() > 0


def test_mean_x():
    pair, _ = small((2, 2))
    z = (jnp.asarray([1.0, 0.0]), jnp.asarray([1.0, 1.0]))
    log_one = [pair.model.log_joint(jnp.asarray(x), z) for x in ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0])]
    p = np.exp(log_one)
    np.testing.assert_allclose(pair.model.mean_x(z)[0], p[:2].sum() / p.sum(), rtol=1e-10)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_noise_is_strictly_inside(dtype):
    # 0 would have an infinite logit; 300,000 numbers meet float32's lowest cell (2^-23) now and then
    noise = units.uniform_noise(jax.random.key(0), (300_000,), jnp.dtype(dtype))
    assert noise.dtype == dtype and float(noise.min()) > 0 and float(noise.max()) < 1
    logits = jnp.zeros_like(noise)
    relaxed = units.relaxed(0.5)(logits, noise)
    assert np.isfinite(relaxed).all()
    assert_frequencies(np.floor(16 * np.asarray(noise, float)).astype(int), np.full(16, -np.log(16)))


def test_units():
    logits, noise = jnp.asarray([0.0, 2.0, -50.0, 50.0]), jnp.asarray([0.4, 0.95, 0.5, 0.5])
    np.testing.assert_array_equal(units.hard(logits, noise), [1, 0, 0, 1])
    np.testing.assert_allclose(units.mean(logits, noise), sigmoid(logits), rtol=1e-12)
    np.testing.assert_array_equal(units.replay(logits, noise), noise)
    np.testing.assert_array_equal(units.relaxed(0.1)(logits, noise) > 0.5, noise < sigmoid(logits))
    cold = units.relaxed(1e-3)(logits, noise)
    np.testing.assert_allclose(cold, np.round(cold), atol=1e-6)
