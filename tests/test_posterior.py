"""Draws from r for every datapoint, and what they are said to be worth, against enumeration."""

import dataclasses
import functools
import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Impossible, assert_frequencies, table_pair, threshold_at_rate

import relbo
from relbo import bounds, exact
from relbo.models.toy import TableModel, TableProposal
from relbo.pareto import khat

PAIR, SUPPORT = table_pair(3, num_x=3), jnp.arange(4)
X = np.arange(3)
MODULE = importlib.import_module("relbo.posterior")  # the name in `relbo` is that of the function
ROWS = 400
"""Rows of the same x: independent repetitions in one call."""


def exact_of(function, rows, t, acceptance=None):
    """One of the functions of the oracle for several x at once, each at its own T."""
    call = jax.jit(jax.vmap(lambda x, t: function(PAIR, x, SUPPORT, t, acceptance)))
    return np.asarray(call(jnp.asarray(rows), jnp.asarray(t)))


@functools.cache
def at_rate(rate):
    return relbo.posterior(jax.random.key(0), PAIR, X, rate=rate, num_samples=4_000)


@functools.cache
def repeated(t):
    """Many rows of one x at a T of our own."""
    x = np.zeros(ROWS, int)
    return relbo.posterior(jax.random.key(2), PAIR, x, threshold=t, num_samples=50, num_draws=50)


@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_draws_follow_r(rate):
    found = at_rate(rate)
    assert found.z.shape == (3, 4_000) and not found.exhausted.any()
    log_r = exact_of(exact.log_resampled, X, found.threshold)
    for row in X:
        assert_frequencies(found.z[row], log_r[row])
        assert_frequencies(4 * found.z[row, :-1:2] + found.z[row, 1::2], np.add.outer(log_r[row], log_r[row]).ravel())


def test_the_less_is_accepted_the_closer_to_the_posterior():
    # in total variation; that of r at a rate of 0.02 is up to 0.1, and 4,000 draws add less than 0.05
    posterior = np.exp([np.asarray(exact.log_posterior(PAIR.model, jnp.asarray(x), SUPPORT)) for x in X])
    distances = {}
    for rate in (0.5, 0.02):
        z = at_rate(rate).z
        frequencies = np.stack([np.bincount(row, minlength=4) / row.size for row in z])
        distances[rate] = 0.5 * np.abs(frequencies - posterior).sum(axis=1)
    assert (distances[0.02] < 0.15).all()
    assert (distances[0.02] < 0.5 * distances[0.5]).all()


@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_the_rate_is_what_was_asked_for(rate):
    # T comes from 1,000 draws, the count from 4,000 acceptances: 6 standard errors of both
    found = at_rate(rate)
    rates = np.exp(exact_of(exact.log_z, X, found.threshold))
    assert (np.abs(rates - rate) < 6 * np.sqrt(rate * (1 - rate) / 1_000)).all()
    assert (np.abs(found.acceptance / rates - 1) < 6 * np.sqrt(1 / 4_000)).all()
    np.testing.assert_allclose(found.acceptance, 3_999 / (found.num_proposals - 1), rtol=1e-12)


@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_evidence_and_divergence_are_within_their_errors(rate):
    found = at_rate(rate)
    evidence = np.array([float(exact.log_evidence(PAIR.model, jnp.asarray(x), SUPPORT)) for x in X])
    assert (np.abs(found.log_evidence - evidence) < 5.5 * found.log_evidence_error).all()
    assert (found.log_evidence_error < 0.05).all()
    np.testing.assert_allclose(found.kl, exact_of(exact.kl, X, found.threshold), rtol=0.15, atol=1e-4)


