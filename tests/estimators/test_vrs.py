"""VRS: exact expectations, the limit without rejection, and rows or draws that must not count."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import (
    Impossible,
    Together,
    assert_trees_close,
    draw_and_estimate,
    draws_of,
    expected_gradient,
    rejection_of,
    small_batch,
    small_sbn,
    table_pair,
    vrs_extra,
)

import relbo
from relbo import exact
from relbo.models.toy import TableProposal
from relbo.streams import split_streams
from relbo.variance import gradient_moments
from relbo.view import view_of

NEVER = float("inf")
SLOW = pytest.mark.slow
SOFT = [(t, sharpness) for t in (-3.0, 0.0, 3.0, NEVER) for sharpness in (0.5, 1.0, 2.0)]
HARD = [(t, None) for t in (-3.0, 0.0, 3.0, NEVER)]


def acceptance_of(sharpness):
    return relbo.Hard() if sharpness is None else relbo.Soft(sharpness)


@pytest.mark.parametrize("num_samples", [2, 3])
@pytest.mark.parametrize("settings", [SOFT, HARD], ids=["soft", "hard"])
def test_expected_gradient_is_exact(settings, num_samples):
    # T and sharpness are traced: one compilation for all of them
    pair, x, support = table_pair(3), jnp.asarray(1), jnp.arange(4)

    def both(t, sharpness):
        acceptance = acceptance_of(sharpness)
        estimator = relbo.VRS(num_samples, relbo.Fixed(t), acceptance)
        log_r = exact.log_resampled(pair, x, support, t, acceptance)
        got = expected_gradient(estimator, pair, x, support, log_r, num_samples, vrs_extra(t, num_samples))
        return got, exact.gradient(exact.r_elbo, pair, x, support, t, acceptance)

    t = jnp.asarray([t for t, _ in settings])
    sharpness = None if settings is HARD else jnp.asarray([s for _, s in settings])
    got, want = jax.jit(jax.vmap(both))(t, sharpness)
    for i in range(len(settings)):
        for part in ("model", "proposal"):
            ours, theirs = (getattr(tree, part).table[i] for tree in (got, want))
            assert_trees_close(ours, theirs)
        assert np.abs(want.model.table[i]).max() > 1e-3  # a relative test of nothing would pass


@pytest.mark.slow
def test_expected_gradient_of_a_network():
    # parameters shared by all z, layers as a pytree
    pair = relbo.sbn(jax.random.key(0), (2, 1), jnp.asarray([0.3, 0.6]))
    bits = exact.binary_states(3)
    support, x, t = (bits[:, :2], bits[:, 2:]), jnp.asarray([1.0, 0.0]), 0.5
    log_r = exact.log_resampled(pair, x, support, t)
    got = expected_gradient(relbo.VRS(2, relbo.Fixed(t)), pair, x, support, log_r, 2, vrs_extra(t, 2))
    assert_trees_close(got, exact.gradient(exact.r_elbo, pair, x, support, t))


@pytest.mark.parametrize("settings", [SOFT, HARD], ids=["soft", "hard"])
def test_info_bound_is_unbiased(settings):
    # sum over all pairs of draws and over the negative binomial law of the number of proposals
    pair, x, support, size = table_pair(3), jnp.asarray(0), jnp.arange(4), 2
    index = jnp.asarray(exact.tuples(4, size))
    failures = np.arange(10_000)

    @jax.jit
    def bounds_of(t, sharpness):
        acceptance = acceptance_of(sharpness)
        estimator = relbo.VRS(size, relbo.Fixed(t), acceptance)
        log_p, log_q = exact.log_joint(pair.model, x, support), exact.log_proposal(pair.proposal, x, support)

        def bound(num_proposals, z):
            count = jnp.full(num_proposals.shape, size, jnp.int32)
            draws = draws_of(z, log_p[z], log_q[z], rejection_of(t, count, num_proposals))
            batch = relbo.Batch(jnp.full(count.shape, x), jnp.zeros(count.shape, int))
            return estimator.weigh(draws, estimator.init(jax.random.key(0), pair, 1), batch)[2].bound

        return (
            bound(jnp.full(index.shape[0], size, jnp.int32), index),
            bound(jnp.asarray(failures + size, jnp.int32), jnp.zeros((failures.size, size), int)),
            exact.log_resampled(pair, x, support, t, acceptance),
            exact.log_z(pair, x, support, t, acceptance),
            exact.r_elbo(pair, x, support, t, acceptance),
        )

    for t, sharpness in settings:
        of_z, of_n, log_r, log_z, want = map(np.asarray, bounds_of(t, sharpness))
        rate = min(float(np.exp(log_z)), 1.0)
        assert scipy.stats.nbinom.sf(failures[-1], size, rate) < 1e-12
        # the bound is a function of z plus one of N: two sums give the double one
        mean = np.sum(np.exp(log_r[index].sum(-1)) * of_z)
        mean += np.sum(scipy.stats.nbinom.pmf(failures, size, rate) * (of_n - of_n[0]))
        np.testing.assert_allclose(mean, want, rtol=1e-8)


@pytest.mark.slow
def test_a_step_is_unbiased_as_a_whole():
    """Sampler, weights and counts together: gradient, bound and acceptance of 20,000 rows with a budget.

    18 numbers, |z-score| <= 6: a correct program fails with probability 4e-8.
    """
    pair, x, t, support, rows = table_pair(3), jnp.asarray(0), 0.0, jnp.arange(4), 20_000
    estimator = relbo.VRS(2, relbo.Fixed(t), num_proposals=3)
    batch, state = relbo.Batch(jnp.full(rows, x), jnp.zeros(rows, int)), estimator.init(jax.random.key(0), pair, 1)

    @jax.jit
    def run(key):
        draws, weights, grads, info = draw_and_estimate(estimator, key, pair, state, batch)
        scores = (
            jax.jacobian(lambda p: exact.log_joint(p, x, support))(pair.model).table,
            jax.jacobian(lambda q: exact.log_proposal(q, x, support))(pair.proposal).table,
        )
        by_state = jax.nn.one_hot(draws.z, 4, dtype=jnp.float64)
        each = [rows * jnp.einsum("bk,bks,sxz->bxz", c, by_state, s) for c, s in zip(weights, scores, strict=True)]
        want = exact.gradient(exact.r_elbo, pair, x, support, t)
        bound, log_z = (f(pair, x, support, t) for f in (exact.r_elbo, exact.log_z))
        return (
            (*each, info.bound, info.extra.acceptance),
            (want.model.table, want.proposal.table, bound, jnp.exp(log_z)),
            (grads, info.extra.num_used),
        )

    values, want, (grads, num_used) = run(jax.random.key(11))
    assert set(np.unique(num_used)) == {2, 3}, "rows that use all of their budget, and rows that do not"
    assert_trees_close(grads, [np.mean(values[0], axis=0), np.mean(values[1], axis=0)], rtol=1e-10)
    for seen, expected in zip(values, want, strict=True):
        noise = np.std(seen, axis=0) / np.sqrt(rows)
        assert np.all(np.abs(np.mean(seen, axis=0) - expected) <= 6 * noise + 1e-12)


WITHOUT_REJECTION = {
    "T = +inf": lambda size: relbo.VRS(size, relbo.Fixed(NEVER)),
    "Always": lambda size: relbo.VRS(size, relbo.Fixed(0.0), relbo.Always()),
    "before the first refresh": lambda size: relbo.VRS(size, relbo.Quantile(every=10), relbo.Hard()),
    "all of a budget": lambda size: relbo.VRS(2, relbo.Fixed(NEVER), num_proposals=size),
    "warmup": lambda size: relbo.VRS(size, relbo.Rate(0.1, warmup=1)),
}


@pytest.mark.parametrize(
    ("name", "dtype", "kind"),
    [
        ("T = +inf", jnp.float32, "rows"),
        pytest.param("T = +inf", jnp.float64, "rows", marks=SLOW),
        pytest.param("all of a budget", jnp.float64, "together", marks=SLOW),
        *(
            pytest.param(n, d, "rows", marks=SLOW)
            for n in list(WITHOUT_REJECTION)[1:]
            for d in (jnp.float32, "float64")
        ),
    ],
)
def test_nothing_rejected_is_rloo(name, dtype, kind):
    # the same z bit for bit; gradients, which are rounded differently, to 1e-12 or 1e-5 relative
    dtype, size = jnp.dtype(dtype), 4
    pair, batch = small_sbn(dtype=dtype)[0], small_batch(3, dtype=dtype)
    pair = pair if kind == "rows" else Together(pair)

    def run(estimator):
        state = estimator.init(jax.random.key(0), pair, 3)

        def one(key):
            draws, _, grads, info = draw_and_estimate(estimator, key, pair, state, batch)
            return draws, grads, info.bound, info.num_proposals

        return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(7), 5))

    plain, grads, bound, num_proposals = run(relbo.RLOO(size))
    draws, ours, our_bound, our_proposals = run(WITHOUT_REJECTION[name](size))
    np.testing.assert_array_equal(draws.used, np.arange(draws.used.shape[-1]) < np.full(draws.used.shape, size))
    for a, b in zip(jax.tree.leaves(draws.z), jax.tree.leaves(plain.z), strict=True):
        np.testing.assert_array_equal(a[:, :, :size], b)
    np.testing.assert_array_equal(our_proposals, num_proposals)
    rtol = 1e-12 if dtype == jnp.float64 else 1e-5
    np.testing.assert_allclose(our_bound, bound, rtol=rtol)
    for i in range(5):
        assert_trees_close(*(jax.tree.map(lambda leaf, i=i: leaf[i], tree) for tree in (ours, grads)), rtol=rtol)


def weights_of(estimator, log_w, used, t):
    """Weights of one row with these log weights in its places."""
    used = jnp.asarray([used])
    count = jnp.sum(used, axis=1, dtype=jnp.int32)
    extra = rejection_of(t, count, jnp.full(1, estimator.num_proposals, jnp.int32))
    log_p = jnp.asarray([log_w])
    draws = draws_of(jnp.zeros(log_p.shape, int), log_p, jnp.zeros_like(log_p), extra, used)
    batch = relbo.Batch(jnp.zeros(1, int), jnp.zeros(1, int))
    weights, _, info = estimator.weigh(draws, estimator.init(jax.random.key(0), table_pair(), 1), batch)
    return np.asarray(weights.model[0]), np.asarray(weights.proposal[0]), info


def test_weights_by_hand():
    # N = 4, S = 2: three of the first four were accepted, the late places are empty; an impossible one among the rest
    log_w, used, t = np.array([0.5, -np.inf, -1.0, 2.0, 0.0, 0.0]), np.array([1, 0, 1, 1, 0, 0], bool), 0.7
    settings = {"threshold": relbo.Fixed(t), "num_proposals": 4}
    f = log_w[used]
    a = 1 / (1 + np.exp(-f - t))
    signal = f - np.log(a)
    centred = (signal - signal.mean()) / 2
    want_p, want_q = 1 / 3 + (1 - a) * centred, a * centred

    model, proposal, info = weights_of(relbo.VRS(2, **settings), log_w, used, t)
    np.testing.assert_allclose(model[used], want_p, rtol=1e-12)
    np.testing.assert_allclose(proposal[used], want_q, rtol=1e-12)
    assert np.all(model[~used] == 0) and np.all(proposal[~used] == 0)
    np.testing.assert_array_equal(info.extra.num_used, [3])
    np.testing.assert_allclose(info.extra.acceptance, [np.append(a, 0).mean()], rtol=1e-12)

    model, proposal, _ = weights_of(relbo.VRSWake(2, **settings), log_w, used, t)
    np.testing.assert_allclose(model[used], want_p, rtol=1e-12)
    np.testing.assert_allclose(proposal, used / 3, rtol=1e-12)

    log_w[1] = -3.0  # rejected, but possible: phi of the raw variant learns from it too
    raw = log_w[:4]
    model, proposal, _ = weights_of(relbo.VRSRaw(2, **settings), log_w, used, t)
    np.testing.assert_allclose(model[used], want_p, rtol=1e-12)
    np.testing.assert_allclose(proposal, np.append((raw - raw.mean()) / 3, [0, 0]), rtol=1e-12)
    assert np.all(model[~used] == 0)


def test_weights_of_all_proposals_by_hand():
    log_w, t = np.array([0.5, -1.0, 2.0]), 0.7
    estimator = relbo.VRSAll(3, relbo.Fixed(t))
    reading = rejection_of(t, jnp.full(1, 3, jnp.int32), jnp.full(1, 3, jnp.int32)).reading
    draws = draws_of(jnp.zeros((1, 3), int), jnp.asarray([log_w]), jnp.zeros((1, 3)), reading)
    batch = relbo.Batch(jnp.zeros(1, int), jnp.zeros(1, int))
    weights, _, info = estimator.weigh(draws, estimator.init(jax.random.key(0), table_pair(), 1), batch)
    a = 1 / (1 + np.exp(-log_w - t))
    signal, rho = log_w - np.log(a), a / a.sum()
    others = np.array([np.average(np.delete(signal, i), weights=np.delete(a, i)) for i in range(3)])
    np.testing.assert_allclose(weights.model[0], rho * (1 + (1 - a) * (signal - others)), rtol=1e-12)
    np.testing.assert_allclose(weights.proposal[0], rho * a * (signal - others), rtol=1e-12)
    np.testing.assert_allclose(info.bound, [rho @ signal + np.log(a.mean())], rtol=1e-12)


def exhausted_case():
    # x = 1 is accepted with probability about e^-60
    table = jnp.asarray([[0.0, -1.0, -0.5], [-60.0, -60.0, -60.0], [-1.0, 0.3, -2.0]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((3, 3))))
    return pair, relbo.Batch(jnp.asarray([0, 1, 2]), jnp.asarray([0, 1, 2]))


@pytest.mark.parametrize("wrap", [lambda p: p, pytest.param(Together, marks=SLOW)], ids=["rows", "together"])
def test_rows_that_run_out_take_the_next_draws_without_rejection(key, wrap):
    pair, batch = exhausted_case()
    estimator = relbo.VRS(2, relbo.Fixed(0.0), num_proposals=3, max_rounds=5)
    state, view = estimator.init(key, wrap(pair), 3), view_of(pair, batch.x)
    draws, state, info = jax.jit(lambda p: step_without_gradient(estimator, key, p, state, batch))(wrap(pair))
    np.testing.assert_array_equal(info.extra.exhausted, [False, True, False])
    assert info.valid.all() and info.num_proposals[1] == 12 and info.extra.num_used[1] == 2
    np.testing.assert_array_equal(draws.used[1], [False] * 3 + [True] * 2)
    fresh = view.draw(split_streams(key).propose, 12)[1, 10:]
    np.testing.assert_array_equal(draws.z[1, 3:], fresh)
    log_w = exact.log_joint(pair.model, batch.x[1], fresh) - exact.log_proposal(pair.proposal, batch.x[1], fresh)
    np.testing.assert_allclose(info.bound[1], jnp.mean(log_w), rtol=1e-14)
    np.testing.assert_array_equal(info.extra.threshold, 0.0)
    assert int(state.tally.num_steps) == 1
    np.testing.assert_allclose(state.tally.num_exhausted, 1 / 3, rtol=1e-6)


def step_without_gradient(estimator, key, pair, state, batch):
    draws, state = estimator.draw(split_streams(key), view_of(pair, batch.x), state, batch)
    _, state, info = estimator.weigh(draws, state, batch)
    return draws._replace(pull_back=None), state, info


def test_a_row_without_any_possible_draw_is_left_out_and_counted(key):
    table = jnp.asarray([[0.0, -1.0, -0.5], [-jnp.inf] * 3, [-1.0, 0.3, -2.0]])
    pair, batch = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((3, 3)))), exhausted_case()[1]
    estimator = relbo.VRS(2, relbo.Fixed(0.0), num_proposals=3, max_rounds=5)
    step = eqx.filter_jit(estimator.estimate)
    state = estimator.init(key, pair, 3)
    grads, _, info = step(key, pair, state, batch)
    np.testing.assert_array_equal(info.valid, [True, False, True])
    np.testing.assert_array_equal(info.extra.exhausted, ~info.valid)
    np.testing.assert_array_equal(np.isnan(info.bound), ~info.valid)
    assert info.num_proposals[1] == 20 and info.extra.num_used[1] == 0

    # the same streams with one row at a time left to succeed
    def alone(row):
        x = jnp.ones(3, int).at[row].set(batch.x[row])
        return step(key, pair, state, relbo.Batch(x, batch.index))[0]

    mean = jax.tree.map(lambda a, b: (a + b) / 2, alone(0), alone(2))
    assert_trees_close(grads, mean, rtol=1e-14)

    # and with none
    grads, _, info = step(key, pair, state, relbo.Batch(jnp.ones(3, int), batch.index))
    assert not info.valid.any() and np.isnan(info.bound).all()
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(grads))


def test_a_step_in_which_rows_run_out_is_unbiased_for_a_mixture_of_bounds():
    # of 4 proposals fewer than 2 are accepted with a known probability; 200,000 rows, each of 16 entries of the mean
    # within 5.5 standard errors: rate 6e-7
    pair, x, t, rows = table_pair(1), jnp.asarray(1), 0.5, 1_000
    estimator = relbo.VRS(2, relbo.Fixed(t), num_proposals=3, max_rounds=2)
    batch = relbo.Batch(jnp.full(rows, x), jnp.zeros(rows, int))
    state = estimator.init(jax.random.key(0), pair, 1)
    found = gradient_moments(estimator, jax.random.key(1), pair, state, batch, num_estimates=200, chunk=100)
    z = float(jnp.exp(exact.log_z(pair, x, jnp.arange(4), t, relbo.Soft())))
    share = (1 - z) ** 4 + 4 * z * (1 - z) ** 3
    assert 0.2 < share < 0.8

    def mixture(p):
        support = jnp.arange(4)
        resampled = exact.r_elbo(p, x, support, t, relbo.Soft())
        return (1 - share) * resampled + share * exact.r_elbo(p, x, support, jnp.inf, relbo.Soft())

    expected = exact.gradient(mixture, pair)
    for mean, variance, wanted in zip(*map(jax.tree.leaves, (found.mean, found.variance, expected)), strict=True):
        error = np.abs(mean - wanted) / np.sqrt(variance / found.num_estimates + 1e-30)
        assert np.all(error < 5.5), error


class Singular(relbo.AbstractModel):
    """Log p = theta z, but at z = 0: improbable or impossible, with a derivative in theta = 1 that is no number.

    If `tame`, the value there is the same and its derivative is 0.
    """

    theta: jax.Array
    kind: str = eqx.field(static=True)
    tame: bool = eqx.field(static=True, default=False)

    def log_joint(self, x, z):
        at_zero = jnp.where(z == 0, jax.lax.stop_gradient(self.theta) if self.tame else self.theta, 2.0)
        kinds = {
            "infinite": lambda: -50 - jnp.sqrt(at_zero - 1),
            "NaN": lambda: -50 - jnp.sqrt((at_zero - 1) ** 2),
            "impossible": lambda: at_zero * jnp.log(jnp.where(z == 0, z, 1.0)),
        }
        return jnp.where(x > 0, 0.0, -jnp.inf) + jnp.where(z == 0, kinds[self.kind](), self.theta * z)

    def sample(self, key):
        raise NotImplementedError


class UpToTwo(relbo.AbstractProposal):
    logits: jax.Array

    def sample(self, key, x):
        return jax.random.categorical(key, self.logits).astype(self.logits.dtype)

    def log_prob(self, z, x):
        return jax.nn.log_softmax(self.logits)[z.astype(int)]


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        ("infinite", lambda p: p),
        *(pytest.param(k, lambda p: p, marks=SLOW) for k in ("NaN", "impossible")),
        *(pytest.param(k, Together, marks=SLOW) for k in ("infinite", "NaN", "impossible")),
    ],
)
def test_a_derivative_that_is_no_number_does_not_count_where_it_was_rejected(kind, wrap):
    x = jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0])  # one row has no possible draw
    batch = relbo.Batch(x, jnp.arange(5))
    proposal = UpToTwo(jnp.asarray([1.0, 0.0, -0.5]))
    estimator = relbo.VRS(2, relbo.Fixed(-1.0), num_proposals=3, max_rounds=20, throw=False)

    def run(pair):
        state = estimator.init(jax.random.key(0), pair, 5)

        def one(key):
            draws, _, grads, info = draw_and_estimate(estimator, key, pair, state, batch)
            return draws.z, draws.used, grads, info

        return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(4), 6))

    pair, tame = (wrap(relbo.Pair(Singular(jnp.asarray(1.0), kind, tame), proposal)) for tame in (False, True))
    z, used, grads, info = run(pair)
    assert np.all(np.asarray(z)[..., :3].min(axis=(1, 2)) == 0), "every step proposes a z = 0"
    assert not np.any((np.asarray(z) == 0) & np.asarray(used))
    assert np.any(np.asarray(used)[..., :3]) and np.any(np.asarray(used)[..., 3:]), "first and late draws in use"
    np.testing.assert_array_equal(info.valid, np.broadcast_to(x > 0, info.valid.shape))
    assert_trees_close(grads, run(tame)[2], rtol=1e-12)


@pytest.mark.slow
def test_a_derivative_that_is_no_number_shows_where_it_was_accepted(key):
    # nothing is hidden: with T = +inf the singular draw is in use
    pair = relbo.Pair(Singular(jnp.asarray(1.0), "infinite"), UpToTwo(jnp.asarray([5.0, 0.0, 0.0])))
    estimator = relbo.VRS(2, relbo.Fixed(NEVER))
    batch = relbo.Batch(jnp.ones(3), jnp.arange(3))
    grads, _, info = jax.jit(estimator.estimate)(key, pair, estimator.init(key, pair, 3), batch)
    assert info.valid.all() and not np.isfinite(grads.model.theta)


def test_exhaustion_raises_if_asked_to(key):
    pair, batch = exhausted_case()
    estimator = relbo.VRS(2, relbo.Fixed(0.0), max_rounds=5, throw=True)
    with pytest.raises(Exception, match=r"exhausted.*5 \* 2.*threshold T.*gamma.*max_rounds.*throw=False"):
        jax.block_until_ready(estimator.estimate(key, pair, estimator.init(key, pair, 3), batch))


@pytest.mark.slow
def test_impossible_proposals_are_legal(key):
    table = jnp.asarray([[0.0, -jnp.inf, -1.0, -jnp.inf]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((1, 4))))
    batch = relbo.Batch(jnp.zeros(5, int), jnp.zeros(5, int))
    thresholds = (
        relbo.Fixed(0.0),
        relbo.Fixed(NEVER),
        relbo.Quantile(0.9, 20, 1),
        relbo.Quantile(0.4, 20, None),
        relbo.Rate(0.4, 20),
    )
    for threshold in thresholds:
        for acceptance in (relbo.Soft(), relbo.Hard()):
            estimator = relbo.VRS(3, threshold, acceptance)
            state = estimator.init(key, pair, 1)
            step = eqx.filter_jit(estimator.estimate)
            for k in jax.random.split(key, 3):
                grads, state, info = step(k, pair, state, batch)
                assert info.valid.all() and np.isfinite(info.bound).all()
                assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
