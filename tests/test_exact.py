import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Impossible, table_pair
from hypothesis import given, settings
from hypothesis import strategies as st

import relbo
from relbo import exact
from relbo.models.toy import TableModel, TableProposal

X, SUPPORT = jnp.asarray(0), jnp.arange(5)
NEVER = float("inf")


def random_pair(log_p, log_q):
    return relbo.Pair(Impossible(jnp.asarray([log_p])), TableProposal(jnp.asarray([log_q])))


levels = st.lists(st.floats(-30, 30), min_size=5, max_size=5)
acceptances = st.sampled_from([relbo.Soft(0.5), relbo.Soft(), relbo.Soft(2.0), relbo.Hard()])
kl_at = jax.jit(exact.kl)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(levels, levels, acceptances, st.lists(st.floats(-60, 60), min_size=2, max_size=4))
def test_theorem_1_kl_does_not_decrease_in_t(log_p, log_q, acceptance, thresholds):
    pair = random_pair(log_p, log_q)
    kls = [float(kl_at(pair, X, SUPPORT, t, acceptance)) for t in [*sorted(thresholds), NEVER]]
    assert min(kls) > -1e-12
    assert np.all(np.diff(kls) >= -1e-10 * (1 + np.abs(kls[1:])))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(levels, levels, acceptances)
def test_theorem_1_limits(log_p, log_q, acceptance):
    pair = random_pair(log_p, log_q)
    low = exact.log_resampled(pair, X, SUPPORT, -200.0, acceptance)
    np.testing.assert_allclose(np.exp(low), np.exp(exact.log_posterior(pair.model, X, SUPPORT)), atol=1e-12)
    assert float(kl_at(pair, X, SUPPORT, -200.0, acceptance)) == pytest.approx(0, abs=1e-10)
    for high in (200.0, NEVER):
        log_r = exact.log_resampled(pair, X, SUPPORT, high, acceptance)
        np.testing.assert_allclose(log_r, exact.log_proposal(pair.proposal, X, SUPPORT), atol=1e-12)
        gap = exact.log_evidence(pair.model, X, SUPPORT) - exact.elbo(pair, X, SUPPORT)
        assert float(kl_at(pair, X, SUPPORT, high, acceptance)) == pytest.approx(float(gap), rel=1e-10, abs=1e-10)


def test_kl_is_constant_when_the_proposal_is_the_posterior():
    # "non-decreasing", not "increasing"
    pair = random_pair([0.3, -1.0, 2.0, 0.0, -2.0], [0.3, -1.0, 2.0, 0.0, -2.0])
    for t in (-5.0, 0.0, 5.0):
        assert float(exact.kl(pair, X, SUPPORT, t)) == pytest.approx(0, abs=1e-12)


def by_sums(table_p, table_q, t, sharpness):
    """Everything from the definitions, in plain numpy."""
    p, q = np.exp(table_p), np.exp(table_q) / np.exp(table_q).sum()
    a = (1 + (p / q * np.exp(t)) ** -sharpness) ** (-1 / sharpness)
    rate = (q * a).sum()
    r = q * a / rate
    return {
        "log_evidence": np.log(p.sum()),
        "log_z": np.log(rate),
        "r": r,
        "kl": (r * np.log(r / (p / p.sum()))).sum(),
        "r_elbo": (r * np.log(p / r)).sum(),
        "elbo": (q * np.log(p / q)).sum(),
    }


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("t", [-3.0, 0.0, 3.0])
def test_against_plain_sums(t, sharpness):
    rng = np.random.default_rng(0)
    log_p, log_q = rng.normal(size=5) - 1, rng.normal(size=5)
    pair, acceptance = random_pair(log_p, log_q), relbo.Soft(sharpness)
    want = by_sums(log_p, log_q, t, sharpness)
    np.testing.assert_allclose(exact.log_evidence(pair.model, X, SUPPORT), want["log_evidence"], rtol=1e-12)
    np.testing.assert_allclose(exact.log_z(pair, X, SUPPORT, t, acceptance), want["log_z"], rtol=1e-12)
    np.testing.assert_allclose(np.exp(exact.log_resampled(pair, X, SUPPORT, t, acceptance)), want["r"], rtol=1e-12)
    np.testing.assert_allclose(exact.kl(pair, X, SUPPORT, t, acceptance), want["kl"], rtol=1e-10)
    np.testing.assert_allclose(exact.r_elbo(pair, X, SUPPORT, t, acceptance), want["r_elbo"], rtol=1e-12)
    np.testing.assert_allclose(exact.elbo(pair, X, SUPPORT), want["elbo"], rtol=1e-12)


