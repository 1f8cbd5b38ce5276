"""Evaluation against enumeration."""

import functools
import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo import bounds, exact, streams
from relbo.evaluate import log_weights_of, num_draws
from relbo.models.toy import TableModel, TableProposal
from relbo.streams import row_keys

module = importlib.import_module("relbo.evaluate")  # `relbo.evaluate` is the function


@pytest.fixture(scope="module")
def pair():
    return relbo.sbn(jax.random.key(0), [3, 2], jnp.full(4, 0.4))


@pytest.fixture(scope="module")
def support():
    both = np.array(list(itertools.product((0.0, 1.0), repeat=5)))
    return (jnp.asarray(both[:, :3]), jnp.asarray(both[:, 3:]))


X = np.array([[0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]], np.uint8)


def exactly(function):
    """An exact figure of each point of X, by one program."""
    return np.asarray(jax.jit(jax.vmap(function))(jnp.asarray(X, jnp.float64)))


def test_means_match_enumeration(pair, support):
    """z-scores below 5.5 for 3 points and 2 bounds: false failure below 3e-7."""
    copies = 2_000
    found = relbo.evaluate(pair, np.repeat(X, copies, axis=0), ["elbo", "is:2"], key=jax.random.key(1), repeats=1)
    truth = {
        "elbo": exactly(lambda x: exact.elbo(pair, x, support)),
        "is:2": exactly(lambda x: exact.iwae(pair, x, support, 2)),
    }
    for name, expected in truth.items():
        values = found[name].values.reshape(3, copies)
        z = (values.mean(axis=1) - expected) / (values.std(axis=1, ddof=1) / np.sqrt(copies))
        assert (np.abs(z) < 5.5).all(), (name, z)


@pytest.mark.slow
def test_rs_is_an_unbiased_estimate_of_the_evidence(pair, support):
    """E[exp(RS-k)] = p(x), over 250 copies of each point; z-scores below 5.5: false failure below 2e-7."""
    copies = np.repeat(X, 250, axis=0)
    rule = relbo.Rate(0.3, num_draws=50)
    found = relbo.evaluate(pair, copies, "rs:3", key=jax.random.key(2), repeats=2, threshold=rule)["rs:3"]
    evidence = exactly(lambda x: exact.log_evidence(pair.model, x, support))
    ratio = np.exp(found.values.reshape(2, 3, 250) - evidence[None, :, None])
    for values in (ratio[:, 0], ratio[:, 1], ratio[:, 2], ratio):
        z = (values.mean() - 1) / (values.std(ddof=1) / np.sqrt(values.size))
        assert abs(z) < 5.5, z
    assert ratio.std() / np.sqrt(ratio.size) < 0.017, "an error of 10% would be seen; that of k/N is 20%"
    assert found.extra["acceptance_rate"] == pytest.approx(0.3, abs=0.02)
    assert found.extra["matched_is_samples"] == round(3 / found.extra["acceptance_rate"])


