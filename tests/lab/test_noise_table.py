"""The arithmetic behind `relbo variance`: what is scaled, what is subtracted, how much is computed at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.data import Dataset
from relbo.lab import noise_meters, noise_table
from relbo.train.fit import source_of
from relbo.types import Batch, Info
from relbo.variance import GradientNoise, Noise


def test_summary_scales_to_the_budget_and_subtracts_the_noise_of_the_mean():
    total, per_group, spent, budget, ratio = np.array([3.0, 4.0, 5.0]), 50, 12.0, 10, 0.7
    # |mean of m estimates|^2 is on average the signal plus v / m
    measured = np.sqrt((ratio**2 * 4.0 + total / per_group) / total)
    noise = Noise(jnp.asarray(total), jnp.asarray(total * spent), jnp.asarray(measured))
    found = noise_table.summary(noise, GradientNoise(noise, noise, jnp.full(3, spent)), per_group, budget)
    assert found["variance"] == pytest.approx(4.0 * 1.2)
    assert found["variance_standard_error"] == pytest.approx(1.2 / np.sqrt(3))
    assert found["signal_to_noise"] == pytest.approx(ratio / np.sqrt(1.2))
    assert found["signal_to_noise_standard_error"] == pytest.approx(0, abs=1e-12)


def test_no_signal_is_zero_with_a_limit():
    noise = Noise(jnp.ones(4), jnp.ones(4), jnp.sqrt(jnp.asarray([0.008, 0.009, 0.01, 0.011])))
    found = noise_table.summary(noise, GradientNoise(noise, noise, jnp.ones(4)), 100, 1)
    assert found["signal_to_noise"] == 0
    assert found["signal_to_noise_standard_error"] == pytest.approx(np.sqrt(np.std([8, 9, 10, 11], ddof=1) / 2e3))


def test_without_variance_there_is_no_ratio():
    noise = Noise(jnp.zeros(4), jnp.zeros(4), jnp.full(4, jnp.nan))
    found = noise_table.summary(noise, GradientNoise(noise, noise, jnp.ones(4)), 100, 1)
    assert (found["variance"], found["signal_to_noise"]) == (0, None)


PAIR = relbo.sbn(jax.random.key(0), (2,), jnp.full(3, 0.5))


def test_warm_up_ends_on_the_measured_images():
    class Remember(relbo.AbstractEstimator):
        num_samples: int = 1
        bound = needs = paper = None
        unbiased = True

        def init(self, key, pair, num_data):
            return jnp.zeros((2, 3))

        def estimate(self, key, pair, state, batch):
            return None, batch.x, Info(jnp.zeros(2), jnp.ones(2, bool), jnp.ones(2, jnp.int32))

    gray = np.full((5, 3), 128, np.uint8)
    source = source_of(Dataset("gray", "gray", gray, gray // 255, gray // 255))
    batch = Batch(jnp.asarray([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), jnp.asarray([3, 1]))
    index = jnp.asarray([[0, 4], [2, 2], [3, 1]])
    rows = noise_meters.rows_of(source.train, index)
    for seed in range(5):  # binarised anew, they would be the same once in 64 times
        key, start = jax.random.key(seed), jnp.zeros((2, 3))
        seen, _ = noise_meters.warm_up(Remember(), key, PAIR, start, source.transform, batch, index, rows)
        np.testing.assert_array_equal(seen, batch.x)


@pytest.mark.parametrize("num_estimates", [40, 500, 997, 10_000])
@pytest.mark.parametrize(("num_parameters", "num_pixels"), [(100, 6), (400_000, 784), (10**9, 784)])
def test_memory_is_bounded(num_estimates, num_parameters, num_pixels):
    settings = noise_table.Settings(num_estimates=num_estimates)
    per_group, chunk = noise_table.grouping(settings, num_parameters, num_pixels)
    assert per_group % chunk == 0 and chunk >= 2
    assert num_estimates <= per_group * noise_table.NUM_GROUPS <= num_estimates + noise_table.NUM_GROUPS * chunk
    assert chunk * 4 * num_parameters <= noise_table.CHUNK_BYTES or chunk == 2


@pytest.mark.slow
def test_all_that_a_binary_network_can_serve(tiny_runs):
    from relbo.lab.runs import open_run

    opened = open_run(tiny_runs / "rloo")
    names = noise_table.usable(noise_meters.PairMeter(opened.pair, opened.data))
    assert len(names) == 21 and {"vrs-budget", "vrs-raw-budget", "vrs-wake-budget"} <= set(names)
    assert not {"pathwise", "dreg", "vrs-path"} & set(names)
