import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.acceptance import log_odds_of

ACCEPTANCES = [relbo.Soft(0.5), relbo.Soft(), relbo.Soft(2.0), relbo.Soft(50.0), relbo.Hard(), relbo.Always()]
POINTS = [-np.inf, -1e4, -300.0, -40.0, -3.0, -0.1, 0.0, 0.1, 3.0, 40.0, 300.0, 1e4, np.inf]


def reference(acceptance, u):
    """Log a and its slope from their definitions, in long double."""
    u = np.asarray(u, np.longdouble)
    with np.errstate(all="ignore"):
        if isinstance(acceptance, relbo.Always):
            return np.zeros_like(u), np.zeros_like(u)
        if isinstance(acceptance, relbo.Hard):
            return np.minimum(u, 0), (u < 0).astype(float)
        t = np.longdouble(acceptance.t)
        # (1 + e^{-tu})^{-1/t}; long double holds e^{11000}, beyond it the 1 is lost
        exponent = -t * u
        log_sum = np.where(exponent > 11_000, exponent, np.log1p(np.exp(np.minimum(exponent, 11_000))))
        return -log_sum / t, 1 / (1 + np.exp(t * u))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=repr)
def test_values_and_slopes(acceptance, dtype):
    u = jnp.asarray(POINTS, dtype)
    log_prob, slope = reference(acceptance, np.asarray(u))
    got, got_slope = acceptance.log_prob(u), acceptance.slope(u)
    assert got.dtype == dtype and got_slope.dtype == dtype
    tiny, rtol = float(jnp.finfo(dtype).tiny), 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got, log_prob.astype(dtype), rtol=rtol, atol=tiny)
    # e^{tu} amplifies the rounding of tu
    np.testing.assert_allclose(got_slope, slope.astype(dtype), rtol=rtol * 2000, atol=tiny)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=repr)
def test_gradient_is_the_slope_everywhere(acceptance, dtype):
    u = jnp.asarray(POINTS, dtype)
    grad = jax.vmap(jax.grad(acceptance.log_prob))(u)
    assert np.all(np.isfinite(grad))
    smooth = u != 0 if isinstance(acceptance, relbo.Hard) else np.full(u.shape, True)
    np.testing.assert_array_equal(grad[smooth], acceptance.slope(u)[smooth])


@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=repr)
def test_slope_against_finite_differences(acceptance):
    u = jnp.asarray([-7.0, -1.3, -0.2, 0.4, 2.5, 8.0])
    step = 1e-5
    difference = (acceptance.log_prob(u + step) - acceptance.log_prob(u - step)) / (2 * step)
    np.testing.assert_allclose(acceptance.slope(u), difference, atol=1e-8)


@pytest.mark.parametrize("t", [0.5, 1.0, 2.0])
def test_second_derivative_of_soft(t):
    # a user's code may differentiate the slope: g'' = -t s (1 - s), s = sigmoid(-t u)
    u = jnp.asarray([-1e4, -2.0, 0.0, 0.7, 1e4])
    second = jax.vmap(jax.grad(jax.grad(relbo.Soft(t).log_prob)))(u)
    s = relbo.Soft(t).slope(u)
    np.testing.assert_allclose(second, -t * s * (1 - s), atol=1e-14)


def test_soft_at_one_is_the_papers_acceptance():
    log_w, log_m = jnp.asarray([-3.0, 0.0, 2.0]), 1.5
    a = jnp.exp(relbo.Soft().log_prob(log_w - log_m))
    np.testing.assert_allclose(a, jnp.exp(log_w) / (jnp.exp(log_w) + jnp.exp(log_m)), rtol=1e-14)


def test_soft_tends_to_hard():
    u = jnp.linspace(-5, 5, 101)
    gaps = [float(jnp.max(jnp.abs(relbo.Soft(t).log_prob(u) - relbo.Hard().log_prob(u)))) for t in (1.0, 10.0, 1e3)]
    np.testing.assert_allclose(gaps, np.log(2) / np.array([1.0, 10.0, 1e3]), rtol=1e-12)


@pytest.mark.parametrize("rate", [1e-300, 1e-6, 0.01, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("acceptance", ACCEPTANCES[:-1], ids=repr)
def test_level_is_the_inverse(acceptance, rate):
    u = acceptance.level(rate)
    assert np.isfinite(u)
    np.testing.assert_allclose(acceptance.log_prob(jnp.asarray(u)), np.log(rate), rtol=1e-9, atol=1e-15)


def test_always_has_no_level():
    with pytest.raises(ValueError, match=r"must be able to reject.*Always\(\)"):
        relbo.Always().level(0.5)


def test_log_odds_at_the_edges():
    log_p = jnp.asarray([0.0, -jnp.inf, -jnp.inf])
    log_q = jnp.asarray([-1.0, -1.0, -1.0])
    t = jnp.asarray([jnp.inf, jnp.inf, 2.0])
    np.testing.assert_array_equal(log_odds_of(log_p, log_q, t), [np.inf, -np.inf, -np.inf])
    assert log_odds_of(log_p.astype(jnp.float32), log_q.astype(jnp.float32), t).dtype == jnp.float32