@pytest.mark.slow
def test_errors_and_biases_over_many_rows():
    # 400 rows of 50 draws: a mean is within 5.5 of its standard errors, the ratio of two spreads within 25% (6 errors)
    t = threshold_at_rate(PAIR, jnp.asarray(0), SUPPORT, 0.3, relbo.Soft())
    found = repeated(t)
    np.testing.assert_array_equal(found.threshold, t)

    def z_score(values, mean):
        return (values.mean() - mean) / (values.std(ddof=1) / np.sqrt(ROWS))

    evidence = float(exact.log_evidence(PAIR.model, jnp.asarray(0), SUPPORT))
    assert abs(z_score(found.acceptance, 0.3)) < 5.5
    assert abs(z_score(np.exp(found.log_evidence - evidence), 1.0)) < 5.5, "exp(log evidence) is unbiased"
    assert z_score(found.log_evidence, evidence) < 5.5, "its mean is below"
    np.testing.assert_allclose(np.mean(found.log_evidence_error), found.log_evidence.std(ddof=1), rtol=0.25)
    kl = float(exact.kl(PAIR, jnp.asarray(0), SUPPORT, t))
    assert 0.7 * kl < found.kl.mean() < kl
    assert_frequencies(found.z, exact.log_resampled(PAIR, jnp.asarray(0), SUPPORT, t))


def test_worth_of_the_draws_in_closed_form():
    # with many draws the effective share is E_r[e^A]^2 / E_r[e^2A], and likewise for plain draws with w for e^A
    found = at_rate(0.5)
    for row in X:
        x, t = jnp.asarray(row), found.threshold[row]
        log_q = exact.log_proposal(PAIR.proposal, x, SUPPORT)
        log_w = exact.log_joint(PAIR.model, x, SUPPORT) - log_q
        log_r = exact.log_resampled(PAIR, x, SUPPORT, t)
        signal = bounds.signal(log_w[None], jnp.asarray([t]))[0]

        def share(log_prob, log_weight):
            p, w = np.exp(log_prob), np.exp(log_weight)
            return np.sum(p * w) ** 2 / np.sum(p * w**2)

        np.testing.assert_allclose(found.ess[row] / 4_000, share(log_r, signal), rtol=0.1)
        np.testing.assert_allclose(found.ess_before[row] / 4_000, share(log_q, log_w), rtol=0.25)
        np.testing.assert_allclose(found.log_weights[row], signal[found.z[row]], rtol=1e-12)
        assert found.ess[row] > found.ess_before[row]
        # all proposals, weighed: the posterior itself
        share = np.bincount(np.asarray(found.proposals.z[row]), np.exp(found.proposals.log_weights[row]), minlength=4)
        wanted = np.exp(np.asarray(exact.log_posterior(PAIR.model, x, SUPPORT)))
        np.testing.assert_allclose(share, wanted, atol=6 / np.sqrt(found.num_weighed))
        np.testing.assert_allclose(found.expectation(lambda z: z == 2)[row], share[2], rtol=1e-9)
        np.testing.assert_allclose(found.mean[row], share @ np.arange(4), rtol=1e-9)
        np.testing.assert_allclose(found.sd[row] ** 2, share @ (np.arange(4) - found.mean[row]) ** 2, rtol=1e-9)
    assert found.num_weighed == 1_000 + 8_000 and found.verdict[:2] == ["fine (plain weights)"] * 2
    wanted = "weighed expectations are fine (plain weights), but r is not yet"
    assert found.kl[2] > 0.1 and found.verdict[2].startswith(wanted)


def test_without_rejection_it_is_importance_sampling():
    found = repeated(np.inf)
    np.testing.assert_array_equal(found.num_proposals, 50)
    np.testing.assert_array_equal(found.acceptance, 1.0)
    np.testing.assert_array_equal(found.proposals.z[:, 50:], found.z)
    assert_frequencies(found.z, exact.log_proposal(PAIR.proposal, jnp.asarray(0), SUPPORT))


@pytest.fixture(scope="module")
def perfect():
    """A proposal that is the posterior, half of which is rejected all the same."""
    table = jnp.asarray([[0.0, 1.0, -1.0]])
    pair = relbo.Pair(TableModel(table, normalise=False), TableProposal(table))
    return relbo.posterior(jax.random.key(1), pair, np.zeros(2, int), rate=0.5, num_samples=100, num_draws=100)


