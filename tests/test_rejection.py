import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import FALSE_FAILURE_RATE, Impossible, assert_frequencies, table_pair, threshold_at_rate

import relbo
from relbo import exact, rejection
from relbo.estimators.vrs import draw_accepted
from relbo.models.toy import TableProposal
from relbo.types import split_streams

ENOUGH = 10**6
ACCEPTANCES = {"t=0.5": relbo.Soft(0.5), "t=1": relbo.Soft(), "hard": relbo.Hard()}


def sample_table(key, pair, x, t, acceptance, num_samples, max_rounds=ENOUGH, **options):
    """The sampler itself on an enumerable pair."""

    def log_accept(row, z):
        x, t = row
        log_p, log_q = pair.model.log_joint(x, z), pair.proposal.log_prob(z, x)
        u = relbo.acceptance.log_odds_of(log_p, log_q, t)
        return acceptance.log_prob(u), rejection.LogProbs(log_p, log_q)

    return rejection.sample(
        split_streams(key),
        (x, t),
        lambda k, row: pair.proposal.sample(k, row[0]),
        log_accept,
        num_samples=num_samples,
        max_rounds=max_rounds,
        **options,
    )


PAIR, NUM_ROWS, SIZE = table_pair(3), 1_500, 3
X, SUPPORT = jnp.asarray(0), jnp.arange(4)


@functools.cache
def compiled(name):
    """One program for all rates; two widths, since compiling takes longer than sampling."""
    x = jnp.full(NUM_ROWS, X)
    return jax.jit(
        lambda key, t: sample_table(key, PAIR, x, jnp.full(NUM_ROWS, t), ACCEPTANCES[name], SIZE, widths=(16, 2048))
    )


@functools.cache
def draws_at(rate, name="t=1"):
    """Draws of many rows of the same x at an exact acceptance rate, and log r."""
    t = threshold_at_rate(PAIR, X, SUPPORT, rate, ACCEPTANCES[name])
    keys = jax.random.split(jax.random.key(1), 1 if rate < 0.01 else 8)
    parts = [compiled(name)(k, t) for k in keys]
    accepted = jax.tree.map(lambda *leaves: np.concatenate([np.atleast_1d(v) for v in leaves]), *parts)
    return accepted, exact.log_resampled(PAIR, X, SUPPORT, t, ACCEPTANCES[name])


def pairs_of(log_prob):
    return (log_prob[:, None] + log_prob[None, :]).reshape(-1)


@pytest.mark.parametrize("name", ACCEPTANCES)
@pytest.mark.parametrize("rate", [0.9, 0.1, 0.001])
def test_draws_and_pairs_of_draws_follow_r(rate, name):
    accepted, log_r = draws_at(rate, name)
    assert not accepted.exhausted.any()
    z = accepted.z
    for position in range(SIZE):  # the first accepted as well as the last
        assert_frequencies(z[:, position], log_r)
    for i, j in ((0, 1), (0, 2), (1, 2)):  # independence within a row
        assert_frequencies(4 * z[:, i] + z[:, j], pairs_of(log_r))
    assert_frequencies(4 * z[:-1:2, -1] + z[1::2, 0], pairs_of(log_r))  # and between rows


@pytest.mark.parametrize("rate", [0.9, 0.1, 0.001])
def test_number_of_proposals_is_negative_binomial_and_independent_of_the_draws(rate):
    accepted, log_r = draws_at(rate)
    failures = accepted.num_proposals - SIZE
    assert failures.min() >= 0
    law = scipy.stats.nbinom(SIZE, rate)
    edges = np.unique(law.ppf(np.linspace(0, 1, 11)[1:-1]))
    cell = np.searchsorted(edges, failures)  # (-inf, e_0], (e_0, e_1], ..., (e_last, inf)
    assert_frequencies(cell, np.log(np.diff([0, *law.cdf(edges), 1])))
    median = law.median()
    log_half = jnp.log(jnp.asarray([law.cdf(median), law.sf(median)]))
    late = (failures > median).astype(int)
    assert_frequencies(4 * late + accepted.z[:, 0], (log_half[:, None] + log_r[None, :]).reshape(-1))


def test_first_proposals_follow_q():
    # whatever was accepted later: a threshold learns from them
    accepted, _ = draws_at(0.1)
    log_q = exact.log_proposal(PAIR.proposal, X, SUPPORT)
    state = np.argmin(np.abs(accepted.first.log_q[..., None] - np.asarray(log_q)), axis=-1)
    assert_frequencies(state[:, 0], log_q)
    assert_frequencies(4 * state[:, 0] + state[:, 1], pairs_of(log_q))


