"""Reparameterised estimators against Gauss-Hermite quadrature, and the closed-form evidence."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close

import relbo
from relbo.estimators import DReG, Pathwise
from relbo.models.gaussian import linear_gaussian
from relbo.types import EmptyState
from relbo.view import view_of

MEAN = jnp.asarray([0.3, -0.2, 0.5])
X = jnp.asarray([1.0, -0.4, 0.2])


def perturbed(num_latents):
    pair = linear_gaussian(jax.random.key(1), num_latents, MEAN)
    leaves, treedef = jax.tree.flatten(pair)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return jax.tree.unflatten(
        treedef, [v + 0.3 * jax.random.normal(k, v.shape) for k, v in zip(keys, leaves, strict=True)]
    )


def nodes(num_dimensions, order):
    """Points and weights of a product rule for standard normal noise."""
    points, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(points, repeat=num_dimensions)))
    return jnp.asarray(grid), jnp.asarray([np.prod(w) for w in itertools.product(weights, repeat=num_dimensions)])


def integrated(estimator, pair, num_latents, order):
    """The expected gradient of the estimator, and the exact gradient of its bound, by the same quadrature."""
    k = estimator.num_samples
    noise, weights = nodes(num_latents * k, order)
    noise = noise.reshape(-1, k, num_latents)
    size = noise.shape[0]
    x = jnp.broadcast_to(X, (size, 3))

    @jax.jit
    def run(pair):
        def bound(p):
            def log_w(e):
                z = p.proposal.transform(e, X)
                return p.model.log_joint(X, z) - p.proposal.log_prob(z, X)

            values = jax.vmap(jax.vmap(log_w))(noise)
            return jnp.sum(weights * jax.scipy.special.logsumexp(values, axis=-1))

        got = jax.grad(lambda p: jnp.sum(weights * estimator.surrogate(view_of(p, x), noise)[0]))(pair)
        return got, jax.grad(bound)(pair)

    return run(pair)


@pytest.mark.parametrize("drop_score", [False, True])
def test_pathwise_is_exact(drop_score):
    # the log weight is quadratic in the noise: the rule is exact
    got, expected = integrated(Pathwise(1, drop_score), perturbed(2), 2, 6)
    assert Pathwise.unbiased
    assert_trees_close(got, expected)


@pytest.mark.parametrize("k, order", [(1, 12), (2, 96)])
def test_dreg_is_exact(k, order):
    got, expected = integrated(DReG(k), perturbed(1), 1, order)
    assert DReG.unbiased
    assert_trees_close(got, expected)


@pytest.mark.slow
def test_dropping_the_score_leaves_no_noise_at_the_posterior():
    pair = perturbed(1)
    weight, scale = pair.model.decoder.matrix[0], jnp.exp(2 * pair.model.log_scale)
    precision = 1 + jnp.sum(weight**2 / scale)
    mean = jnp.sum(weight * (X - pair.model.decoder.bias) / scale) / precision
    encoder = relbo.models.layers.Affine(jnp.zeros((3, 1)), mean[None])
    pair = relbo.Pair(pair.model, relbo.models.gaussian.DiagonalGaussian(encoder, -0.5 * jnp.log(precision)[None]))
    batch = relbo.Batch(X[None], jnp.zeros(1, int))
    for estimator, noisy in ((Pathwise(1, drop_score=True), False), (DReG(3), False), (Pathwise(1), True)):
        grads, _, info = jax.jit(estimator.estimate)(jax.random.key(5), pair, EmptyState.of(1), batch)
        size = max(float(jnp.max(jnp.abs(v))) for v in jax.tree.leaves(grads.proposal))
        assert (size > 1e-3) if noisy else (size < 1e-12)
        np.testing.assert_allclose(info.bound, pair.model.log_evidence(X), rtol=1e-12)


def test_sample_and_transform_agree():
    pair, key = perturbed(2), jax.random.key(6)
    expected = pair.proposal.transform(pair.proposal.noise(key), X)
    np.testing.assert_array_equal(pair.proposal.sample(key, X), expected)


def test_model_samples_have_the_closed_form_covariance():
    """Each of 9 entries within 5 standard errors (bounded by sqrt(2) max variance / sqrt(n)): rate 5e-6."""
    model = perturbed(2).model
    x = jax.jit(jax.vmap(lambda k: model.sample(k)[0]))(jax.random.split(jax.random.key(7), 40_000))
    weight = model.decoder.matrix.T
    expected = weight @ weight.T + jnp.diag(jnp.exp(2 * model.log_scale))
    error = 5 * np.sqrt(2 / 40_000) * float(jnp.max(expected))
    np.testing.assert_allclose(np.cov(np.asarray(x).T), expected, atol=error)
    np.testing.assert_allclose(jnp.mean(x, axis=0), model.decoder.bias, atol=error)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: linear_gaussian(jax.random.key(0), 0, MEAN), "num_latents must be an integer >= 1, got 0"),
        (lambda: linear_gaussian(jax.random.key(0), 2, jnp.zeros(0)), "data_mean must be a vector"),
        (lambda: Pathwise(0), "Pathwise: num_samples must be an integer >= 1, got 0"),
        (lambda: DReG(0), "DReG: num_samples must be an integer >= 1, got 0"),
    ],
)
def test_bad_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
