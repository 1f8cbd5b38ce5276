"""Evaluation against enumeration."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo import bounds, exact
from relbo.evaluate import BoundName, log_weights_of
from relbo.rejection import row_keys

module = importlib.import_module("relbo.evaluate")  # `relbo.evaluate` is the function


@pytest.fixture(scope="module")
def pair():
    return relbo.sbn(jax.random.key(0), [3, 2], jnp.full(4, 0.4))


@pytest.fixture(scope="module")
def support():
    both = np.array(list(itertools.product((0.0, 1.0), repeat=5)))
    return (jnp.asarray(both[:, :3]), jnp.asarray(both[:, 3:]))


X = np.array([[0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]], np.uint8)


def test_means_match_enumeration(pair, support):
    """z-scores below 5.5 for 3 points and 2 bounds: false failure below 3e-7."""
    repeats = 200
    found = relbo.evaluate(pair, X, ["elbo", "is:2"], key=jax.random.key(1), repeats=repeats)
    for i, x in enumerate(jnp.asarray(X, jnp.float64)):
        truth = {"elbo": exact.elbo(pair, x, support), "is:2": exact.iwae(pair, x, support, 2)}
        for name, value in truth.items():
            values = found[name].values[:, i]
            z = (values.mean() - value) / (values.std(ddof=1) / np.sqrt(repeats))
            assert abs(z) < 5.5, (name, i, z)


def test_rs_is_an_unbiased_estimate_of_the_evidence(pair, support):
    """E[exp(RS-k)] = p(x); z-scores below 5.5 for 3 points: false failure below 2e-7."""
    repeats = 300
    found = relbo.evaluate(
        pair, X, ["rs:3"], key=jax.random.key(2), repeats=repeats, threshold=relbo.Rate(0.3, num_draws=50)
    )["rs:3"]
    for i, x in enumerate(jnp.asarray(X, jnp.float64)):
        ratio = np.exp(found.values[:, i] - float(exact.log_evidence(pair.model, x, support)))
        z = (ratio.mean() - 1) / (ratio.std(ddof=1) / np.sqrt(repeats))
        assert abs(z) < 5.5, (i, z)
    assert found.extra["acceptance_rate"] == pytest.approx(0.3, abs=0.05)
    assert found.extra["matched_is_samples"] == round(3 / found.extra["acceptance_rate"])


@pytest.mark.slow
def test_streaming_is_the_plain_formula(pair, monkeypatch):
    key = jax.random.key(3)
    k = 230  # not a multiple of the chunk
    streamed = relbo.evaluate(pair, X, [f"is:{k}"], key=key, repeats=1)[f"is:{k}"].values[0]
    repeat_key = jax.random.split(jax.random.fold_in(key, k), 2)[0]
    plain = [
        bounds.iwae(log_weights_of(pair, row_key, x, jnp.arange(k)))
        for row_key, x in zip(row_keys(repeat_key, 3), jnp.asarray(X, jnp.float64), strict=True)
    ]
    np.testing.assert_allclose(streamed, np.array(plain), rtol=1e-12)
    monkeypatch.setattr(module, "LANES", 100)  # blocks of one row, and none padded
    np.testing.assert_allclose(streamed, relbo.evaluate(pair, X, [f"is:{k}"], key=key, repeats=1)[f"is:{k}"].values[0])


def test_more_samples_give_a_tighter_bound_and_smaller_error(pair):
    found = relbo.evaluate(pair, X, ["elbo", "is:10", "is:300"], key=jax.random.key(4), repeats=20)
    means = [found[name].mean for name in ("elbo", "is:10", "is:300")]
    errors = [found[name].monte_carlo_error for name in ("elbo", "is:10", "is:300")]
    assert means == sorted(means) and errors == sorted(errors, reverse=True)


def test_monte_carlo_error_is_the_spread_of_the_mean(pair):
    """The stated error against 400 evaluations; the ratio has a relative error of 4%, so 25% is over 6 sigma."""
    key = jax.random.key(5)
    many = relbo.evaluate(pair, X, ["is:2"], key=key, repeats=400)["is:2"]
    spread = many.values.mean(axis=1).std(ddof=1) / np.sqrt(400)
    assert many.monte_carlo_error == pytest.approx(spread, rel=0.25)


def test_one_repeat_has_no_monte_carlo_error(pair):
    single = relbo.evaluate(pair, X, ["elbo"], key=jax.random.key(0), repeats=1)["elbo"]
    assert np.isnan(single.monte_carlo_error) and np.isfinite(single.standard_error)


@pytest.mark.parametrize("text", ["is", "is:0", "is:-3", "rs:x", "elbo:3", ""])
def test_bad_bound_names(text):
    with pytest.raises(ValueError, match="a bound must be elbo, is:K or rs:K"):
        BoundName.parse(text)


def test_bad_settings(pair):
    with pytest.raises(ValueError, match="repeats must be an integer >= 1, got 0"):
        relbo.evaluate(pair, X, key=jax.random.key(0), repeats=0)
    with pytest.raises(ValueError, match="at least one datapoint"):
        relbo.evaluate(pair, X[:0], key=jax.random.key(0))
