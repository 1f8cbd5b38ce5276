"""The measurement of gradient noise, and the textbook order that it must show."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import small_batch, small_sbn

import relbo
from relbo.estimators import ARM, IWAE, NVIL, REBAR, REINFORCE, RLOO, VIMCO, DisARM, MuProp
from relbo.variance import gradient_moments, gradient_noise

PAIR, BATCH = small_sbn()[0], small_batch(2)


def phi_variance(estimator, state=None, num_estimates=10_000):
    state = estimator.init(jax.random.key(0), PAIR, 2) if state is None else state
    return float(gradient_noise(estimator, jax.random.key(3), PAIR, state, BATCH, num_estimates=num_estimates).phi[0])


def after_training(estimator, num_steps):
    def step(state, key):
        return estimator.estimate(key, PAIR, state, BATCH)[1], None

    keys = jax.random.split(jax.random.key(4), num_steps)
    return jax.jit(lambda s: jax.lax.scan(step, s, keys)[0])(estimator.init(jax.random.key(5), PAIR, 2))


# With 10,000 estimates a ratio of variances is known to some 3%; the margin below is more than 5 of these.
MARGIN = 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "better, worse",
    [(DisARM(), ARM()), (VIMCO(5), IWAE(5)), (RLOO(2), REINFORCE(2))],
    ids=lambda e: type(e).__name__,
)
def test_textbook_order(better, worse):
    assert phi_variance(better) < MARGIN * phi_variance(worse)


@pytest.mark.slow
def test_trained_nvil_has_less_variance_than_reinforce():
    estimator = NVIL(learning_rate=1e-2)
    state = after_training(estimator, 1_000)
    scale = max(1.0, float(state.variance))  # undo the normalisation, which shrinks signal and noise alike
    assert scale * phi_variance(estimator, state) < MARGIN * phi_variance(REINFORCE())


@pytest.mark.slow
def test_tuning_lowers_the_variance_of_rebar_below_muprop():
    hot = REBAR(temperature=5.0, learning_rate=3e-2)
    tuned = phi_variance(hot, after_training(hot, 400))
    assert tuned < MARGIN * phi_variance(hot)
    assert tuned < MARGIN * phi_variance(MuProp())


@pytest.mark.slow
def test_moments_are_those_of_the_estimates():
    estimator, key = RLOO(3), jax.random.key(6)
    state = estimator.init(key, PAIR, 2)
    moments = gradient_moments(estimator, key, PAIR, state, BATCH, num_estimates=12, chunk=4)
    keys = jnp.concatenate([jax.random.split(jax.random.fold_in(key, i), 4) for i in range(3)])
    values = jax.jit(jax.vmap(lambda k: estimator.estimate(k, PAIR, state, BATCH)[0]))(keys)
    for got, leaf in zip(jax.tree.leaves(moments.mean), jax.tree.leaves(values), strict=True):
        np.testing.assert_allclose(got, np.mean(leaf, axis=0), atol=1e-12)
    for got, leaf in zip(jax.tree.leaves(moments.variance), jax.tree.leaves(values), strict=True):
        np.testing.assert_allclose(got, np.var(leaf, axis=0, ddof=1), atol=1e-12)
    assert float(moments.num_proposals) == 3

    noise = gradient_noise(estimator, key, PAIR, state, BATCH, num_estimates=12, chunk=4)
    total = sum(float(jnp.sum(v)) for v in jax.tree.leaves(moments.variance.model))
    signal = sum(float(jnp.sum(v**2)) for v in jax.tree.leaves(moments.mean.model))
    np.testing.assert_allclose(noise.theta, [total, 3 * total, np.sqrt(signal / total)], rtol=1e-12)


@pytest.mark.slow
def test_variance_falls_with_the_number_of_samples():
    """RLOO's theta-gradient is a mean of K terms: its variance per proposal does not depend on K."""
    one, four = (
        gradient_noise(RLOO(k), jax.random.key(7), PAIR, relbo.EmptyState.of(2), BATCH, num_estimates=20_000).theta
        for k in (2, 8)
    )
    np.testing.assert_allclose(four.per_proposal / one.per_proposal, 1.0, atol=0.1)
    np.testing.assert_allclose(four.signal_to_noise / one.signal_to_noise, 2.0, atol=0.1)


@pytest.mark.parametrize("options", [{"num_estimates": 15, "chunk": 10}, {"num_estimates": 10, "chunk": 1}])
def test_bad_settings_are_refused(options):
    with pytest.raises(ValueError, match="gradient_moments"):
        gradient_moments(RLOO(), jax.random.key(0), PAIR, relbo.EmptyState.of(2), BATCH, **options)
