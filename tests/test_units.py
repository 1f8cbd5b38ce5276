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
