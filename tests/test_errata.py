"""Each erratum of docs/errata.md: the formula as the paper prints it fails by a stated amount, ours holds to 1e-8.

Everything is enumerated in float64; true gradients are finite differences of the exact bound, so that no formula is
checked against itself.
"""

import pathlib
import re
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import expected_gradient, table_pair, vrs_extra
from scipy.stats import norm

import relbo
from relbo import bounds, exact
from relbo.models.toy import TableModel, TableProposal
from relbo.thresholds import look_up
from relbo.view import view_of

X = jnp.asarray(0)
STATES = jnp.arange(12)
TOLERANCE = 1e-8


class Setting(NamedTuple):
    """All quantities of the method at one T; the names are the paper's."""

    t: float
    log_p: np.ndarray
    log_q: np.ndarray
    minus_u: np.ndarray  # the paper's l
    s: np.ndarray  # sigmoid(l) = 1 - a
    q: np.ndarray
    r: np.ndarray
    signal: np.ndarray  # A with the sign that holds
    grad_p: np.ndarray  # (states, parameters), grad_theta log p
    grad_q: np.ndarray  # (states, parameters), grad_phi log q
    true_theta: np.ndarray
    true_phi: np.ndarray


def pair_of(theta, phi):
    return relbo.Pair(TableModel(theta.reshape(2, 12)), TableProposal(phi.reshape(2, 12)))


PAIR = table_pair(seed=3, num_x=2, num_z=12)
THETA, PHI = PAIR.model.table.reshape(-1), PAIR.proposal.table.reshape(-1)


def finite_differences(f, at, h=1e-3):
    """Five-point central differences; the error is of order h^4 = 1e-12."""
    f = jax.jit(jax.vmap(f))
    at, steps = at[None], h * jnp.eye(at.size)
    near, far = f(at + steps) - f(at - steps), f(at + 2 * steps) - f(at - 2 * steps)
    return np.asarray((8 * near - far) / (12 * h))


@pytest.fixture(scope="module", params=[-3.0, 0.0, 3.0])
def at(request):
    t = request.param
    log_p, log_q = exact.log_joint(PAIR.model, X, STATES), exact.log_proposal(PAIR.proposal, X, STATES)
    minus_u = log_q - log_p - t
    values = (
        t,
        log_p,
        log_q,
        minus_u,
        jax.nn.sigmoid(minus_u),
        jnp.exp(log_q),
        jnp.exp(exact.log_resampled(PAIR, X, STATES, t)),
    )
    jacobians = (
        jax.jacobian(lambda v: exact.log_joint(pair_of(v, PHI).model, X, STATES))(THETA),
        jax.jacobian(lambda v: exact.log_proposal(pair_of(THETA, v).proposal, X, STATES))(PHI),
    )
    true = (
        finite_differences(lambda v: exact.r_elbo(pair_of(v, PHI), X, STATES, t), THETA),
        finite_differences(lambda v: exact.r_elbo(pair_of(THETA, v), X, STATES, t), PHI),
    )
    signal = log_p - log_q + jax.nn.softplus(minus_u)
    return Setting(*jax.tree.map(np.asarray, (*values, signal, *jacobians, *true)))


def covariance(r, a, b):
    return (r * (a - r @ a)) @ b


def size(v):
    return np.abs(v).max()


def relative_error(found, true):
    return size(found - true) / size(true)


def ours(at):
    """The gradient that VRS has in expectation, (theta, phi), over all pairs of draws from r."""
    estimator = relbo.VRS(2, relbo.Fixed(float(at.t)))
    grads = expected_gradient(estimator, PAIR, X, STATES, jnp.log(at.r), 2, vrs_extra(float(at.t), 2))
    return np.asarray(grads.model.table).reshape(-1), np.asarray(grads.proposal.table).reshape(-1)


def test_the_page_and_this_file_name_the_same_tests():
    page = (pathlib.Path(__file__).parents[1] / "docs" / "errata.md").read_text()
    named = set(re.findall(r"`(test_e\d+_\w+)`", page))
    assert named == {name for name in globals() if re.match(r"test_e\d+_", name)}


def test_e1_learning_signal(at):
    printed = at.log_p - at.log_q - np.logaddexp(0, at.minus_u)
    wrong = covariance(at.r, printed, (1 - at.s)[:, None] * at.grad_q)
    assert relative_error(wrong, at.true_phi) > 0.6  # 0.61 at T = 3, 2.8 at 0, 32 at -3
    assert relative_error(ours(at)[1], at.true_phi) < TOLERANCE


