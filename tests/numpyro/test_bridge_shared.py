"""Draws of the latents outside the plate: one for every two places while nothing is rejected, one for all after."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro_programs as programs
import pytest

import relbo
from relbo.numpyro import EstimatorELBO
from relbo.numpyro.objective import STATE_SITE

NUM_PROPOSALS, NUM_KEYS = 8, 4_000


@functools.cache
def estimates(threshold, has_state, num_keys):
    """Losses and gradients of `VRSPath` over many keys, with or without a place for its state."""
    loss = EstimatorELBO(relbo.VRSPath(2, threshold, num_proposals=NUM_PROPOSALS))
    program = (programs.path_model, programs.path_guide, programs.X)
    state = {STATE_SITE: loss.init_state(jax.random.key(0), programs.PATH_PARAMS, *program)} if has_state else {}

    def one(key):
        def value(params):
            return loss.loss_with_mutable_state(key, {**params, **state}, *program, subsample_size=2)["loss"]

        return jax.value_and_grad(value)(programs.PATH_PARAMS)

    return programs.quick(jax.vmap(one))(jax.random.split(jax.random.key(1), num_keys))


@pytest.mark.slow
def test_without_rejection_the_mean_is_the_elbo_and_the_noise_of_shared_latents_a_quarter():
    value, gradient = jax.value_and_grad(lambda p: programs.exact_path(p, 1))(programs.PATH_PARAMS)
    losses, grads = estimates(relbo.Fixed(jnp.inf), True, NUM_KEYS)
    for found, expected in ((losses, value), *((grads[name], gradient[name]) for name in gradient)):
        error = jnp.std(found) / np.sqrt(NUM_KEYS)
        assert abs(jnp.mean(found) + expected) < 4.5 * error  # one false failure in 20,000 runs of the six
    # four draws of g instead of one; what the minibatch adds is no noise of g
    _, others = estimates(relbo.Fixed(jnp.inf), False, NUM_KEYS)
    assert jnp.var(grads["log_scale"]) < 0.35 * jnp.var(others["log_scale"])


def test_with_rejection_all_places_have_the_same_draw():
    # without a state nothing is known to be accepted, so there is one draw from the beginning: the same one
    ours, theirs = (estimates(relbo.Fixed(-1.0), has_state, 50) for has_state in (True, False))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
