"""Numeric settings are traced: `jax.vmap` over one of them gives a whole curve in one compilation."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import table_pair

import relbo
from relbo import exact, rejection
from relbo.streams import split_streams
from relbo.view import view_of

PAIR, SUPPORT, ROWS = table_pair(3), jnp.arange(4), 300
BATCH = relbo.Batch(jnp.zeros(ROWS, int), jnp.arange(ROWS))
"""Many rows of one x: independent repetitions."""
X = jnp.asarray(0)


class Traced:
    """Compiles a function, and counts how often that needs a trace of it."""

    def __init__(self, function):
        self.count = 0

        @functools.wraps(function)
        def counted(*args):
            self.count += 1
            return function(*args)

        self.call = jax.jit(counted)


def step_of(estimator):
    """Bound, rate and gradient of one step; the settings of the estimator may be traced."""
    state = estimator.init(jax.random.key(0), PAIR, ROWS)
    grads, _, info = estimator.estimate(jax.random.key(1), PAIR, state, BATCH)
    return info.bound, info.extra.acceptance, info.extra.threshold, grads


SWEEPS = {
    # T and sharpness at once: each place of the curve has both
    "T and sharpness": (
        lambda v: relbo.VRS(2, relbo.Fixed(v[0]), relbo.Soft(v[1]), num_proposals=4),
        jnp.asarray([[3.0, 1.0], [0.0, 1.0], [-2.0, 1.0], [0.0, 0.3], [0.0, 4.0], [jnp.inf, 1.0]]),
    ),
    "rate": (lambda v: relbo.VRS(2, rate=v, num_proposals=4), jnp.asarray([0.9, 0.5, 0.2])),
    "gamma": (lambda v: relbo.VRS(2, relbo.Quantile(v, 100, 1, warmup=0)), jnp.asarray([0.95, 0.5, 0.1])),
    "online gamma": (lambda v: relbo.VRS(2, relbo.Quantile(v, 100, None)), jnp.asarray([0.95, 0.5, 0.1])),
}


@functools.cache
def swept(name):
    make, values = SWEEPS[name]
    sweep = Traced(jax.vmap(lambda v: step_of(make(v))))
    result = sweep.call(values)
    assert sweep.count == 1, "one compilation for the whole curve"
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["T and sharpness", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rate", "gamma", "online gamma"))]
)
def test_a_sweep_is_the_loop_over_its_settings(name):
    make, values = SWEEPS[name]
    curve = swept(name)
    alone = Traced(lambda v: step_of(make(v)))
    for place, value in enumerate(values):
        expected = alone.call(value)
        for got, one in zip(jax.tree.leaves(curve), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(got[place], one, rtol=1e-9, atol=1e-12)
    assert alone.count == 1, "other numbers do not compile again"


@pytest.mark.slow
def test_numbers_and_arrays_mean_the_same():
    # as whoever writes VRS(2, 0.5) has it
    make, values = SWEEPS["T and sharpness"]
    t, sharpness = map(float, values[3])
    plain = jax.jit(lambda: step_of(relbo.VRS(2, t, relbo.Soft(sharpness), num_proposals=4)))()
    for got, one in zip(jax.tree.leaves(swept("T and sharpness")), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(got[3], one, rtol=1e-9, atol=1e-12)


def test_the_trade_off_curve_is_the_exact_one():
    # means over 300 rows within 5.5 of their standard errors, for 6 places (3e-7)
    bound, rate, _, _ = swept("T and sharpness")
    values = SWEEPS["T and sharpness"][1]
    oracle = Traced(
        jax.vmap(
            lambda v: (
                exact.r_elbo(PAIR, X, SUPPORT, v[0], relbo.Soft(v[1])),
                jnp.exp(exact.log_z(PAIR, X, SUPPORT, v[0], relbo.Soft(v[1]))),
            )
        )
    )
    r_elbo, z = oracle.call(values)
    assert oracle.count == 1
    for place in range(len(values)):
        for seen, truth in ((bound[place], r_elbo[place]), (rate[place], z[place])):
            error = np.std(seen, ddof=1) / np.sqrt(ROWS)
            assert abs(float(jnp.mean(seen) - truth)) <= 5.5 * error + 1e-12
    # tighter and dearer as T falls, and without rejection it is the ELBO
    assert r_elbo[0] < r_elbo[1] < r_elbo[2] and z[0] > z[1] > z[2]
    np.testing.assert_allclose(r_elbo[5], exact.elbo(PAIR, X, SUPPORT), rtol=1e-12)
    np.testing.assert_allclose(z[5], 1.0)


@pytest.mark.slow
def test_the_rate_of_each_place_is_the_one_asked_for():
    # T rests on 100 draws of 300 rows each; the mean rate is biased by their noise, a little
    _, _, t, _ = swept("rate")
    rates = jax.vmap(jax.vmap(lambda one: jnp.exp(exact.log_z(PAIR, X, SUPPORT, one))))(t)
    np.testing.assert_allclose(rates.mean(axis=1), SWEEPS["rate"][1], atol=0.03)


def test_an_estimator_as_an_argument_compiles_once_for_all_its_numbers():
    count = []

    @eqx.filter_jit
    def bound(estimator):
        count.append(None)
        return step_of(estimator)[0].mean()

    values = [
        float(bound(relbo.VRS(2, jnp.asarray(t), relbo.Soft(jnp.asarray(s))))) for t, s in [(2.0, 1.0), (-1.0, 0.5)]
    ]
    assert len(count) == 1 and values[0] != values[1]


@pytest.mark.slow
def test_draws_of_a_swept_sampler_are_those_of_each_place_alone():
    view, streams = view_of(PAIR, BATCH.x[:20]), split_streams(jax.random.key(3))

    def draws(t):
        return rejection.draw_accepted(view, streams, jnp.full(20, t), relbo.Soft(), num_samples=3, max_rounds=10**5)

    ts = jnp.asarray([4.0, 0.0, -3.0])
    together, alone = jax.jit(jax.vmap(draws))(ts), jax.jit(draws)
    for place, t in enumerate(ts):
        one = alone(t)
        np.testing.assert_array_equal(together.z[place], one.z)
        np.testing.assert_array_equal(together.num_proposals[place], one.num_proposals)
        assert int(together.num_evaluated[place]) == int(one.num_evaluated)