def test_e2_sign_of_the_theta_covariance(at):
    printed = at.r @ at.grad_p - covariance(at.r, at.signal, at.s[:, None] * at.grad_p)
    assert relative_error(printed, at.true_theta) > 0.06  # 0.73 at T = 3, 0.17 at 0, 0.063 at -3
    assert relative_error(ours(at)[0], at.true_theta) < TOLERANCE


def test_e3_gradient_of_log_gamma_r(at):
    def log_gamma_r(theta):
        log_p = exact.log_joint(pair_of(theta, PHI).model, X, STATES)
        return jnp.asarray(at.log_q) - jax.nn.softplus(jnp.asarray(at.log_q) - log_p - at.t)

    true = finite_differences(log_gamma_r, THETA).T
    printed = -at.s[:, None] * at.grad_p
    assert relative_error(printed, true) > 1.99  # exactly the opposite
    slope = np.asarray(relbo.Soft().slope(jnp.asarray(-at.minus_u)))
    assert relative_error(slope[:, None] * at.grad_p, true) < TOLERANCE


def test_e4_expectation_under_r(at):
    printed = at.q @ at.grad_p + covariance(at.r, at.signal, at.s[:, None] * at.grad_p)
    assert relative_error(printed, at.true_theta) > 0.6  # 0.70 at T = 3, 0.77 at 0, 0.85 at -3
    assert relative_error(ours(at)[0], at.true_theta) < TOLERANCE


def test_e5_kl_identity(at):
    true = float(exact.kl(PAIR, X, STATES, at.t))
    centred = at.signal - at.r @ at.signal
    printed = np.log(at.r @ np.exp(-centred))
    assert abs(printed - true) > 0.04 * true  # 13% at T = 3, 24% at 0, 5% at -3
    # the library's estimate, on a sample in which every state has its exact share, is the right identity
    assert np.log(at.r @ np.exp(centred)) == pytest.approx(true, rel=TOLERANCE)
    counts = np.round(at.r * 200_000).astype(int)
    share = counts / counts.sum()
    estimate = float(bounds.kl_from_signal(jnp.asarray(np.repeat(at.signal, counts))))
    shared = np.log(share @ np.exp(at.signal - share @ at.signal))
    assert estimate == pytest.approx(shared, rel=TOLERANCE)


def test_e6_constant_in_the_covariance(at):
    def log_r(phi):
        return exact.log_resampled(pair_of(THETA, phi), X, STATES, at.t)

    grad_log_z = finite_differences(lambda v: exact.log_z(pair_of(THETA, v), X, STATES, at.t), PHI)
    grad_log_r = finite_differences(log_r, PHI).T
    grad_gamma = (1 - at.s)[:, None] * at.grad_q
    assert relative_error(grad_log_r - grad_log_z, grad_gamma) > 0.05  # as printed: not grad log gamma_r
    assert relative_error(grad_log_r + grad_log_z, grad_gamma) < TOLERANCE
    # yet a constant does not change a covariance: the slip is harmless
    assert relative_error(covariance(at.r, at.signal, grad_log_r - grad_log_z), at.true_phi) < TOLERANCE


def test_e11_no_rejection_before_the_first_refresh():
    threshold, acceptance = relbo.Quantile(0.9, num_draws=20, every=3), relbo.Soft()
    batch = relbo.Batch(jnp.zeros(1, int), jnp.zeros(1, int))

    @jax.jit
    def step(key, state, batch):
        reading = look_up(threshold, key, view_of(PAIR, batch.x), state, batch.index, acceptance)
        return reading.t[0], threshold.update(state, batch.index, reading.t, jnp.zeros((1, 2)), acceptance)

    state, used = threshold.init(1), []
    for key in jax.random.split(jax.random.key(0), 5):
        t, state = step(key, state, batch)
        used.append(float(t))
    # as Algorithm 2 says: T = +inf, which is plain RLOO, for as long as one refresh interval
    assert np.isposinf(used[:3]).all() and np.isfinite(used[3:]).all()


def weighted_quantile(values, weights, level):
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(weights[order]), level)]


