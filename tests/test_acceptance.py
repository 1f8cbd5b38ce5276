import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.acceptance import log_odds_of, parse

ACCEPTANCES = [
    relbo.Soft(0.5),
    relbo.Soft(),
    relbo.Soft(2.0),
    relbo.Soft(50.0),
    relbo.Soft(1.0, 0.02),
    relbo.Hard(),
    relbo.Always(),
]
POINTS = [-np.inf, -1e4, -300.0, -40.0, -3.0, -0.1, 0.0, 0.1, 3.0, 40.0, 300.0, 1e4, np.inf]


def reference(acceptance, u):
    """Log a and its slope from their definitions, in long double."""
    u = np.asarray(u, np.longdouble)
    with np.errstate(all="ignore"):
        if isinstance(acceptance, relbo.Always):
            return np.zeros_like(u), np.zeros_like(u)
        if isinstance(acceptance, relbo.Hard):
            return np.minimum(u, 0), (u < 0).astype(float)
        s = np.longdouble(acceptance.sharpness)
        # (1 + e^{-su})^{-1/s}; long double holds e^{11000}, beyond it the 1 is lost
        exponent = -s * u
        log_sum = np.where(exponent > 11_000, exponent, np.log1p(np.exp(np.minimum(exponent, 11_000))))
        plain, slope, floor = -log_sum / s, 1 / (1 + np.exp(s * u)), np.longdouble(acceptance.floor)
        a = floor + (1 - floor) * np.exp(plain)
        rho = np.where(floor > 0, (1 - floor) * np.exp(plain) / a, 1)
        log_a = np.where(plain > -1, np.log1p((1 - floor) * np.expm1(plain)), np.log(a))
        return np.where(floor > 0, np.where(np.isneginf(u), -np.inf, log_a), plain), rho * slope


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("acceptance", ACCEPTANCES, ids=repr)
def test_values_and_slopes(acceptance, dtype):
    u = jnp.asarray(POINTS, dtype)
    log_prob, slope = reference(acceptance, np.asarray(u))
    got, got_slope = acceptance.log_prob(u), acceptance.slope(u)
    assert got.dtype == dtype and got_slope.dtype == dtype
    tiny, rtol = float(jnp.finfo(dtype).tiny), 8 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got, log_prob.astype(dtype), rtol=rtol, atol=tiny)
    # e^{su} amplifies the rounding of su
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


@pytest.mark.parametrize("acceptance", [*ACCEPTANCES[:5], relbo.Always()], ids=repr)
def test_curvature_is_the_derivative_of_the_slope(acceptance):
    u = jnp.asarray([-np.inf, -1e4, -7.0, -1.3, 0.0, 0.4, 2.5, 1e4, np.inf])
    curvature = acceptance.curvature(u)
    np.testing.assert_allclose(curvature, jax.vmap(jax.grad(acceptance.slope))(u), atol=1e-14)
    u, step = u[2:-2], 1e-5
    difference = (acceptance.slope(u + step) - acceptance.slope(u - step)) / (2 * step)
    np.testing.assert_allclose(curvature[2:-2], difference, atol=1e-6)


def test_a_slope_that_jumps_has_no_curvature():
    with pytest.raises(ValueError, match=r"must be smooth .* got Hard\(\)"):
        relbo.Hard().curvature(jnp.zeros(3))


