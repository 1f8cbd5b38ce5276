"""Rejection that waits until the guide has found its place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.thresholds import OnceSettled, Rate

SOFT = relbo.Soft()


def begins(level, spread, num_steps=400, first=20, gap=0.5):
    """The step at which rejection begins, for a level of log w and its spread as functions of the step."""
    threshold = OnceSettled(Rate(0.5), first=first, gap=gap)
    noise = jax.random.normal(jax.random.key(0), (num_steps, 4, 10))

    def step(state, this):
        number, noise = this
        log_w = level(number.astype(noise.dtype)) + spread(number.astype(noise.dtype)) * noise
        t = threshold.read(state, jnp.arange(4)).t
        return threshold.update(state, jnp.arange(4), t, log_w, SOFT), t

    state, t = jax.lax.scan(step, threshold.init(4), (jnp.arange(num_steps), noise))
    begun = int(state.begun)
    waited = num_steps if begun < 0 else begun
    assert bool(jnp.all(jnp.isposinf(t[:waited]))), "nothing is rejected before"
    assert int(state.step) == int(state.inner.step) == num_steps
    return begun


def test_a_guide_that_stands_still_is_rejected_from_at_the_first_step_allowed():
    assert begins(lambda s: jnp.zeros_like(s), lambda s: jnp.ones_like(s)) == 20


def test_a_guide_that_takes_ten_times_as_many_steps_is_waited_for_as_much_longer():
    # the ELBO rises as -100 exp(-s / tau): by window means of closed form, less than s^2 / 2 = 1/2 for the first time
    found = []
    for tau in (5.0, 50.0):
        ends = [0, 10, 20, 40, 80, 160, 320, 640]
        means = [np.mean(-100 * np.exp(-np.arange(a, b) / tau)) for a, b in zip(ends, ends[1:], strict=False)]
        expected = next(ends[i + 1] for i in range(1, 7) if means[i] - means[i - 1] < 0.4)
        assert not any(0.4 <= means[i] - means[i - 1] < 0.6 for i in range(1, 7)), "none is a matter of chance"
        found.append(begins(lambda s, tau=tau: -100 * jnp.exp(-s / tau), lambda s: jnp.ones_like(s), 700))
        assert found[-1] == expected
    assert found[1] >= 4 * found[0]


def test_a_wide_gap_is_worth_closing_while_the_bound_still_rises():
    # it rises by 15 nats from window to window; s^2 / 2 = 18
    def rising(s):
        return 15 * jnp.log2(s + 1)

    assert begins(rising, lambda s: jnp.full_like(s, 6.0)) == 20
    assert begins(rising, lambda s: jnp.full_like(s, 3.0)) == -1


def test_impossible_draws_do_not_count():
    threshold = OnceSettled(Rate(0.5), first=2)
    log_w = jnp.array([[0.0, 2.0, -jnp.inf], [-jnp.inf, -jnp.inf, 3.0]])
    state = threshold.update(threshold.init(2), jnp.arange(2), jnp.full(2, jnp.inf), log_w, SOFT)
    np.testing.assert_allclose(state.before, [1.0, np.log(2.0)], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0.5}, "OnceSettled: threshold must be a threshold, got 0.5"),
        ({"threshold": Rate(0.5), "first": 1}, "OnceSettled: first must be an integer >= 2, got 1"),
        ({"threshold": Rate(0.5), "gap": 0.0}, "OnceSettled: gap must be a finite number > 0, got 0.0"),
    ],
)
def test_refused_in_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        OnceSettled(**settings)