def test_e12_it_is_l_that_changes_sign(at):
    surprise = at.log_q - at.log_p
    for gamma in (0.5, 0.9):
        t = weighted_quantile(surprise, at.q, gamma)
        assert np.all(np.logaddexp(0, surprise - t) > 0)  # the printed event has probability 1, not 1 - gamma
        assert at.q @ (surprise - t > 0) <= 1 - gamma  # a discrete quantile: at most, not exactly


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(0.9, (0.50, 0.74, 0.83, 0.87, 0.89)), (0.95, (0.50, 0.80, 0.89, 0.92, 0.94))],
)
def test_e13_gamma_does_not_set_the_rate(gamma, expected):
    # log w ~ N(0, s^2): T = s Phi^-1(gamma), Z_R = E sigmoid(log w + T)
    points, weights = np.polynomial.hermite_e.hermegauss(101)
    weights = weights / weights.sum()
    for s, rate in zip((0, 1, 2, 3, 5), expected, strict=True):
        t = s * norm.ppf(gamma)
        found = weights @ np.exp(np.asarray(relbo.Soft().log_prob(jnp.asarray(s * points + t))))
        assert found == pytest.approx(rate, abs=0.006)
        assert gamma / 2 <= found <= (1 + gamma) / 2
    assert expected[0] == 0.50  # a perfect proposal is rejected half the time, far from "roughly gamma"


def test_e13_bounds_on_the_rate(at):
    surprise = at.log_q - at.log_p
    for gamma in (0.1, 0.5, 0.9):
        t = float(weighted_quantile(surprise, at.q, gamma))
        below = at.q @ (surprise <= t)  # gamma, up to the jump of a discrete distribution
        rate = float(jnp.exp(exact.log_z(PAIR, X, STATES, t)))
        assert below / 2 <= rate <= (1 + below) / 2


def test_e13_rate_sets_the_rate():
    log_w = jax.jit(lambda key: view_of(PAIR, X[None]).log_weights(key, 20_000))(jax.random.key(0))
    t = float(eqx.filter_jit(relbo.Rate(0.9).solve)(log_w, relbo.Soft())[0])
    # standard error below sqrt(0.9 * 0.1 / 20000) = 0.0022: 0.012 is more than five of them, p < 1e-7
    assert float(jnp.exp(exact.log_z(PAIR, X, STATES, t))) == pytest.approx(0.9, abs=0.012)


def test_e14_gamma_of_one_is_not_infinity(at):
    largest = weighted_quantile(at.log_q - at.log_p, at.q, 1 - 1e-12)
    assert largest == np.max(at.log_q - at.log_p)  # the quantile at 1 is the maximum
    rate = float(jnp.exp(exact.log_z(PAIR, X, STATES, float(largest))))
    assert rate < 0.999  # so there is rejection, unlike at T = +inf
    assert float(exact.log_z(PAIR, X, STATES, jnp.inf)) == pytest.approx(0, abs=TOLERANCE)
    with pytest.raises(ValueError, match="gamma"):
        relbo.Quantile(1.0)


def test_e15_a_stale_threshold_biases_nothing(at):
    # a T of any age is a constant: the expected gradient is that of the bound at this T
    for found, true in zip(ours(at), (at.true_theta, at.true_phi), strict=True):
        assert relative_error(found, true) < TOLERANCE

    # the bound in which T follows phi (here smoothly, T = -mean log w under q, plus at.t) has another gradient
    def moving(phi):
        pair = pair_of(THETA, phi)
        return exact.r_elbo(pair, X, STATES, at.t - exact.elbo(pair, X, STATES))

    t_now = at.t - float(exact.elbo(PAIR, X, STATES))
    fixed = finite_differences(lambda v: exact.r_elbo(pair_of(THETA, v), X, STATES, t_now), PHI)
    assert relative_error(fixed, finite_differences(moving, PHI)) > 0.01


def test_e16_kl_is_non_decreasing_not_increasing(at):
    matched = TableModel(PAIR.proposal.table)  # the posterior at x = 0 is the proposal
    perfect = relbo.Pair(matched, PAIR.proposal)
    values = np.array([exact.kl(perfect, X, STATES, t) for t in (-5.0, 0.0, 5.0, jnp.inf)])
    assert np.abs(values).max() < TOLERANCE  # constant: the printed "increasing" fails
    slope = covariance(at.r, np.log(at.s), at.s)
    true = finite_differences(lambda v: exact.kl(PAIR, X, STATES, v[0]), jnp.asarray([at.t]))[0]
    assert slope >= 0
    assert slope == pytest.approx(true, rel=1e-7, abs=1e-10)
