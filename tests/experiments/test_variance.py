"""The arithmetic behind `relbo variance`: what is scaled, what is subtracted, how much is computed at once."""

import jax.numpy as jnp
import numpy as np
import pytest

from relbo._types import Batch
from relbo.experiments import variance
from relbo.variance import Comparison, Noise


def test_summary_scales_to_the_budget_and_subtracts_the_noise_of_the_mean():
    total, per_group, spent, budget, ratio = np.array([3.0, 4.0, 5.0]), 50, 12.0, 10, 0.7
    # |mean of m estimates|^2 is on average the signal plus v / m
    measured = np.sqrt((ratio**2 * 4.0 + total / per_group) / total)
    noise = Noise(jnp.asarray(total), jnp.asarray(total * spent), jnp.asarray(measured))
    found = variance.summary(noise, Comparison(noise, noise, jnp.full(3, spent)), per_group, budget)
    assert found["variance"] == pytest.approx(4.0 * 1.2)
    assert found["variance_standard_error"] == pytest.approx(1.2 / np.sqrt(3))
    assert found["signal_to_noise"] == pytest.approx(ratio / np.sqrt(1.2))
    assert found["signal_to_noise_standard_error"] == pytest.approx(0, abs=1e-12)


def test_no_signal_is_zero_with_a_limit():
    noise = Noise(jnp.ones(4), jnp.ones(4), jnp.sqrt(jnp.asarray([0.008, 0.009, 0.01, 0.011])))
    found = variance.summary(noise, Comparison(noise, noise, jnp.ones(4)), 100, 1)
    assert found["signal_to_noise"] == 0
    assert found["signal_to_noise_standard_error"] == pytest.approx(np.sqrt(np.std([8, 9, 10, 11], ddof=1) / 2e3))


@pytest.mark.parametrize("num_estimates", [40, 500, 997, 10_000])
@pytest.mark.parametrize(("num_parameters", "num_pixels"), [(100, 6), (400_000, 784), (10**9, 784)])
def test_memory_is_bounded(num_estimates, num_parameters, num_pixels):
    settings = variance.Settings(num_estimates=num_estimates)
    batch = Batch(jnp.zeros((settings.batch_size, num_pixels)), jnp.arange(settings.batch_size))
    per_group, chunk = variance.grouping(settings, num_parameters, batch)
    assert per_group % chunk == 0 and chunk >= 2
    assert num_estimates <= per_group * variance.NUM_GROUPS <= num_estimates + variance.NUM_GROUPS * chunk
    assert chunk * 4 * num_parameters <= variance.CHUNK_BYTES or chunk == 2


@pytest.mark.slow
def test_all_that_a_binary_network_can_serve(tiny_runs):
    from relbo.train.runs import open_run

    names = variance.usable(open_run(tiny_runs / "rloo").pair)
    assert len(names) == 18 and not {"pathwise", "dreg"} & set(names)