def test_bounds_are_ordered():
    pair = table_pair(2)
    support = jnp.arange(4)
    log_evidence = float(exact.log_evidence(pair.model, X, support))
    iwae = [float(exact.iwae(pair, X, support, k)) for k in (1, 2, 4)]
    assert iwae[0] == pytest.approx(float(exact.elbo(pair, X, support)), rel=1e-12)
    assert iwae[0] < iwae[1] < iwae[2] < log_evidence
    r_elbo = [float(exact.r_elbo(pair, X, support, t)) for t in (NEVER, 3.0, 0.0, -3.0)]
    assert r_elbo[0] == pytest.approx(iwae[0], rel=1e-12)
    assert r_elbo[0] < r_elbo[1] < r_elbo[2] < r_elbo[3] < log_evidence


@pytest.mark.parametrize(
    "quantity, args", [(exact.r_elbo, (0.5,)), (exact.elbo, ()), (exact.iwae, (2,)), (exact.kl, (0.5,))]
)
def test_gradients_against_finite_differences(quantity, args):
    pair, support, step = table_pair(2), jnp.arange(4), 1e-6
    grads = exact.gradient(quantity, pair, X, support, *args)
    value = jax.jit(
        lambda model, proposal: quantity(relbo.Pair(TableModel(model), TableProposal(proposal)), X, support, *args)
    )
    for row, column in ((0, 0), (0, 3), (1, 2)):
        delta = jnp.zeros((2, 4)).at[row, column].set(step)
        model, proposal = pair.model.table, pair.proposal.table
        by_model = (value(model + delta, proposal) - value(model - delta, proposal)) / (2 * step)
        by_proposal = (value(model, proposal + delta) - value(model, proposal - delta)) / (2 * step)
        np.testing.assert_allclose(grads.model.table[row, column], by_model, atol=1e-8)
        np.testing.assert_allclose(grads.proposal.table[row, column], by_proposal, atol=1e-8)


@pytest.mark.parametrize("t", [-1.0, NEVER])
def test_impossible_states(t):
    pair = random_pair([0.0, -np.inf, -1.0, -np.inf, 0.5], [0.0, 1.0, 0.0, 0.0, 0.0])
    log_r = exact.log_resampled(pair, X, SUPPORT, t)
    np.testing.assert_array_equal(np.isneginf(log_r), [False, True, False, True, False])
    for quantity in (exact.r_elbo, exact.kl, exact.log_z):
        assert np.isfinite(quantity(pair, X, SUPPORT, t))
        grads = exact.gradient(quantity, pair, X, SUPPORT, t)
        assert np.isfinite(grads.proposal.table).all()
    gap = exact.log_evidence(pair.model, X, SUPPORT) - exact.kl(pair, X, SUPPORT, t)
    np.testing.assert_allclose(exact.r_elbo(pair, X, SUPPORT, t), gap, rtol=1e-12)
    assert float(exact.elbo(pair, X, SUPPORT)) == -np.inf


P, Q = np.array([0.1, 0.2, 0.05, 0.3]), np.array([0.5, 0.3, 0.0, 0.2])


def with_zeros(p, q):
    """A pair of the given probabilities, some of them 0."""
    with np.errstate(divide="ignore"):
        return random_pair(np.log(np.asarray(p)), np.log(np.asarray(q)))


def test_iwae_where_q_is_zero():
    pair, support = with_zeros(P, Q), jnp.arange(4)
    w = P[[0, 1, 3]] / Q[[0, 1, 3]]
    by_hand = sum(Q[i] * Q[j] * np.log((P[i] / Q[i] + P[j] / Q[j]) / 2) for i in (0, 1, 3) for j in (0, 1, 3))
    np.testing.assert_allclose(exact.iwae(pair, X, support, 2), by_hand, rtol=1e-12)
    np.testing.assert_allclose(by_hand, -0.6964, atol=5e-5)
    np.testing.assert_allclose(exact.iwae(pair, X, support, 1), np.sum(Q[[0, 1, 3]] * np.log(w)), rtol=1e-12)
    grads = exact.gradient(exact.iwae, pair, X, support, 2)
    by_p = 2 * sum(Q[1] * Q[j] / (1 + P[j] / Q[j] / w[1]) for j in (0, 1, 3))
    np.testing.assert_allclose(grads.model.table[0, [1, 2]], [by_p, 0])
    assert np.isfinite(grads.proposal.table[0, [0, 1, 3]]).all()


