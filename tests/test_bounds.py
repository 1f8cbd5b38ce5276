import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import Impossible, table_pair

import relbo
from relbo import bounds, exact
from relbo.models.toy import TableProposal

PAIR, X, SUPPORT = table_pair(3), jnp.asarray(0), jnp.arange(4)
LOG_P, LOG_Q = exact.log_joint(PAIR.model, X, SUPPORT), exact.log_proposal(PAIR.proposal, X, SUPPORT)
LOG_W = LOG_P - LOG_Q
EVIDENCE = float(jnp.exp(exact.log_evidence(PAIR.model, X, SUPPORT)))
ACCEPTANCES = {"t=0.5": relbo.Soft(0.5), "t=1": relbo.Soft(), "t=2": relbo.Soft(2.0), "hard": relbo.Hard()}


def mean_over_r(function, t, acceptance, size):
    """E over all tuples of `size` draws from r of function((n, size) log weights)."""
    log_r = exact.log_resampled(PAIR, X, SUPPORT, t, acceptance)
    index = exact.tuples(4, size)
    return float(jnp.sum(jnp.exp(jnp.sum(log_r[index], axis=-1)) * function(LOG_W[index])))


def over_counts(function, size, rate):
    """E of function(N), N the proposals up to the `size`-th acceptance."""
    failures = np.arange(int(scipy.stats.nbinom.isf(1e-14, size, rate)) + 1)
    values = np.asarray(function(jnp.asarray(failures + size)), float)
    return float(np.sum(scipy.stats.nbinom.pmf(failures, size, rate) * values))


@pytest.mark.parametrize("t", [-3.0, 0.0, 3.0, np.inf])
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


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("t", [-3.0, 0.0, 3.0])
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


@pytest.mark.parametrize("size", [1, 2, 3, 25])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9])
def test_log_z_unbiased(size, rate):
    mean = over_counts(lambda n: bounds.log_z_unbiased(size, n), size, rate)
    np.testing.assert_allclose(mean, np.log(rate), rtol=1e-8)


@pytest.mark.parametrize("size", range(1, 30))
def test_log_z_unbiased_is_exactly_0_when_nothing_was_rejected(size):
    # compiled with k a constant, as the estimators have it
    log_z = jax.jit(lambda n: bounds.log_z_unbiased(size, n))(jnp.asarray([size, size + 1]))
    assert float(log_z[0]) == 0 and float(log_z[1]) < 0


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


@pytest.mark.parametrize("function", [bounds.elbo, bounds.iwae, bounds.kl_from_signal, bounds.effective_sample_size])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
def test_only_the_last_axis_is_reduced(function, shape):
    assert function(jnp.ones(shape)).shape == shape[:-1]
    assert function(jnp.ones(shape, jnp.float32)).dtype == jnp.float32