def test_a_floor_accepts_no_less_but_nothing_that_is_impossible():
    u, floored = jnp.asarray([-np.inf, -1e4, -40.0, 0.0, 40.0]), relbo.Soft(1.0, 0.25)
    np.testing.assert_allclose(jnp.exp(floored.log_prob(u)), [0, 0.25, 0.25, 0.625, 1], rtol=1e-15)
    # below the floor nothing can be reached: a finite u at which next to nothing but the floor accepts
    np.testing.assert_allclose(jnp.exp(floored.log_prob(floored.level(jnp.asarray(0.2)))), 0.25, rtol=1e-5)
    # a floor of 0 that only a compiled program knows of
    traced = jax.jit(lambda eps, u: (relbo.Soft(1.0, eps).log_prob(u), relbo.Soft(1.0, eps).slope(u)))
    for got, expected in zip(traced(0.0, u), (relbo.Soft().log_prob(u), relbo.Soft().slope(u)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-15)
    for floor in (-0.1, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"Soft: floor must be a number in \[0, 1\), got"):
            relbo.Soft(1.0, floor)


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_second_derivative_of_soft(sharpness):
    # a user's code may differentiate the slope: g'' = -s g' (1 - g')
    u = jnp.asarray([-1e4, -2.0, 0.0, 0.7, 1e4])
    second = jax.vmap(jax.grad(jax.grad(relbo.Soft(sharpness).log_prob)))(u)
    slope = relbo.Soft(sharpness).slope(u)
    np.testing.assert_allclose(second, -sharpness * slope * (1 - slope), atol=1e-14)


def test_soft_at_one_is_the_papers_acceptance():
    log_w, log_m = jnp.asarray([-3.0, 0.0, 2.0]), 1.5
    a = jnp.exp(relbo.Soft().log_prob(log_w - log_m))
    np.testing.assert_allclose(a, jnp.exp(log_w) / (jnp.exp(log_w) + jnp.exp(log_m)), rtol=1e-14)


def test_soft_tends_to_hard():
    u = jnp.linspace(-5, 5, 101)
    gaps = [float(jnp.max(jnp.abs(relbo.Soft(s).log_prob(u) - relbo.Hard().log_prob(u)))) for s in (1.0, 10.0, 1e3)]
    np.testing.assert_allclose(gaps, np.log(2) / np.array([1.0, 10.0, 1e3]), rtol=1e-12)


@pytest.mark.parametrize("rate", [1e-300, 1e-6, 0.01, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("acceptance", ACCEPTANCES[:-1], ids=repr)
def test_level_is_the_inverse(acceptance, rate):
    if getattr(acceptance, "floor", 0) > rate:
        return  # below the floor there is no level
    u = acceptance.level(jnp.asarray(rate))
    assert np.isfinite(u)
    np.testing.assert_allclose(acceptance.log_prob(u), np.log(rate), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_level_of_traced_rates_and_sharpnesses(dtype):
    # settings may be traced: a curve over them is one compilation
    rate = jnp.asarray([0.01, 0.5, 0.9, 0.5], dtype)
    sharpness = jnp.asarray([0.5, 1.0, 2.0, 50.0], dtype)
    u = jax.jit(jax.vmap(lambda r, s: relbo.Soft(s).level(r)))(rate, sharpness)
    assert u.dtype == dtype
    log_a = jax.vmap(lambda v, s: relbo.Soft(s).log_prob(v))(u, sharpness)
    np.testing.assert_allclose(log_a, np.log(rate), rtol=1e-4 if dtype == jnp.float32 else 1e-10)
    np.testing.assert_array_equal(jax.vmap(relbo.Hard().level)(rate), jnp.log(rate))


def test_level_of_one_is_where_everything_is_accepted():
    assert np.isposinf(relbo.Soft().level(jnp.asarray(1.0)))
    assert relbo.Hard().level(jnp.asarray(1.0)) == 0


def test_always_has_no_level():
    with pytest.raises(ValueError, match=r"must be able to reject.*Always\(\)"):
        relbo.Always().level(jnp.asarray(0.5))


def test_log_odds_at_the_edges():
    log_p = jnp.asarray([0.0, -jnp.inf, -jnp.inf])
    log_q = jnp.asarray([-1.0, -1.0, -1.0])
    t = jnp.asarray([jnp.inf, jnp.inf, 2.0])
    np.testing.assert_array_equal(log_odds_of(log_p, log_q, t), [np.inf, -np.inf, -np.inf])
    assert log_odds_of(log_p.astype(jnp.float32), log_q.astype(jnp.float32), t).dtype == jnp.float32


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("soft", relbo.Soft()),
        ("soft:0.5", relbo.Soft(0.5)),
        ("soft:1:0.01", relbo.Soft(1.0, 0.01)),
        (" Hard ", relbo.Hard()),
        ("always", relbo.Always()),
    ],
)
def test_words(words, meant):
    assert parse(words) == meant


@pytest.mark.parametrize(
    "words", ["", "medium", "soft:x", "soft:0", "soft:-1", "soft:nan", "hard:2", "soft:1:2", "soft:1:0:0"]
)
def test_other_words_are_refused(words):
    expected = (
        r"acceptance must be soft:SHARPNESS \(> 0\), soft:SHARPNESS:FLOOR \(in \[0, 1\)\), hard or always, got '.*'"
    )
    with pytest.raises(ValueError, match=expected + r"\.$"):
        parse(words)
