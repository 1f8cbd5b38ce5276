"""Bernoulli units: the fused log-likelihood against its plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo import units


def plain(value, logits):
    return jnp.sum(value * logits - jax.nn.softplus(logits))


@pytest.mark.parametrize("size", [1, 8, 13, 40])
def test_log_bernoulli_and_its_derivatives_are_those_of_the_plain_formula(size):
    value = jax.random.uniform(jax.random.key(0), (size,))
    logits = (5 * jax.random.normal(jax.random.key(1), (size,))).at[0].set(0.0)  # where |l| has a kink
    for derivative in (lambda f: f, jax.grad, lambda f: jax.grad(f, argnums=1), lambda f: jax.hessian(f, argnums=1)):
        np.testing.assert_allclose(
            derivative(units.log_bernoulli)(value, logits), derivative(plain)(value, logits), rtol=1e-13, atol=1e-14
        )


def test_large_logits_keep_log_probabilities_of_single_precision_finite():
    logits = jnp.asarray([300.0, -300.0, 1e4, -1e4] * 5, jnp.float32)
    value = jnp.asarray([0.0, 1.0, 0.0, 1.0] * 5, jnp.float32)
    np.testing.assert_allclose(units.log_bernoulli(value, logits), -5 * (600.0 + 2e4), rtol=1e-6)
    assert units.log_bernoulli(1 - value, logits) == 0
    assert np.isfinite(jax.grad(units.log_bernoulli, argnums=1)(value, logits)).all()


def test_half_precision_keeps_small_terms():
    logits = jnp.full(64, 6.0, jnp.bfloat16)  # e^-6 is below the rounding of 1
    found = float(units.log_bernoulli(jnp.ones(64, jnp.bfloat16), logits))
    np.testing.assert_allclose(found, -64 * np.log1p(np.exp(-6.0)), rtol=0.05)


def test_log_bernoulli_of_affine_logits_and_its_gradients_are_those_of_the_plain_formula():
    # in every argument, alone and summed over weighed draws that share weight and bias, as a step takes it
    keys = jax.random.split(jax.random.key(2), 5)
    value, bias = jax.random.uniform(keys[0], (13,)), jax.random.normal(keys[1], (13,))
    weight, v = jax.random.normal(keys[2], (5, 13)), jax.random.normal(keys[3], (3, 5))

    def total(function, value, weight, bias, v):
        each = jax.vmap(function, (None, None, None, 0))(value, weight, bias, v)
        return jnp.asarray([0.5, -1.0, 2.0]) @ each

    def formula(value, weight, bias, v):
        return plain(value, v @ weight + bias)

    for arguments in (1, (0, 1, 2, 3)):
        got, want = (
            jax.jit(jax.value_and_grad(lambda *a, f=f: total(f, *a), arguments))(value, weight, bias, v)
            for f in (units.log_bernoulli_affine, formula)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), got, want)


def test_the_gradient_in_the_weights_weighs_the_small_matrix():
    # 3 draws of 5 numbers into 13 units: the product takes the slopes (3, 13) as they are and the weighed draws (3, 5)
    def total(weight, v, c):
        each = jax.vmap(units.log_bernoulli_affine, (None, None, None, 0))(jnp.ones(13), weight, jnp.zeros(13), v)
        return c @ each

    jaxpr = jax.make_jaxpr(jax.grad(total))(jnp.zeros((5, 13)), jnp.zeros((3, 5)), jnp.zeros(3)).jaxpr
    made = [sorted(e.outvars[0].aval.shape) for e in jaxpr.eqns if e.primitive.name in ("dot_general", "mul")]
    # weighed draws, the gradient and the logits; a weighed slope would be a second one of the logits' size
    assert made.count([3, 5]) == 1 and made.count([5, 13]) == 1
    assert made.count([3, 13]) == 1, "the slopes are not weighed"