@pytest.mark.slow
def test_streaming_is_the_plain_formula(pair, monkeypatch):
    key = jax.random.key(3)
    k = 230  # not a multiple of the chunk
    streamed = relbo.evaluate(pair, X, [f"is:{k}"], key=key, repeats=1)[f"is:{k}"].values[0]
    repeat_key = jax.random.split(jax.random.fold_in(key, 1))[0]
    plain = [
        bounds.iwae(log_weights_of(pair, row_key[None], x[None])(jnp.arange(k))[0])
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
    """The stated error against 200 evaluations; the ratio has a relative error of 5%, so 30% is 6 sigma."""
    key = jax.random.key(5)
    many = relbo.evaluate(pair, X, ["is:2"], key=key, repeats=200)["is:2"]
    spread = many.values.mean(axis=1).std(ddof=1) / np.sqrt(200)
    assert many.monte_carlo_error == pytest.approx(spread, rel=0.3)


@pytest.mark.parametrize("num_rows", [1, 2])
def test_draws_of_a_row_do_not_depend_on_its_block(pair, monkeypatch, num_rows):
    # 7 draws in chunks of 4 // num_rows, the last one cut short, against all draws of all rows at once
    monkeypatch.setattr(streams, "AT_ONCE", 4)
    keys = row_keys(jax.random.key(3), 2)
    x = jnp.asarray(X[:2], jnp.float64)
    some = streams.in_blocks(log_weights_of(pair, keys[:num_rows], x[:num_rows]), num_rows, 7)
    whole = log_weights_of(pair, keys, x)(jnp.arange(7, dtype=jnp.int32))
    np.testing.assert_allclose(some, whole[:num_rows], rtol=1e-12)


def test_one_repeat_has_no_monte_carlo_error(pair):
    single = relbo.evaluate(pair, X, ["elbo"], key=jax.random.key(0), repeats=1)["elbo"]
    assert np.isnan(single.monte_carlo_error) and np.isfinite(single.standard_error)


def test_objects_are_words(pair):
    ask = functools.partial(relbo.evaluate, pair, X, key=jax.random.key(6), repeats=1)
    words = ask(["elbo", "is:2", "rs:2"], rate=0.3, acceptance=relbo.Hard())
    objects = ask([relbo.ELBO(), relbo.IS(2), relbo.RS(2, relbo.Rate(0.3, 1_000), relbo.Hard())])
    for name in ("elbo", "is:2", "rs:2"):
        np.testing.assert_array_equal(words[name].values, objects[name].values)
    assert list(ask("is:2")) == list(ask(relbo.IS(2))) == ["is:2"]
    assert ask([]) == {}


@pytest.mark.slow
def test_every_way_to_say_a_threshold(pair):
    ask = functools.partial(relbo.evaluate, pair, X, "rs:2", key=jax.random.key(6), repeats=1)
    same = [
        [{"rate": 0.3}, {"threshold": relbo.Rate(0.3, 1_000)}, {"threshold": "rate:0.3"}],
        [{"threshold": 1.0}, {"threshold": "fixed:1"}, {"threshold": relbo.Fixed(1.0)}],
        [{}, {"threshold": "quantile:0.9"}, {"threshold": relbo.Quantile(0.9, 1_000)}],
    ]
    seen = []
    for group in same:
        values = [ask(**how)["rs:2"].values for how in group]
        for other in values[1:]:
            np.testing.assert_array_equal(other, values[0])
        seen.append(values[0])
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[1], seen[2])


@pytest.mark.slow
def test_fixed_threshold_against_the_exact_acceptance_rate(pair, support):
    # 150 means over 1,000 acceptances for each point: the error of the mean rate is below 0.001
    copies = 150
    found = relbo.evaluate(
        pair, np.repeat(X, copies, axis=0), relbo.RS(1, 2.0), key=jax.random.key(7), repeats=1, acceptance=relbo.Soft()
    )["rs:1"]
    rate = exactly(lambda x: jnp.exp(exact.log_z(pair, x, support, 2.0)))
    assert found.extra["acceptance_rate"] == pytest.approx(rate.mean(), abs=0.006)
    # and RS-1 is the R-ELBO but for the log of an unbiased Zhat, whose bias is below 1 / 1,000 / Z_R
    values = found.values.reshape(3, copies)
    error = values.std(axis=1, ddof=1) / np.sqrt(copies)
    r_elbo = exactly(lambda x: exact.r_elbo(pair, x, support, 2.0))
    assert (np.abs(values.mean(axis=1) - r_elbo) < 5.5 * error + 0.005).all()


@pytest.mark.parametrize(
    "names, repeats, per_row",
    [(["elbo", "is:7"], 3, 3 * 7), (["is:4", "rs:2", "rs:3"], 2, 2_000 + 2 * (1_000 + 2 + 3))],
)
def test_progress_is_reported(pair, names, repeats, per_row):
    seen = []
    found = relbo.evaluate(pair, X, names, key=jax.random.key(0), rate=0.5, repeats=repeats, on_progress=seen.append)
    matched = sum(estimate.extra.get("matched_is_samples", 0) for estimate in found.values())
    assert num_draws(names, repeats) == per_row
    assert sum(seen) == 3 * (per_row + matched)


def test_bounds_share_draws_and_do_not_depend_on_what_else_is_asked(pair):
    """Every bound reads the beginning of one stream, whatever the others, their order and the number of repeats."""
    ask = functools.partial(relbo.evaluate, pair, X, key=jax.random.key(8), rate=0.4)
    names = ["is:230", "rs:3", "elbo", "is:7", "rs:2"]
    together = ask(names, repeats=2)
    for name in names:
        alone = ask(name, repeats=3)[name]
        np.testing.assert_allclose(alone.values[:2], together[name].values, rtol=1e-12)
        assert not np.allclose(alone.values[2], alone.values[1])
    # on the draws that T comes from the rate would be 0.4 to all digits
    assert 1e-5 < abs(together["rs:3"].extra["acceptance_rate"] - 0.4) < 0.02
    rows = row_keys(jax.random.split(jax.random.fold_in(jax.random.key(8), 1))[0], 3)
    log_w = np.asarray(log_weights_of(pair, rows, jnp.asarray(X, jnp.float64))(jnp.arange(1_000)))
    for name, k in (("elbo", 1), ("is:7", 7), ("is:230", 230)):
        np.testing.assert_allclose(together[name].values[0], bounds.iwae(jnp.asarray(log_w[:, :k])), rtol=1e-12)