def by_hand(key, pair, x, t, acceptance, num_samples):
    """The definition: each row alone, one proposal after another, the first S accepted."""
    streams = split_streams(key)
    draws, counts = [], []
    for row in range(len(x)):
        found, position = [], 0
        while len(found) < num_samples:
            place = jnp.asarray([row], jnp.int32), jnp.asarray([position], jnp.int32)
            z = pair.proposal.sample(rejection.stream_keys(streams.propose, *place)[0], x[row])
            u = pair.model.log_joint(x[row], z) - pair.proposal.log_prob(z, x[row]) + t[row]
            word = rejection.stream_words(streams.accept, *place)[0][0]
            log_u = np.log((float(word) + 0.5) / 2**32)
            if log_u <= float(acceptance.log_prob(u)):
                found.append(int(z))
            position += 1
        draws.append(found)
        counts.append(position)
    return np.array(draws), np.array(counts)


def test_draws_are_the_first_accepted_in_proposal_order():
    pair = table_pair(4, num_x=3)
    x, t = jnp.asarray([0, 1, 2]), jnp.asarray([1.0, -0.5, 0.0])
    z, num_proposals = by_hand(jax.random.key(8), pair, x, t, relbo.Soft(), 3)
    accepted = jax.jit(lambda k: sample_table(k, pair, x, t, relbo.Soft(), 3))(jax.random.key(8))
    np.testing.assert_array_equal(accepted.z, z)
    np.testing.assert_array_equal(accepted.num_proposals, num_proposals)


@functools.cache
def with_widths(widths):
    pair, x = table_pair(4, num_x=5), jnp.arange(5)
    t = jnp.asarray([jnp.inf, 2.0, -1.0, -4.0, -6.0])  # fast rows beside slow ones
    return jax.jit(lambda k: sample_table(k, pair, x, t, relbo.Soft(), 4, widths=widths))(jax.random.key(9))


@pytest.mark.parametrize(
    "widths", [(1,), (7, 1000), *(pytest.param(w, marks=pytest.mark.slow) for w in [(3,), (2000,)])]
)
def test_draws_do_not_depend_on_the_schedule(widths):
    expected, got = with_widths(None), with_widths(widths)
    for field in ("z", "num_proposals", "exhausted", "first"):
        jax.tree.map(np.testing.assert_array_equal, getattr(got, field), getattr(expected, field))


def test_draws_of_a_row_do_not_depend_on_the_other_rows():
    pair = table_pair(4, num_x=4)
    mine = jnp.asarray(2), jnp.asarray(-2.0)  # row 1
    run = jax.jit(lambda x, t: sample_table(jax.random.key(10), pair, x, t, relbo.Soft(), 3))
    results = [
        run(jnp.full(num_rows, other_x).at[1].set(mine[0]), jnp.full(num_rows, other_t).at[1].set(mine[1]))
        for num_rows, other_x, other_t in [(2, 0, jnp.inf), (2, 1, -6.0), (40, 3, jnp.inf), (40, 0, -5.0)]
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(other.z[1], results[0].z[1])
        np.testing.assert_array_equal(other.num_proposals[1], results[0].num_proposals[1])


@pytest.mark.parametrize("max_rounds", [1, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 50))])
def test_the_cap_is_exact(max_rounds):
    # a row is exhausted if and only if its S-th acceptance would come after max_rounds * S proposals
    pair, size, num_rows = table_pair(4), 2, 64
    x, t = jnp.zeros(num_rows, int), jnp.full(num_rows, -2.0)
    free = sample_table(jax.random.key(11), pair, x, t, relbo.Soft(), size, widths=(16,))
    capped = sample_table(
        jax.random.key(11), pair, x, t, relbo.Soft(), size, max_rounds=max_rounds, throw=False, widths=(16,)
    )
    late = np.asarray(free.num_proposals) > max_rounds * size
    np.testing.assert_array_equal(capped.exhausted, late)
    np.testing.assert_array_equal(capped.num_proposals, np.where(late, max_rounds * size, free.num_proposals))
    np.testing.assert_array_equal(np.asarray(capped.z)[~late], np.asarray(free.z)[~late])


def test_cost_is_counted_and_bounded():
    t = threshold_at_rate(PAIR, X, SUPPORT, 0.05, relbo.Soft())
    run = jax.jit(lambda k: sample_table(k, PAIR, jnp.full(100, X), jnp.full(100, t), relbo.Soft(), 2))
    accepted = run(jax.random.key(12))
    needed = int(accepted.num_proposals.sum())
    assert needed <= int(accepted.num_evaluated) < 1.35 * needed


def broken(where):
    table = jnp.zeros((1, 3))
    model = Impossible(table.at[0, 1].set(jnp.nan) if where == "p" else table)

    class BrokenProposal(relbo.AbstractProposal):
        def sample(self, key, x):
            return jax.random.randint(key, (), 0, 3)

        def log_prob(self, z, x):
            value = jnp.asarray(-np.log(3))
            return jnp.where(z == 1, jnp.nan, value) if where == "q" else value

    return relbo.Pair(model, BrokenProposal())