def test_a_perfect_proposal_leaves_nothing_to_weigh(perfect):
    evidence = np.log(np.sum(np.exp([0.0, 1.0, -1.0])))
    np.testing.assert_allclose(perfect.kl, 0, atol=1e-12)
    np.testing.assert_allclose(perfect.ess, 100, rtol=1e-12)
    np.testing.assert_allclose(perfect.ess_before, 100, rtol=1e-12)
    np.testing.assert_allclose(perfect.log_evidence, evidence, rtol=1e-9)
    np.testing.assert_allclose(perfect.log_evidence_error, 0, atol=1e-9)
    assert perfect.verdict == ["fine (plain weights)"] * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_tail_is_fitted_to_rounding(dtype):
    noise = np.random.default_rng(0).integers(-2, 3, 1_000) * np.finfo(dtype).eps
    assert khat((-100 * (1 + noise)).astype(dtype)) == -np.inf
    assert np.isnan(khat(np.full(1_000, -np.inf, dtype))) and np.isnan(khat(np.full(1_000, np.nan, dtype)))
    heavy = np.random.default_rng(0).pareto(1.0, 1_000)
    np.testing.assert_allclose(khat(np.log(heavy).astype(dtype)), 1.0, atol=0.3)


class Mixed(relbo.AbstractModel):
    """X and z are dictionaries: a class with a prior of its own, and a code that is seen through noise."""

    log_prior: jax.Array

    def log_joint(self, x, z):
        code = 0.5 * jnp.sum((x["image"] - z["code"]) ** 2) + 0.5 * jnp.sum(z["code"] ** 2)
        return jax.nn.log_softmax(self.log_prior)[z["label"]] + jnp.where(z["label"] == 1, x["hint"], 0) - code

    def sample(self, key):
        raise NotImplementedError


class MixedProposal(relbo.AbstractProposal):
    """The code exactly, N(x/2, 1/2), and a label that is a coin."""

    def sample(self, key, x):
        k1, k2 = jax.random.split(key)
        code = x["image"] / 2 + jnp.sqrt(0.5) * jax.random.normal(k1, x["image"].shape)
        return {"code": code, "label": jax.random.randint(k2, (), 0, 2)}

    def log_prob(self, z, x):
        scale = jnp.sqrt(jnp.asarray(0.5))
        return jnp.sum(jax.scipy.stats.norm.logpdf(z["code"], x["image"] / 2, scale)) - jnp.log(2.0)


@pytest.fixture(scope="module")
def mixed():
    pair = relbo.Pair(Mixed(jnp.asarray([0.0, 1.0])), MixedProposal())
    x = {"image": np.ones((5, 2)) * np.arange(5)[:, None], "hint": np.linspace(-1, 1, 5)}
    ticks = []
    draws = relbo.posterior(jax.random.key(4), pair, x, rate=0.2, num_samples=8_000, on_progress=ticks.append)
    return draws, x, ticks


@pytest.mark.slow
def test_dictionaries_in_blocks_of_rows(mixed):
    # what remains to be told by rejection is the label: r(1) / r(0) = a(1) w(1) / a(0) w(0) in closed form
    draws, x, ticks = mixed
    assert ticks == [1] * 5, "rows of 40,000 proposals, one at a time"
    assert draws.z["code"].shape == (5, 8_000, 2) and draws.z["label"].shape == (5, 8_000)
    log_prior = np.log([1 / (1 + np.e), np.e / (1 + np.e)])
    code = np.log(np.pi) - 0.25 * np.sum(x["image"] ** 2, axis=1)  # log of the integral over the code
    log_w = code[:, None] + log_prior[None] + x["hint"][:, None] * np.arange(2) + np.log(2)
    a = 1 / (1 + np.exp(-log_w - draws.threshold[:, None]))
    for row in range(5):
        assert_frequencies(draws.z["label"][row], np.log(a[row] / a[row].sum()))
        centre = draws.z["code"][row] - x["image"][row] / 2
        assert np.abs(centre.mean(axis=0)).max() < 6 * np.sqrt(0.5 / 8_000)
        np.testing.assert_allclose(centre.var(axis=0), 0.5, rtol=6 * np.sqrt(2 / 8_000))
    evidence = code + np.log(np.sum(np.exp(log_prior[None] + x["hint"][:, None] * np.arange(2)), axis=1))
    # where both labels weigh the same nothing but rounding is left
    assert (np.abs(draws.log_evidence - evidence) < 5.5 * draws.log_evidence_error + 1e-12).all()


