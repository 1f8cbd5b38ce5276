"""Bounds and the estimates inside them, against enumeration."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from helpers import Impossible, table_pair

import relbo
from relbo import bounds, exact
from relbo.models.toy import TableProposal

PAIR, X, SUPPORT = table_pair(3), jnp.asarray(0), jnp.arange(4)
LOG_P, LOG_Q = exact.log_joint(PAIR.model, X, SUPPORT), exact.log_proposal(PAIR.proposal, X, SUPPORT)
LOG_W = LOG_P - LOG_Q
EVIDENCE = float(jnp.exp(exact.log_evidence(PAIR.model, X, SUPPORT)))
ACCEPTANCES = {"s=0.5": relbo.Soft(0.5), "s=1": relbo.Soft(), "s=2": relbo.Soft(2.0), "hard": relbo.Hard()}


def mean_over_r(function, t, acceptance, size):
    """E over all tuples of `size` draws from r of function((n, size) log weights)."""
    log_r = exact.log_resampled(PAIR, X, SUPPORT, t, acceptance)
    index = exact.tuples(4, size)
    return float(jnp.sum(jnp.exp(jnp.sum(log_r[index], axis=-1)) * function(LOG_W[index])))


MOST = 2**17
"""Numbers of proposals that sums run over: one shape for all, so that little is compiled."""


def over_counts(function, size, rate):
    """E of function(N), N the proposals up to the `size`-th acceptance."""
    law = scipy.stats.nbinom(size, rate, loc=size)
    n = size + np.arange(MOST)
    assert law.sf(n[-1]) < 1e-14
    return float(np.sum(law.pmf(n) * np.asarray(function(jnp.asarray(n)), float)))


@pytest.mark.parametrize(
    "t", [-3.0, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.slow), np.inf]
)
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_rs_with_fresh_draws_is_unbiased(name, t):
    # exp(RS-k) = mean exp A * Zhat, the factors independent: enumerate both
    acceptance = ACCEPTANCES[name]
    of_draws = mean_over_r(
        lambda w: jnp.exp(bounds.rs(w, jnp.full(w.shape[0], t), jnp.zeros(w.shape[0]), acceptance)), t, acceptance, 2
    )
    index = exact.tuples(4, 3)
    log_z = bounds.log_z_fresh(LOG_W[index], jnp.full(index.shape[0], t), acceptance)
    of_z = float(jnp.sum(jnp.exp(jnp.sum(LOG_Q[index], axis=-1) + log_z)))
    np.testing.assert_allclose(of_z, np.exp(exact.log_z(PAIR, X, SUPPORT, t, acceptance)), rtol=1e-12)
    np.testing.assert_allclose(of_draws * of_z, EVIDENCE, rtol=1e-12)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("t", [-3.0, 0.0, pytest.param(3.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_rs_with_counted_proposals_is_unbiased_and_k_over_n_is_not(name, t, size):
    acceptance = ACCEPTANCES[name]
    rate = float(jnp.exp(exact.log_z(PAIR, X, SUPPORT, t, acceptance)))
    of_draws = mean_over_r(
        lambda w: jnp.exp(bounds.rs(w, jnp.full(w.shape[0], t), jnp.zeros(w.shape[0]), acceptance)),
        t,
        acceptance,
        size,
    )
    counted = over_counts(lambda n: jnp.exp(bounds.log_z_counted(size, n)), size, rate)
    np.testing.assert_allclose(counted, rate, rtol=1e-9)
    np.testing.assert_allclose(of_draws * counted, EVIDENCE, rtol=1e-9)
    assert of_draws * over_counts(lambda n: size / n, size, rate) > EVIDENCE * 1.001  # no lower bound


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 25])
def test_log_z_unbiased(size, extra):
    # over the law of (K, n): K = S..N of N accepted, or n > N proposals up to the S-th acceptance
    budget = size + extra
    accepted, beyond = np.arange(size, budget + 1), np.arange(budget + 1, size + MOST)
    num_used = np.concatenate([accepted, np.full(beyond.size, size)])
    num_proposals = np.concatenate([np.full(accepted.size, budget), beyond])
    log_z = np.asarray(bounds.log_z_unbiased(jnp.asarray(num_used), jnp.asarray(num_proposals), size, budget))
    for rate in (0.001, 0.1, 0.5, 0.9):
        law = scipy.stats.nbinom(size, rate, loc=size)
        prob = np.concatenate([scipy.stats.binom.pmf(accepted, budget, rate), law.pmf(beyond)])
        np.testing.assert_allclose(prob.sum(), 1, rtol=1e-12)
        np.testing.assert_allclose(np.sum(prob * log_z), np.log(rate), rtol=1e-8)


@pytest.mark.parametrize("size, budget", [(1, 1), (1, 7), (2, 6), (5, 20), (17, 60)])
def test_log_z_within_the_budget_is_the_mean_over_where_the_last_needed_acceptance_stood(size, budget):
    # given K of N accepted, the S-th of them stood at n with probability C(n-1, S-1) C(N-n, K-S) / C(N, K)
    def mean(k):
        at = range(size, budget - k + size + 1)
        prob = [math.comb(n - 1, size - 1) * math.comb(budget - n, k - size) / math.comb(budget, k) for n in at]
        return np.dot(prob, scipy.special.digamma(size) - scipy.special.digamma(at))

    wanted = [mean(k) for k in range(size, budget + 1)]
    np.testing.assert_allclose(bounds._within_budget(size, budget), wanted, rtol=1e-12, atol=1e-12)


def test_log_z_of_a_large_budget_costs_nothing():
    start = time.process_time()
    assert bounds._within_budget(2, 1_000_000)[0] == pytest.approx(1.5 - np.log(1e6) - np.euler_gamma)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("extra", [0, 1, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 29])
def test_log_z_unbiased_is_exactly_0_when_nothing_was_rejected(size, extra):
    # compiled with S and N constants, as the estimators have it
    budget = size + extra
    log_z = jax.jit(lambda k, n: bounds.log_z_unbiased(k, n, size, budget))
    counts = [(budget, budget), (budget - 1, budget) if extra else (size, size + 1), (size, budget + 1)]
    all_of_them, but_one, went_on = log_z(*jnp.asarray(counts).T)
    assert float(all_of_them) == 0 and float(went_on) <= float(but_one) < 0


def test_log_z_unbiased_falls_with_every_rejection():
    # the more were accepted among N the larger; one more proposal needed, the smaller
    accepted = jnp.arange(6, 1, -1)
    within = bounds.log_z_unbiased(accepted, jnp.full(5, 6), 2, 6)
    beyond = bounds.log_z_unbiased(jnp.full(50, 2), jnp.arange(7, 57), 2, 6)
    assert (np.diff(np.concatenate([within, beyond])) < 0).all()


@pytest.mark.parametrize("t", [-3.0, 0.0, 3.0, np.inf])
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_r_elbo(name, t):
    acceptance = ACCEPTANCES[name]
    log_z = exact.log_z(PAIR, X, SUPPORT, t, acceptance)
    mean = mean_over_r(
        lambda w: bounds.r_elbo(w, jnp.full(w.shape[0], t), jnp.full(w.shape[0], log_z), acceptance), t, acceptance, 2
    )
    np.testing.assert_allclose(mean, exact.r_elbo(PAIR, X, SUPPORT, t, acceptance), rtol=1e-12)


def test_signal_of_the_paper_is_log_of_w_plus_m():
    a = bounds.signal(LOG_W[None], jnp.asarray([-0.7]))
    np.testing.assert_allclose(a[0], np.log(np.exp(LOG_W) + np.exp(0.7)), rtol=1e-13)


@pytest.mark.parametrize("t", [-3.0, 0.0, 3.0])
def test_kl_identity_has_a_plus(t):
    # a proposal far from a skewed target; many copies of each state in proportion to r stand for the expectation
    table = jnp.asarray([[-1.0, -3.0, 1.0, -9.0]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.asarray([[0.0, 0.5, -2.0, 1.5]])))
    log_w = exact.log_joint(pair.model, X, SUPPORT) - exact.log_proposal(pair.proposal, X, SUPPORT)
    r = np.exp(np.asarray(exact.log_resampled(pair, X, SUPPORT, t)))
    a = np.asarray(bounds.signal(log_w[None], jnp.asarray([t])))[0]
    kl = float(exact.kl(pair, X, SUPPORT, t))
    copies = np.repeat(a, np.round(r * 1_000_000).astype(int))
    np.testing.assert_allclose(bounds.kl_from_signal(jnp.asarray(copies)[None])[0], kl, rtol=1e-3)
    centred = a - np.sum(r * a)
    np.testing.assert_allclose(np.log(np.sum(r * np.exp(centred))), kl, rtol=1e-9)
    printed = np.log(np.sum(r * np.exp(-centred)))
    assert abs(printed - kl) > 0.02 * kl


def test_elbo_and_iwae():
    log_w = jnp.log(jnp.asarray([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]]))
    np.testing.assert_allclose(bounds.elbo(log_w), [np.log(12) / 3, np.log(4)], rtol=1e-14)
    np.testing.assert_allclose(bounds.iwae(log_w), [np.log(3), np.log(4)], rtol=1e-14)
    np.testing.assert_allclose(bounds.iwae(log_w - 5000.0), bounds.iwae(log_w) - 5000.0, rtol=1e-14)
    with_impossible = jnp.log(jnp.asarray([[0.0, 3.0]]))
    np.testing.assert_allclose(bounds.iwae(with_impossible), [np.log(1.5)], rtol=1e-14)


@pytest.mark.parametrize("t", [0.0, np.inf])
def test_fresh_z_counts_impossible_draws_as_rejected(t):
    log_w = jnp.asarray([[0.0, -jnp.inf]])
    a = float(jnp.exp(relbo.Soft().log_prob(jnp.asarray(t))))
    np.testing.assert_allclose(np.exp(bounds.log_z_fresh(log_w, jnp.asarray([t]))), [a / 2], rtol=1e-14)


def test_effective_sample_size():
    np.testing.assert_allclose(bounds.effective_sample_size(jnp.full((1, 7), -900.0)), [7.0], rtol=1e-12)
    log_w = jnp.log(jnp.asarray([[1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(bounds.effective_sample_size(log_w), [36 / 14], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("function", [bounds.elbo, bounds.iwae, bounds.kl_from_signal, bounds.effective_sample_size])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
def test_only_the_last_axis_is_reduced(function, shape):
    assert function(jnp.ones(shape)).shape == shape[:-1]
    assert function(jnp.ones(shape, jnp.float32)).dtype == jnp.float32


def test_relative_variance():
    log_w = jnp.log(jnp.asarray([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]]))
    np.testing.assert_allclose(bounds.relative_variance(log_w), [14 / 3 / 9 / 3, 0.0], rtol=1e-12)
    np.testing.assert_allclose(bounds.relative_variance(log_w + 900.0), bounds.relative_variance(log_w), rtol=1e-10)


def test_relative_variance_is_the_squared_error_of_a_log_mean():
    # the delta method for log mean w, over 4,000 means of 200 draws: the ratio is 1 within 5 of its errors, 2.2% each
    log_w = jax.random.normal(jax.random.key(0), (4_000, 200)) * 0.5
    spread = float(jnp.var(bounds.log_mean_exp(log_w)))
    np.testing.assert_allclose(float(jnp.mean(bounds.relative_variance(log_w))), spread, rtol=0.11)


@pytest.mark.parametrize(
    "words, bound, label",
    [
        ("elbo", relbo.ELBO(), "ELBO"),
        ("is:1", relbo.IS(1), "IS-1"),
        ("is:5000", relbo.IS(5000), "IS-5000"),
        ("rs:1", relbo.RS(1), "R-ELBO"),
        (" RS:25 ", relbo.RS(25), "RS-25"),
    ],
)
def test_one_vocabulary(words, bound, label):
    found = bounds.parse(words)
    assert found == bound and str(found) == words.strip().lower() and found.label == label
    assert bounds.parse(bound) is bound and bounds.parse(str(bound)) == bound


@pytest.mark.parametrize("words", ["is", "is:0", "is:-3", "is:1.5", "is:01", "rs:x", ""])
def test_bad_words(words):
    with pytest.raises(ValueError) as error:
        bounds.parse(words)
    assert str(error.value) == f"a bound must be elbo, is:K or rs:K with an integer K >= 1, got {words!r}."


@pytest.mark.parametrize("words, meant", [("elob", "elbo"), ("vrs:3", "rs:3"), ("iss25", "is:25")])
def test_words_that_are_nearly_right(words, meant):
    with pytest.raises(ValueError, match=rf"got '{words}'; did you mean '{meant}'\?$"):
        bounds.parse(words)


def test_rs_says_its_threshold_as_everybody_else_does():
    assert relbo.RS(5).threshold is None and relbo.RS(5).acceptance is None
    assert relbo.RS(5, 3.0).threshold == relbo.Fixed(3.0)
    assert relbo.RS(5, threshold="quantile:0.9").threshold == relbo.Quantile(0.9)
    assert relbo.RS(5, rate=0.3).threshold == relbo.Rate(0.3)
    assert relbo.RS(5, relbo.Rate(0.3), relbo.Hard()).acceptance == relbo.Hard()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: relbo.IS(0), "IS: num_samples must be an integer >= 1, got 0."),
        (lambda: relbo.RS(0), "RS: num_samples must be an integer >= 1, got 0."),
        (
            lambda: relbo.RS(2, threshold=3.0, rate=0.5),
            "the threshold must be set by threshold= or by rate=, not by both, got (3.0, 0.5).",
        ),
    ],
)
def test_bad_bounds(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "estimator, words",
    [(relbo.RLOO(2), "elbo"), (relbo.VIMCO(4), "is:4"), (relbo.VRS(2, 1.5), "rs:1"), (relbo.VRSAll(3), "rs:1")],
)
def test_estimators_speak_it_too(estimator, words):
    assert str(estimator.bound) == words
    if isinstance(estimator.bound, relbo.RS):
        assert estimator.bound.threshold == estimator.threshold and estimator.bound.acceptance == relbo.Soft()