def test_zhat_reads_the_draws_of_is_1000(pair):
    """With M = e^5 far above w, RS-k is log M + log Zhat = log mean w of the same draws, whatever is accepted.

    What is left is of the order of w / M, below 0.01; other draws differ by 0.05 to 0.1.
    """
    found = relbo.evaluate(pair, X, ["is:1000", "rs:2"], key=jax.random.key(9), threshold=-5.0, repeats=2)
    first, second = found["is:1000"].values
    np.testing.assert_allclose(found["rs:2"].values, [first, second], atol=0.01)
    assert (np.abs(first - second) > 0.05).all()


@pytest.mark.parametrize(
    "bounds, change, message",
    [
        ("is:0", {}, "a bound must be elbo, is:K or rs:K with an integer K >= 1, got 'is:0'."),
        ("elbo", {"repeats": 0}, "evaluate: repeats must be an integer >= 1, got 0."),
        (
            "rs:2",
            {"rate": 0.5, "threshold": 3.0},
            "the threshold must be set by threshold= or by rate=, not by both, got (3.0, 0.5).",
        ),
        (
            "rs:2",
            {"threshold": "x:0.5"},
            "a threshold in words must be rate:RATE, quantile:GAMMA or fixed:T, got 'x:0.5'.",
        ),
    ],
)
def test_bad_settings(pair, bounds, change, message):
    with pytest.raises(ValueError) as error:
        relbo.evaluate(pair, X, bounds, key=jax.random.key(0), **change)
    assert str(error.value) == message


def test_datapoints_that_run_out_are_named():
    # x = 0 and 2 accept a tenth, x = 1 nothing; -inf, rejected and NaN are not the same
    table = jnp.asarray([[0.0, 0.0], [-60.0, -jnp.inf], [0.0, 0.0]])
    pair = relbo.Pair(TableModel(table, normalise=False), TableProposal(jnp.zeros((3, 2))))
    with pytest.raises(RuntimeError) as error:
        relbo.evaluate(pair, np.arange(3), "rs:3", key=jax.random.key(0), threshold=-2.0, max_rounds=50)
    assert str(error.value) == (
        "rs:3 was exhausted: datapoint 1 drew max_rounds * k = 50 * 3 proposals without 3 acceptances. Raise the "
        "threshold T (or gamma, or the target rate), increase max_rounds, or evaluate an IS bound instead."
    )
    bad = relbo.Pair(TableModel(table.at[1].set(jnp.nan), normalise=False), pair.proposal)
    with pytest.raises(Exception, match=r"log p is NaN"):
        relbo.evaluate(bad, np.arange(3), "rs:3", key=jax.random.key(0), rate=0.5, max_rounds=50)


def test_no_data(pair):
    with pytest.raises(ValueError, match="the same number of datapoints, at least one"):
        relbo.evaluate(pair, X[:0], key=jax.random.key(0))


def test_one_compilation_for_all_thresholds():
    traces = []

    class Counting(TableModel):
        def log_joint(self, x, z):
            traces.append(1)
            return super().log_joint(x, z)

    pair = relbo.Pair(Counting(jnp.zeros((2, 3))), TableProposal(jnp.zeros((2, 3))))
    means = set()
    for t in (0.0, 1, 2.5):
        means.add(
            relbo.evaluate(pair, jnp.arange(2), "rs:2", key=jax.random.key(0), repeats=1, threshold=t)["rs:2"].mean
        )
        first = len(traces) if t == 0.0 else first
    assert len(traces) == first and len(means) == 3


def test_bounds_of_one_name_are_refused(pair):
    with pytest.raises(ValueError, match=r"bounds must be of different names.*got \['rs:2', 'rs:2'\]"):
        relbo.evaluate(pair, X, [relbo.RS(2, 0.0), relbo.RS(2, 1.0)], key=jax.random.key(0))