def test_summary(mixed):
    draws, *_ = mixed
    text = draws.summary()
    assert "8000 for each of 5 row(s), 0 exhausted" in text
    assert f"{draws.acceptance.mean():.3f}" in text and f"{draws.num_proposals.sum()}" in text
    error = np.sqrt(np.sum(draws.log_evidence_error**2))
    assert f"{draws.log_evidence.sum():.3f} +- {error:.3f} (biased downwards)" in text


def test_proposals_that_memory_has_no_room_for(monkeypatch):
    monkeypatch.setattr(MODULE, "KEEP_BYTES", 3 * 8 * 7)
    ask = functools.partial(relbo.posterior, jax.random.key(0), PAIR, X, rate=0.5, **ONE_ROW)
    some = ask()
    assert some.proposals.z.shape == (3, 7) and some.num_weighed == 30
    np.testing.assert_allclose(np.exp(some.proposals.log_weights).sum(axis=1), 1, rtol=1e-9)
    monkeypatch.setattr(MODULE, "KEEP_BYTES", 0)
    with pytest.raises(ValueError, match="need proposals that were kept, got none"):
        ask().mean  # noqa: B018


@pytest.mark.slow
def test_densities_of_many_proposals_are_those_of_a_few_at_a_time(monkeypatch):
    ask = functools.partial(relbo.posterior, jax.random.key(0), PAIR, X, rate=0.3, **ONE_ROW)
    whole = ask()
    monkeypatch.setattr(MODULE, "AT_ONCE", 8)
    jax.clear_caches()
    parts = ask()
    np.testing.assert_array_equal(parts.z, whole.z)
    np.testing.assert_allclose(parts.proposals.log_weights, whole.proposals.log_weights, rtol=1e-12)


def test_to_arviz(mixed, perfect):
    draws, *_ = mixed
    with jax.numpy_dtype_promotion("standard"):
        data = draws.to_arviz()
        plain = perfect.to_arviz()
    assert data.posterior["z['code']"].shape == (1, 8_000, 5, 2)
    assert data.posterior["z['label']"].shape == (1, 8_000, 5)
    np.testing.assert_array_equal(data.posterior["z['label']"].values[0].T, draws.z["label"])
    np.testing.assert_array_equal(data.sample_stats["log_weight"].values[0].T, draws.log_weights)
    weighted = draws.to_arviz(weighted=True)
    assert weighted.posterior["z['code']"].shape == (1, draws.num_weighed, 5, 2)
    np.testing.assert_allclose(np.exp(weighted.sample_stats["log_weight"].values[0]).sum(axis=0), 1, rtol=1e-9)
    assert list(plain.posterior) == ["z"] and plain.posterior["z"].shape == (1, 100, 2)


def test_exhausted_rows_are_flagged_and_say_nothing():
    # x = 0 accepts a tenth, x = 1 next to nothing
    table = jnp.asarray([[0.0, 0.0], [-60.0, -60.0]])
    pair = relbo.Pair(TableModel(table, normalise=False), TableProposal(jnp.zeros((2, 2))))
    ask = functools.partial(relbo.posterior, jax.random.key(0), pair, np.arange(2), threshold=-2.0)
    options = {"num_samples": 30, "num_draws": 30, "max_rounds": 50}
    found = ask(throw=False, **options)
    np.testing.assert_array_equal(found.exhausted, [False, True])
    assert found.num_proposals[1] == 1_500
    for field in ("acceptance", "kl", "ess", "log_weights"):
        values = getattr(found, field)
        assert np.isnan(values[1]).all() and np.isfinite(values[0]).all(), field
    # what rests on proposals alone is known all the same
    np.testing.assert_allclose(found.log_evidence, np.array([0.0, -60.0]) + np.log(2), atol=1e-9)
    assert found.verdict == ["fine (plain weights)", "ran out of proposals: no draws from r"]
    assert "1 exhausted" in found.summary() and "nan" not in found.summary().split("\n")[3]
    none_left = dataclasses.replace(found, exhausted=np.array([True, True]))
    assert "acceptance rate         nan" in none_left.summary()
    with pytest.raises(Exception, match="Rejection sampling was exhausted: .* throw=False"):
        ask(**options)