@pytest.mark.parametrize("p", [[0, 0, 0.05, 0.3], [0, 0, 0, 0]], ids=["disjoint", "impossible x"])
@pytest.mark.parametrize("acceptance", [relbo.Soft(), relbo.Soft(floor=0.1), relbo.acceptance.Always()])
@pytest.mark.parametrize("t", [-NEVER, 0.0, NEVER])
def test_no_bound_above_what_cannot_happen(p, acceptance, t):
    pair = with_zeros(p, [0.5, 0.5, 0, 0])
    assert float(exact.r_elbo(pair, X, jnp.arange(4), t, acceptance)) == -np.inf
    assert float(exact.kl(pair, X, jnp.arange(4), t, acceptance)) == np.inf
    assert float(exact.iwae(pair, X, jnp.arange(4), 2)) == -np.inf


@pytest.mark.parametrize("acceptance", [relbo.Soft(0.5), relbo.Soft(), relbo.Hard()])
@pytest.mark.parametrize("q", [[0.5, 0.3, 0.1, 0.1], Q])
def test_the_limit_of_no_acceptance(q, acceptance):
    # r is the posterior on the states that q can draw
    pair, support = with_zeros(P, q), jnp.arange(4)
    seen = P * (np.asarray(q) > 0)
    np.testing.assert_allclose(np.exp(exact.log_resampled(pair, X, support, -NEVER, acceptance)), seen / seen.sum())
    np.testing.assert_allclose(exact.r_elbo(pair, X, support, -NEVER, acceptance), np.log(seen.sum()))
    gap = np.log(P.sum() / seen.sum())
    np.testing.assert_allclose(exact.kl(pair, X, support, -NEVER, acceptance), gap, atol=1e-12)
    assert float(exact.log_z(pair, X, support, -NEVER, acceptance)) == -np.inf
    slope = exact.gradient(exact.r_elbo, pair, X, support, -NEVER, acceptance).model.table[0]
    np.testing.assert_allclose(slope, seen / seen.sum(), atol=1e-12)


def test_a_floor_keeps_q_in_that_limit():
    pair, support = with_zeros(P, [0.5, 0.3, 0.1, 0.1]), jnp.arange(4)
    acceptance = relbo.Soft(floor=0.1)
    np.testing.assert_allclose(exact.log_z(pair, X, support, -NEVER, acceptance), np.log(0.1))
    elbo = exact.elbo(pair, X, support)
    np.testing.assert_allclose(exact.r_elbo(pair, X, support, -NEVER, acceptance), elbo, rtol=1e-12)


def test_densities_that_are_nan_are_not_left_out():
    pair = random_pair(np.array([0.0, np.nan, -1.0, 0.0]), np.zeros(4))
    for quantity in (exact.elbo, lambda *a: exact.r_elbo(*a, 0.0), lambda *a: exact.kl(*a, 0.0)):
        assert np.isnan(quantity(pair, X, jnp.arange(4)))


def test_support_of_several_leaves():
    pair = relbo.sbn(jax.random.key(0), (2, 1), jnp.asarray([0.5]))
    bits = exact.binary_states(3)
    assert bits.shape == (8, 3) and len(np.unique(bits, axis=0)) == 8
    log_q = exact.log_proposal(pair.proposal, jnp.ones(1), (bits[:, :2], bits[:, 2:]))
    np.testing.assert_allclose(np.exp(log_q).sum(), 1, rtol=1e-12)


def test_tuples():
    np.testing.assert_array_equal(exact.tuples(2, 2), [[0, 0], [0, 1], [1, 0], [1, 1]])
    with pytest.raises(ValueError, match=r"at most 50,000,000.*got 10000000000"):
        exact.tuples(10, 10)
