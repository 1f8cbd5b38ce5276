import base64
import dataclasses
import io

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from relbo.lab.report import pictures
from relbo.lab.report.pictures import GAP_LEVEL
from relbo.lab.runs import open_run


@pytest.fixture(scope="module")
def vrs(tiny_runs):
    return open_run(tiny_runs / "vrs")


def with_threshold(run, text):
    return dataclasses.replace(run, config=dataclasses.replace(run.config, threshold=text))


def test_tiles_stand_in_reading_order():
    images = np.arange(18).reshape(3, 6) / 20
    canvas = pictures.tile(images, (2, 3), columns=2)
    assert canvas.shape == (2 * 3 + 1, 2 * 4 + 1)
    np.testing.assert_array_equal(canvas[1:3, 5:8], images[1].reshape(2, 3))
    np.testing.assert_array_equal(canvas[4:6, 1:4], images[2].reshape(2, 3))
    assert np.all(canvas[4:6, 5:8] == GAP_LEVEL) and np.all(canvas[:, 4] == GAP_LEVEL)


def test_a_picture_holds_its_pixels():
    canvas = np.array([[0.0, 0.5, 1.0], [0.2, 0.4, 7.0]])
    found = pictures.png(canvas, 'a "b"')
    assert 'width="3" height="2"' in found and 'alt="a &quot;b&quot;"' in found
    data = base64.b64decode(found.split("base64,")[1].split('"')[0])
    pixels = matplotlib.image.imread(io.BytesIO(data), format="png")[:, :, 0]
    np.testing.assert_allclose(pixels, np.clip(canvas, 0, 1), atol=0.5 / 255)


def test_samples_are_means_given_prior_draws(vrs):
    found = pictures.model_samples(vrs, 4, seed=1)
    expected = [vrs.pair.model.mean_x(vrs.pair.model.sample(k)[1]) for k in jax.random.split(jax.random.key(1), 4)]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-6)


def test_reconstructions_are_means_given_possible_codes(vrs):
    found = pictures.reconstructions(with_threshold(vrs, "fixed:inf"), 12, "test", seed=0)
    np.testing.assert_array_equal(found.images, vrs.data.test)
    np.testing.assert_array_equal(found.from_q, found.from_r, "nothing is rejected at T = +inf")
    codes = jnp.asarray([[i >> j & 1 for j in range(3)] for i in range(8)], float)
    possible = np.asarray(jax.vmap(lambda h: vrs.pair.model.mean_x((h,)))(codes))
    distance = np.abs(found.from_q[:, None, :] - possible[None]).max(axis=2).min(axis=1)
    assert distance.max() < 1e-6


def test_rejection_replaces_some_draws_and_leaves_the_rest(vrs):
    found = pictures.reconstructions(vrs, 12, "test", seed=0)
    same = np.all(found.from_q == found.from_r, axis=1)
    assert 0 < same.sum() < 12


def test_a_run_without_rejection_has_draws_of_q_only(tiny_runs):
    found = pictures.reconstructions(open_run(tiny_runs / "rloo"), 5, "valid", seed=0)
    assert found.from_r is None and found.from_q.shape == (5, 6)