def test_a_row_of_impossible_proposals_is_left_out_of_the_sum():
    table = jnp.asarray([[-jnp.inf, -jnp.inf], [0.0, 0.0]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((2, 2))))
    options = {"num_samples": 30, "num_draws": 30, "max_rounds": 50, "throw": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = relbo.posterior(jax.random.key(0), pair, np.arange(2), threshold=0.0, **options)
        text = found.summary()
    assert found.log_evidence[0] == -np.inf and found.log_evidence_error[0] == np.inf and found.ess_before[0] == 0
    assert "0.693 +- 0.000 (biased downwards, without 1 row(s) of impossible proposals)" in text
    assert found.verdict == ["ran out of proposals: no draws from r", "fine (plain weights)"]


def test_means_of_a_discrete_latent_and_errors_over_many_rows():
    # q = (.03, .97), w = (20, .4), 1,000 rows of 634 proposals: a mean of self-normalised weights is biased by 1 / n,
    # here less than .004, and within 5 errors of .0015 beyond it; a coverage below .93 has probability .003 at .95
    q, w = np.array([0.03, 0.97]), np.array([20, 0.4])
    pair = relbo.Pair(Impossible(jnp.log(jnp.asarray([q * w]))), TableProposal(jnp.log(jnp.asarray([q]))))
    x = np.zeros(1_000, int)
    found = relbo.posterior(jax.random.key(0), pair, x, rate=0.5, num_samples=200, num_draws=234)
    truth = q[0] * w[0] / (q @ w)
    share = np.asarray(found.expectation(lambda z: z == 0))
    assert abs(share.mean() - truth) < 0.004 + 5 * share.std() / np.sqrt(1_000)
    assert np.mean(np.abs(found.log_evidence - np.log(q @ w)) <= 2 * found.log_evidence_error) >= 0.93


ONE_ROW = {"num_samples": 10, "num_draws": 10}


@pytest.mark.parametrize(
    "x, change, message",
    [
        (X, {}, "the threshold must be set by threshold= or by rate=, got None."),
        (X, {"rate": 0.5, "threshold": 1.0}, "the threshold must be set by threshold= or by rate=, not by both, got "),
        (X, {"rate": 1.5}, "Rate: rate must be a number in (0, 1), or a schedule, got 1.5."),
        (X, {"threshold": "rate"}, "a threshold in words must be rate:RATE, quantile:GAMMA or fixed:T, got 'rate'."),
        (X, {"rate": 0.5, "num_samples": 1}, "num_samples must be an integer >= 2, got 1."),
        (X, {"rate": 0.5, "num_draws": 1}, "num_draws must be an integer >= 2, got 1."),
        (X, {"rate": np.array([0.5, 0.4, 0.3])}, "rate must be one number for all rows, got "),
        (X, {"rate": lambda step: 0.5}, "rate must be a number outside training; give a schedule's last value, got "),
        (
            X,
            {"rate": 0.5, "num_samples": 10**9},
            "num_samples must be at most 1,000,000 in one call; ",
        ),
        (X, {"rate": 0.5, "max_rounds": 0}, "max_rounds must be an integer >= 1, got 0."),
        (X[:0], {"rate": 0.5}, "posterior: x must be arrays with the same number of datapoints, at least one, first"),
        (
            {"a": np.zeros(2), "b": np.zeros((3, 2))},
            {"rate": 0.5},
            "posterior: x must be arrays with the same number of datapoints, at least one, first, got [(2,), (3,)].",
        ),
        (np.asarray(1.0), {"rate": 0.5}, "posterior: x must be arrays with the same number of datapoints"),
    ],
)
def test_refused_in_one_sentence(x, change, message):
    with pytest.raises(ValueError) as error:
        relbo.posterior(jax.random.key(0), PAIR, x, **{**ONE_ROW, **change})
    assert str(error.value).startswith(message) and "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.slow
def test_every_way_to_say_a_threshold():
    ask = functools.partial(relbo.posterior, jax.random.key(0), PAIR, X, **ONE_ROW)
    for same in [
        [{"rate": 0.3}, {"threshold": "rate:0.3"}, {"threshold": relbo.Rate(0.3, 10)}],
        [{"threshold": 1.0}, {"threshold": "fixed:1"}, {"threshold": relbo.Fixed(1.0)}],
    ]:
        first, *others = (ask(**how) for how in same)
        for other in others:
            np.testing.assert_array_equal(other.z, first.z)
            np.testing.assert_array_equal(other.threshold, first.threshold)
