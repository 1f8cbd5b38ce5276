"""Rejection that waits until the guide has found its place."""

import itertools

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


@pytest.mark.parametrize(("tau", "expected"), [(5.0, 80), (50.0, 640)])
def test_a_guide_that_takes_ten_times_as_many_steps_is_waited_for_as_much_longer(tau, expected):
    # the ELBO rises as -20 exp(-s / tau), from window to window by sums of closed form; rejection begins where that is
    # less than the gap, which is 0.4 at s = 1: the mean of the log of a variance of five pairs is 0.21 below log s^2
    ends = [0, 10, 20, 40, 80, 160, 320, 640]
    means = [np.mean(-20 * np.exp(-np.arange(a, b) / tau)) for a, b in itertools.pairwise(ends)]
    rises = np.diff(means)
    assert not np.any((rises > 0.25) & (rises < 0.65)), "none is a matter of chance: the noise of a rise is below 0.05"
    assert expected == ends[2 + int(np.argmax(rises < 0.4))]
    assert begins(lambda s: -20 * jnp.exp(-s / tau), lambda s: jnp.ones_like(s), 700) == expected


def test_a_wide_gap_is_worth_closing_while_the_bound_still_rises():
    # it rises by some 4 nats from the window before step 20 to that before step 40, and so on; rejection may gain s,
    # of which the mean of logs shows nine tenths
    def rising(s):
        return 4 * jnp.log2(s + 1)

    assert begins(rising, lambda s: jnp.full_like(s, 6.0)) == 40
    assert begins(rising, lambda s: jnp.full_like(s, 3.0)) == -1


def test_of_a_gap_that_is_far_too_wide_rejection_closes_a_part_only():
    # s^2 / 2 is 450 nats, of which rejection at a rate of 0.5 gains 23.2: by the normal tail 0.8 s + log 0.5
    log_w = 30 * jax.scipy.special.ndtri((jnp.arange(4_000.0) + 0.5) / 4_000)
    t = Rate(0.5).solve(log_w[None], SOFT)
    log_a = SOFT.log_prob(log_w + t)
    weight = jax.nn.softmax(log_a)
    gained = jnp.sum(weight * (log_w - log_a)) + jax.nn.logsumexp(log_a) - np.log(4_000) - jnp.mean(log_w)
    np.testing.assert_allclose(gained, 0.798 * 30 + np.log(0.5), rtol=0.01)
    # so a bound that still rises by 60 from window to window is waited for
    assert begins(lambda s: 60 * jnp.log2(s + 1), lambda s: jnp.full_like(s, 30.0)) == -1
    assert begins(lambda s: 10 * jnp.log2(s + 1), lambda s: jnp.full_like(s, 30.0)) == 20


def test_a_rise_that_noise_can_explain_is_none():
    # what all rows share moves log w by 1 from step to step, and nothing else does: s^2 is 1e-6
    shared = jax.random.normal(jax.random.key(1), (400,))
    assert begins(lambda s: shared[s.astype(int)], lambda s: jnp.full_like(s, 1e-3)) == 20
    # a rise of 1 in ten steps beside it is seen, in every window
    assert begins(lambda s: shared[s.astype(int)] + 0.1 * s, lambda s: jnp.full_like(s, 1e-3)) == -1


def test_what_neighbours_have_in_common_is_no_spread():
    # as draws of shared latents have it: s^2 is that within pairs, here 0.5
    threshold = OnceSettled(Rate(0.5), first=2)
    log_w = jnp.array([[0.0, 1.0, 10.0, 9.0, -20.0, -21.0, 7.0]])
    state = threshold.update(threshold.init(1), jnp.arange(1), jnp.full(1, jnp.inf), log_w, SOFT)
    np.testing.assert_allclose(state.before[:2], [np.mean(log_w), np.log(0.5)], rtol=1e-6)


def test_impossible_draws_do_not_count():
    threshold = OnceSettled(Rate(0.5), first=2)
    log_w = jnp.array([[0.0, 2.0, -jnp.inf], [-jnp.inf, -jnp.inf, 3.0]])
    update = jax.jit(lambda state: threshold.update(state, jnp.arange(2), jnp.full(2, jnp.inf), log_w, SOFT))
    state = update(threshold.init(2))
    np.testing.assert_allclose(state.before, [1.0, np.log(2.0), 0.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": Rate(0.5), "first": 1}, "OnceSettled: first must be an integer >= 2, got 1"),
        ({"threshold": Rate(0.5), "gap": 0.0}, "OnceSettled: gap must be a finite number > 0, got 0.0"),
    ],
)
def test_refused_in_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        OnceSettled(**settings)