@pytest.mark.parametrize(
    "where, message, throw", [("p", "log p is NaN.*log_joint", True), ("q", "log q is NaN.*log_prob", False)]
)
def test_nan_is_an_error_that_names_which(where, message, throw):
    pair = broken(where)
    x, t = jnp.zeros(20, int), jnp.zeros(20)
    run = jax.jit(
        lambda k: draw_accepted(split_streams(k), pair, x, t, relbo.Soft(), num_samples=2, max_rounds=100, throw=throw)
    )
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(run(jax.random.key(0)))


def test_nan_beyond_the_first_round_is_an_error():
    # state 1 is so rare that only a long search meets it; nothing else is ever accepted
    table = jnp.asarray([[-400.0, jnp.nan, -400.0]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.asarray([[0.0, -4.0, 0.0]])))
    with pytest.raises(Exception, match="log p is NaN"):
        accepted = sample_table(
            jax.random.key(0), pair, jnp.zeros(1, int), jnp.zeros(1), relbo.Soft(), 2, max_rounds=5_000, throw=False
        )
        jax.block_until_ready(accepted)


def test_impossible_states_are_never_accepted():
    table = jnp.asarray([[0.0, -jnp.inf, -1.0, -jnp.inf]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((1, 4))))
    x, key = jnp.zeros(2000, int), jax.random.key(1)
    for acceptance in (relbo.Soft(), relbo.Hard()):
        run = jax.jit(lambda t, a=acceptance: sample_table(key, pair, x, t, a, 2, widths=(16, 1024)))
        for t in (0.0, jnp.inf):
            accepted = run(jnp.full(2000, t))
            log_r = exact.log_resampled(pair, jnp.asarray(0), jnp.arange(4), t, acceptance)
            assert_frequencies(accepted.z, log_r)


class TreeModel(relbo.AbstractModel):
    """X and z are dictionaries of arrays of several ranks and types."""

    weight: jax.Array

    def log_joint(self, x, z):
        return jnp.sum(self.weight * x["image"]) * z["label"].astype(x["image"].dtype) - jnp.sum(z["code"] ** 2)

    def sample(self, key):
        raise NotImplementedError


class TreeProposal(relbo.AbstractProposal):
    scale: jax.Array

    def sample(self, key, x):
        k1, k2 = jax.random.split(key)
        noise = jax.random.normal(k1, (2, 3), x["image"].dtype)
        return {"code": self.scale * noise, "label": jax.random.randint(k2, (), 0, 2)}

    def log_prob(self, z, x):
        return jnp.sum(jax.scipy.stats.norm.logpdf(z["code"] / self.scale) - jnp.log(self.scale)) - jnp.log(2.0)


@pytest.mark.slow
def test_any_pytree_of_x_and_z():
    pair = relbo.Pair(TreeModel(jnp.ones((2, 2))), TreeProposal(jnp.asarray(0.7)))
    image = jax.random.normal(jax.random.key(0), (5, 2, 2))
    batch = relbo.Batch({"image": image, "unused": jnp.zeros((5, 1), bool)}, jnp.arange(5))
    for estimator in (relbo.VRS(3, relbo.Rate(0.3, 20)), relbo.VIMCO(3)):
        state = estimator.init(jax.random.key(0), pair, 5)
        grads, _, info = jax.jit(estimator.estimate)(jax.random.key(1), pair, state, batch)
        assert np.isfinite(info.bound).all()
        assert float(jnp.abs(grads.model.weight).max()) > 0 and float(jnp.abs(grads.proposal.scale)) > 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_uniform_never_rejects_the_certain_nor_accepts_the_impossible(dtype):
    # log U <= 0 at the largest word and > -inf at the smallest
    ends = rejection.log_uniform(jnp.asarray([0, 2**32 - 1], jnp.uint32), jnp.dtype(dtype))
    assert float(ends.max()) <= 0 and np.isfinite(ends).all()
    words = jax.random.bits(jax.random.key(0), (200_000,), jnp.uint32)
    log_u = rejection.log_uniform(words, jnp.dtype(dtype))
    assert log_u.dtype == dtype
    p_value = scipy.stats.kstest(np.exp(np.asarray(log_u, np.float64)), "uniform").pvalue
    assert p_value > FALSE_FAILURE_RATE / 100


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_streams_are_apart(impl):
    # no two places of any two rows share a key, and neither order nor shape of the question matters
    row, position = rejection.grid(40, 50)
    key = jax.random.key(3, impl=impl)
    data = np.asarray(jax.random.key_data(rejection.stream_keys(key, row, position)))
    assert len(np.unique(data.reshape(2_000, -1), axis=0)) == 2_000
    one = jax.random.key_data(rejection.stream_keys(key, row[7:8, 9], position[7:8, 9]))
    np.testing.assert_array_equal(data[7, 9], one[0])
    words = np.asarray(rejection.stream_words(key, row, position)).reshape(-1)
    assert scipy.stats.kstest((words + 0.5) / 2**32, "uniform").pvalue > FALSE_FAILURE_RATE / 100
