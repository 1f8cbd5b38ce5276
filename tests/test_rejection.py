"""The sampler against exact laws: of the draws, of how many there are, and of what they cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import FALSE_FAILURE_RATE, Impossible, assert_frequencies, table_pair, threshold_at_rate

import relbo
from relbo import exact, rejection
from relbo.models.toy import TableModel, TableProposal
from relbo.streams import grid, log_uniform, split_streams, stream_keys, stream_words
from relbo.types import Weights
from relbo.view import Proposals, view_of

ENOUGH = 10**6
ACCEPTANCES = {"s=0.5": relbo.Soft(0.5), "s=1": relbo.Soft(), "hard": relbo.Hard()}
PAIR, NUM_ROWS, SIZE = table_pair(3), 1_500, 3
X, SUPPORT = jnp.asarray(0), jnp.arange(4)
WIDTHS = (1024,)
"""One width, since compiling takes longer than sampling."""


class WholeTable(relbo.AbstractBatchPair):
    """A table pair as a program that draws one z for all rows together."""

    pair: relbo.Pair

    def draw(self, key, x, positions):
        def column(position):
            return jax.random.categorical(jax.random.fold_in(key, position), self.pair.proposal.table[x])

        return jax.vmap(column)(positions).T

    def log_densities(self, x, z):
        log_q = jax.nn.log_softmax(self.pair.proposal.table)
        return self.pair.model.log_table()[x[:, None], z], log_q[x[:, None], z]

    @property
    def num_features(self):
        return 1

    def features(self, x):
        return x[:, None].astype(float)

    @property
    def has_path(self):
        return False

    def noise(self, key, x, positions):
        raise NotImplementedError

    def transform(self, noise, x):
        raise NotImplementedError


def proposals(view, key, budget):
    z = view.draw(split_streams(key).propose, budget)
    return Proposals(z, view.log_densities(z))


def sample(key, pair, x, t, acceptance=relbo.Soft(), *, size=2, budget=None, max_rounds=ENOUGH, **options):
    """The sampler with a budget, on a fresh key."""
    view = view_of(pair, x)
    first = proposals(view, key, size if budget is None else budget)
    options = {"num_samples": size, "max_rounds": max_rounds, **options}
    return rejection.sample(view, split_streams(key), first, t, acceptance, **options)


def draw_accepted(key, pair, x, t, acceptance=relbo.Soft(), *, size=2, max_rounds=ENOUGH, **options):
    """The paper's algorithm, on a fresh key."""
    options = {"num_samples": size, "max_rounds": max_rounds, **options}
    return rejection.draw_accepted(view_of(pair, x), split_streams(key), t, acceptance, **options)


def columns_of(accepted):
    """The used draws of each row in the order in which they were proposed, garbage after the last."""
    place = np.argsort(~np.asarray(accepted.used), axis=1, kind="stable")
    return np.take_along_axis(np.asarray(accepted.z), place, axis=1)


@functools.cache
def compiled(name, *, whole=False, budget=None):
    """One program for all rates."""
    x, pair = jnp.full(NUM_ROWS, X), WholeTable(PAIR) if whole else PAIR
    acceptance, widths = ACCEPTANCES[name], (8,) if whole else WIDTHS
    call = functools.partial(draw_accepted, size=SIZE)
    if budget is not None:
        call = functools.partial(sample, size=2, budget=budget)
    return jax.jit(lambda key, t: call(key, pair, x, jnp.full(NUM_ROWS, t), acceptance, widths=widths))


@functools.cache
def draws_at(rate, name="s=1", **kind):
    """Draws of many rows of the same x at an exact acceptance rate, and log r."""
    t = threshold_at_rate(PAIR, X, SUPPORT, rate, ACCEPTANCES[name])
    keys = jax.random.split(jax.random.key(1), 1 if rate < 0.01 else 8)
    parts = [compiled(name, **kind)(k, t) for k in keys]
    accepted = jax.tree.map(lambda *leaves: np.concatenate([np.atleast_1d(v) for v in leaves]), *parts)
    return accepted, np.asarray(exact.log_resampled(PAIR, X, SUPPORT, t, ACCEPTANCES[name]))


def together(*log_probs):
    """Log probabilities of all combinations of independent states."""
    return functools.reduce(lambda a, b: (a[:, None] + b[None, :]).reshape(-1), log_probs)


def with_marks(cases, fast):
    return [case if case in fast else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("rate", "name", "whole"),
    with_marks(
        [(rate, name, False) for rate in (0.9, 0.1, 0.001) for name in ACCEPTANCES]
        + [(0.9, "s=1", True), (0.1, "s=1", True)],
        fast=[(0.9, "s=1", False), (0.1, "s=1", False), (0.1, "s=1", True)],
    ),
)
def test_draws_and_pairs_of_draws_follow_r(rate, name, whole):
    accepted, log_r = draws_at(rate, name, whole=whole)
    assert accepted.used.all() and not accepted.exhausted.any()
    z = accepted.z
    for position in range(SIZE):  # the first accepted as well as the last
        assert_frequencies(z[:, position], log_r)
    for i, j in ((0, 1), (0, 2), (1, 2)):  # independence within a row
        assert_frequencies(4 * z[:, i] + z[:, j], together(log_r, log_r))
    assert_frequencies(4 * z[:-1:2, -1] + z[1::2, 0], together(log_r, log_r))  # and between rows


@pytest.mark.parametrize(
    ("rate", "whole"),
    [(0.9, False), (0.1, False), (0.1, True), pytest.param(0.001, False, marks=pytest.mark.slow)],
)
def test_number_of_proposals_is_negative_binomial_and_independent_of_the_draws(rate, whole):
    accepted, log_r = draws_at(rate, whole=whole)
    failures = accepted.num_proposals - SIZE
    assert failures.min() >= 0
    law = scipy.stats.nbinom(SIZE, rate)
    edges = np.unique(law.ppf(np.linspace(0, 1, 11)[1:-1]))
    cell = np.searchsorted(edges, failures)  # (-inf, e_0], (e_0, e_1], ..., (e_last, inf)
    assert_frequencies(cell, np.log(np.diff([0, *law.cdf(edges), 1])))
    median = law.median()
    log_half = np.log([law.cdf(median), law.sf(median)])
    late = (failures > median).astype(int)
    for place in (0, SIZE - 1):
        assert_frequencies(4 * late + accepted.z[:, place], together(log_half, log_r))


BUDGET = 5
"""N, with S = 2."""


def stops_at(accepted, rate):
    """How each row stopped as a state number, and the exact log probabilities of these numbers.

    The first N - S + 1 states are K = S..N acceptances among N; the others are ranges of the number of proposals of
    rows that went on.
    """
    within = scipy.stats.binom(BUDGET, rate).pmf(np.arange(2, BUDGET + 1))
    law = scipy.stats.nbinom(2, rate, loc=2)  # of the proposals up to the second acceptance
    edges = np.unique(law.ppf(law.cdf(BUDGET) + law.sf(BUDGET) * np.linspace(0, 1, 6)[1:-1]))
    beyond = np.diff([law.cdf(BUDGET), *law.cdf(edges), 1])
    went_on = accepted.num_proposals > BUDGET
    np.testing.assert_array_equal(accepted.num_used[went_on], 2)
    np.testing.assert_array_equal(accepted.num_proposals[~went_on], BUDGET)
    cell = np.where(went_on, BUDGET - 1 + np.searchsorted(edges, accepted.num_proposals), accepted.num_used - 2)
    with np.errstate(divide="ignore"):
        return cell, np.log(np.concatenate([within, beyond]))


@pytest.mark.parametrize(
    ("rate", "name", "whole"),
    with_marks(
        [(0.9, "s=1", False), (0.5, "s=1", False), (0.1, "s=1", False), (0.001, "s=1", False)]
        + [(0.5, "s=1", True), (0.1, "hard", False)],
        fast=[(0.5, "s=1", False), (0.5, "s=1", True)],
    ),
)
def test_the_law_of_what_a_budget_yields(rate, name, whole):
    accepted, log_r = draws_at(rate, name, whole=whole, budget=BUDGET)
    cell, log_cell = stops_at(accepted, rate)
    assert_frequencies(cell, log_cell)
    # given how a row stopped, its first and its last draw are independent and follow r
    z, last = columns_of(accepted), accepted.num_used - 1
    states = [cell, z[:, 0], z[np.arange(last.size), last]]
    assert_frequencies(states[0] * 16 + states[1] * 4 + states[2], together(log_cell, log_r, log_r))
    np.testing.assert_array_equal(accepted.num_used, accepted.used.sum(axis=1))


def test_first_proposals_follow_q():
    # whatever was accepted among them or later: a threshold learns from them
    accepted, _ = draws_at(0.1, whole=False, budget=BUDGET)
    log_q = np.asarray(exact.log_proposal(PAIR.proposal, X, SUPPORT))
    first = accepted.z[:, :BUDGET]
    assert_frequencies(first[:, 0], log_q)
    assert_frequencies(4 * first[:, -2] + first[:, -1], together(log_q, log_q))


def by_hand(key, pair, x, t, acceptance, size, budget):
    """The definition: each row alone, one proposal after another."""
    streams, places = split_streams(key), grid(len(x), 100)
    z = jax.vmap(jax.vmap(pair.proposal.sample, (0, None)))(stream_keys(streams.propose, *places), x)
    u = pair.model.log_table()[x[:, None], z] - jax.nn.log_softmax(pair.proposal.table)[x[:, None], z] + t[:, None]
    log_u = np.log((np.asarray(stream_words(streams.accept, *places)[0], float) + 0.5) / 2**32)
    is_accepted = log_u <= np.asarray(acceptance.log_prob(u))
    draws, counts = [], []
    for row in range(len(x)):
        found, position = [], 0
        while position < budget or len(found) < size:
            if is_accepted[row, position]:
                found.append(int(z[row, position]))
            position += 1
        draws.append(found)
        counts.append(position)
    return draws, np.array(counts)


@pytest.mark.parametrize("budget", [3, 5])
def test_draws_are_the_first_accepted_in_proposal_order(budget):
    pair = table_pair(4, num_x=3)
    x, t = jnp.asarray([0, 1, 2, 2]), jnp.asarray([1.0, -0.5, 0.0, 3.0])
    draws, counts = by_hand(jax.random.key(8), pair, x, t, relbo.Soft(), 3, budget)
    accepted = jax.jit(lambda k: sample(k, pair, x, t, size=3, budget=budget))(jax.random.key(8))
    np.testing.assert_array_equal(accepted.num_proposals, counts)
    np.testing.assert_array_equal(accepted.num_used, [len(found) for found in draws])
    for got, found in zip(columns_of(accepted), draws, strict=True):
        np.testing.assert_array_equal(got[: len(found)], found)
    assert (counts > budget).any() and (budget == 3 or (counts == budget).any()), "both ways to stop"


@pytest.mark.slow
def test_draw_accepted_is_the_sampler_without_a_budget_in_s_places():
    pair = table_pair(4, num_x=3)
    x, t, key = jnp.asarray([0, 1, 2]), jnp.asarray([1.0, -0.5, -3.0]), jax.random.key(8)
    both = jax.jit(lambda k: (sample(k, pair, x, t, size=3), draw_accepted(k, pair, x, t, size=3)))
    wide, compact = both(key)
    np.testing.assert_array_equal(compact.z, columns_of(wide)[:, :3])
    assert compact.used.shape == (3, 3) and compact.used.all()
    assert int(wide.num_evaluated) == int(compact.num_evaluated)
    log_p, log_q = view_of(pair, x).log_densities(compact.z)
    np.testing.assert_array_equal(compact.log_probs.log_p, log_p)
    np.testing.assert_array_equal(compact.log_probs.log_q, log_q)


@functools.cache
def with_widths(widths, *, whole=False):
    pair, x = table_pair(4, num_x=5), jnp.arange(5)
    pair = WholeTable(pair) if whole else pair
    t = jnp.asarray([jnp.inf, 2.0, -1.0, -4.0, -6.0])  # fast rows beside slow ones
    run = jax.jit(lambda k: sample(k, pair, x, t, size=4, budget=6, widths=widths))
    return jax.tree.map(np.asarray, run(jax.random.key(9)))


def assert_same_draws(got, expected, rows=slice(None)):
    """Bit for bit; programs of different widths may round densities differently."""
    for field in ("used", "num_used", "num_proposals", "exhausted"):
        np.testing.assert_array_equal(getattr(got, field)[rows], getattr(expected, field)[rows])
    used = expected.used[rows]  # other places may hold anything
    np.testing.assert_array_equal(got.z[rows][used], expected.z[rows][used])
    for a, b in zip(got.log_probs, expected.log_probs, strict=True):
        np.testing.assert_allclose(a[rows][used], b[rows][used], rtol=1e-13)


@pytest.mark.parametrize(
    ("widths", "whole"),
    [
        *[((1,), False), ((7, 1000), False), ((1,), True)],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [((3,), False), ((2000,), False), ((50,), True)]),
    ],
)
def test_draws_do_not_depend_on_the_schedule(widths, whole):
    assert_same_draws(with_widths(widths, whole=whole), with_widths(None, whole=whole))


@pytest.mark.parametrize("budget", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_draws_of_a_row_do_not_depend_on_the_other_rows(budget):
    pair = table_pair(4, num_x=4)
    mine = jnp.asarray(2), jnp.asarray(-2.0)  # row 1
    run = jax.jit(lambda x, t: sample(jax.random.key(10), pair, x, t, size=3, budget=budget, widths=(16,)))
    results = [
        run(jnp.full(num_rows, other_x).at[1].set(mine[0]), jnp.full(num_rows, other_t).at[1].set(mine[1]))
        for num_rows, other_x, other_t in [(2, 0, jnp.inf), (2, 1, -6.0), (40, 3, jnp.inf), (40, 0, -5.0)]
    ]
    for other in results[1:]:
        assert_same_draws(jax.tree.map(np.asarray, other), jax.tree.map(np.asarray, results[0]), rows=slice(1, 2))


@functools.cache
def capped(max_rounds, budget, *, whole=False):
    pair, num_rows = table_pair(4), 64
    pair = WholeTable(pair) if whole else pair
    x, t = jnp.zeros(num_rows, int), jnp.linspace(-4.0, 2.0, num_rows)
    run = jax.jit(
        lambda k: sample(k, pair, x, t, budget=budget, max_rounds=max_rounds, throw=False, widths=(16,)),
    )
    return jax.tree.map(np.asarray, run(jax.random.key(11)))


@pytest.mark.parametrize(
    ("max_rounds", "budget", "whole"),
    with_marks(
        [(n, budget, False) for n in (1, 3, 7, 50) for budget in (2, 8)] + [(7, 2, True)],
        fast=[(1, 8, False)],
    ),
)
def test_the_cap_is_exact(max_rounds, budget, whole):
    # a row is exhausted if and only if its S-th acceptance would come after max_rounds * S proposals (and after N)
    free, limited = capped(ENOUGH, budget, whole=whole), capped(max_rounds, budget, whole=whole)
    cap = max(2 * max_rounds, budget)
    late = free.num_proposals > cap
    assert late.any() and not late.all()
    np.testing.assert_array_equal(limited.exhausted, late)
    np.testing.assert_array_equal(limited.num_proposals, np.where(late, cap, free.num_proposals))
    np.testing.assert_array_equal(limited.num_used, np.where(late, 0, free.num_used))
    assert not limited.used[late].any(), "no draw of an exhausted row is used"
    assert_same_draws(limited, free, rows=~late)


def test_an_exhausted_row_is_an_error_that_says_what_to_do():
    with pytest.raises(Exception, match=r"max_rounds \* num_samples = 3 \* 2 proposals without 2 acceptances. Raise"):
        x, t = jnp.zeros(3, int), jnp.full(3, -50.0)
        jax.block_until_ready(jax.jit(lambda k: sample(k, PAIR, x, t, max_rounds=3, widths=(4,)))(jax.random.key(0)))


@pytest.mark.parametrize("whole", [False, True])
def test_every_field_is_filled(whole):
    pair, num_rows = WholeTable(PAIR) if whole else PAIR, 20
    x, t = jnp.zeros(num_rows, int), jnp.linspace(-6.0, 3.0, num_rows)
    accepted = jax.jit(lambda k: sample(k, pair, x, t, budget=3, max_rounds=20, throw=False))(jax.random.key(2))
    log_p, log_q = view_of(pair, x).log_densities(accepted.z)
    for got, expected in zip(accepted.log_probs, (log_p, log_q), strict=True):
        np.testing.assert_allclose(np.where(accepted.used, got, 0), np.where(accepted.used, expected, 0), rtol=1e-14)
    assert accepted.z.shape == accepted.used.shape == (num_rows, 3 + 2)
    assert accepted.exhausted.any() and not accepted.exhausted.all()
    np.testing.assert_array_equal(accepted.num_used, np.sum(accepted.used, axis=1))
    assert (np.asarray(accepted.num_used)[~np.asarray(accepted.exhausted)] >= 2).all()
    assert int(accepted.num_evaluated) >= int(accepted.num_proposals.sum())
    whole_numbers = (accepted.num_used, accepted.num_proposals, accepted.num_evaluated)
    assert {v.dtype for v in whole_numbers} == {jnp.dtype("int32")}


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_infinite_threshold_accepts_all_in_one_round(whole):
    pair, key, x = WholeTable(PAIR) if whole else PAIR, jax.random.key(3), jnp.zeros(7, int)
    accepted = jax.jit(lambda k: sample(k, pair, x, jnp.full(7, jnp.inf), budget=5, widths=(4,)))(key)
    np.testing.assert_array_equal(accepted.used, np.arange(7)[None] < np.full((7, 1), 5))
    np.testing.assert_array_equal(accepted.num_used, 5)
    np.testing.assert_array_equal(accepted.num_proposals, 5)
    assert int(accepted.num_evaluated) == 7 * 5
    np.testing.assert_array_equal(accepted.z[:, :5], proposals(view_of(pair, x), key, 5).z)


@pytest.mark.slow
def test_cost_is_counted_and_bounded():
    t = threshold_at_rate(PAIR, X, SUPPORT, 0.05, relbo.Soft())
    run = jax.jit(lambda k: sample(k, PAIR, jnp.full(100, X), jnp.full(100, t)))
    accepted = run(jax.random.key(12))
    needed = int(accepted.num_proposals.sum())
    assert needed <= int(accepted.num_evaluated) < 1.35 * needed


class Odd(relbo.AbstractProposal):
    """One of three states; log q of state 1 is what the test wants."""

    logits: jax.Array
    log_q: jax.Array

    def sample(self, key, x):
        return jax.random.categorical(key, self.logits)

    def log_prob(self, z, x):
        return jnp.where(z == 1, self.log_q, jax.nn.log_softmax(self.logits)[z])


@pytest.mark.parametrize(
    ("where", "late", "throw"),
    with_marks(
        [(where, late, throw) for where in "pq" for late in (False, True) for throw in (False, True)],
        fast=[("p", False, True), ("q", False, False), ("p", True, False)],
    ),
)
def test_nan_is_an_error_that_names_which(where, late, throw):
    # late: state 1 is so rare that only a long search meets it, and nothing else is ever accepted;
    # otherwise everything else is accepted, and no row goes on
    table = jnp.full((1, 3), -400.0 if late else 0.0)
    model = Impossible(table.at[0, 1].set(jnp.nan) if where == "p" else table)
    logits = jnp.asarray([0.0, -4.0 if late else 0.0, 0.0])
    pair = relbo.Pair(model, Odd(logits, jnp.asarray(jnp.nan if where == "q" else -1.0)))
    names = {"p": r"log p is NaN: model.log_joint\(", "q": r"log q is NaN: proposal.log_prob\("}
    rows, options = 1 if late else 20, {"budget": 12, "max_rounds": 5_000, "throw": throw, "widths": (4,)}
    x, t = jnp.zeros(rows, int), jnp.full(rows, 0.0 if late else jnp.inf)
    run = jax.jit(lambda k: sample(k, pair, x, t, **options))
    with pytest.raises(Exception, match=names[where] + ".*must return"):
        jax.block_until_ready(run(jax.random.key(2)))


@pytest.mark.parametrize(
    "acceptance", [relbo.Soft(), pytest.param(relbo.Hard(), marks=pytest.mark.slow)], ids=["soft", "hard"]
)
def test_impossible_states_are_never_accepted(acceptance):
    table = jnp.asarray([[0.0, -jnp.inf, -1.0, -jnp.inf]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((1, 4))))
    x, key = jnp.zeros(2000, int), jax.random.key(1)
    run = jax.jit(lambda t: draw_accepted(key, pair, x, t, acceptance, widths=(256,)))
    for t in (0.0, jnp.inf):
        accepted = run(jnp.full(2000, t))
        assert set(np.unique(accepted.z)) == {0, 2}
        assert_frequencies(accepted.z, exact.log_resampled(pair, jnp.asarray(0), jnp.arange(4), t, acceptance))


class Steep(relbo.AbstractModel):
    """Log of a table: its derivative is infinite where the table is 0."""

    table: jax.Array

    def log_joint(self, x, z):
        return jnp.log(self.table[z])

    def sample(self, key):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("steep", "budget"), with_marks([(False, 2), (False, 4), (True, 2), (True, 4)], fast=[(True, 2)])
)
def test_pull_back_is_the_gradient_of_the_weighted_log_densities(steep, budget):
    # also beside rejected proposals whose derivative is infinite: they have no weight, and 0 * inf is NaN
    x, t = jnp.zeros(12, int), jnp.linspace(-1.0, 2.0, 12)
    model = Steep(jnp.asarray([0.3, 0.0, 0.5, 0.2]))
    pair = relbo.Pair(model, PAIR.proposal) if steep else PAIR
    options = {"num_samples": 2, "num_proposals": budget, "max_rounds": ENOUGH}

    @jax.jit
    def run(key, c):
        view = view_of(pair, x)
        draws = rejection.accepted_draws(view, split_streams(key), t, relbo.Soft(), **options)
        weights = Weights(*jnp.where(draws.used[None], c, 0))
        return draws.pull_back(weights), weights, draws._replace(pull_back=None)

    key = jax.random.key(6)
    got, weights, draws = run(key, jax.random.normal(key, (2, 12, budget + 2)))
    accepted = draws.extra
    for field in ("z", "used"):
        np.testing.assert_array_equal(getattr(draws, field), getattr(accepted, field))
    if steep:
        assert (np.asarray(draws.z)[:, :budget] == 1).any(), "a proposal with an infinite derivative"
    assert (accepted.num_proposals > budget).any()
    state = jnp.arange(4)[:, None, None]  # the weight that each state's score gets
    c_p, c_q = (jnp.sum(jnp.where(draws.z[None] == state, c[None], 0), axis=(1, 2)) for c in weights)
    possible = [0, 2, 3] if steep else [0, 1, 2, 3]

    def total(p):
        log_p = jnp.stack([p.model.log_joint(X, jnp.asarray(z)) for z in possible])
        log_q = jnp.stack([p.proposal.log_prob(jnp.asarray(z), X) for z in possible])
        return jnp.sum(c_p[jnp.asarray(possible)] * log_p) + jnp.sum(c_q[jnp.asarray(possible)] * log_q)

    expected = exact.gradient(total, pair)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, expected)


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
    ends = log_uniform(jnp.asarray([0, 2**32 - 1], jnp.uint32), jnp.dtype(dtype))
    assert float(ends.max()) <= 0 and np.isfinite(ends).all()
    words = jax.random.bits(jax.random.key(0), (200_000,), jnp.uint32)
    log_u = log_uniform(words, jnp.dtype(dtype))
    assert log_u.dtype == dtype
    p_value = scipy.stats.kstest(np.exp(np.asarray(log_u, np.float64)), "uniform").pvalue
    assert p_value > FALSE_FAILURE_RATE / 100


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_streams_are_apart(impl):
    # no two places of any two rows share a key, and neither order nor shape of the question matters
    row, position = grid(40, 50)
    key = jax.random.key(3, impl=impl)
    data = np.asarray(jax.random.key_data(stream_keys(key, row, position)))
    assert len(np.unique(data.reshape(2_000, -1), axis=0)) == 2_000
    one = jax.random.key_data(stream_keys(key, row[7:8, 9], position[7:8, 9]))
    np.testing.assert_array_equal(data[7, 9], one[0])
    words = np.asarray(stream_words(key, row, position)).reshape(-1)
    assert scipy.stats.kstest((words + 0.5) / 2**32, "uniform").pvalue > FALSE_FAILURE_RATE / 100


@pytest.mark.parametrize(
    "change, message",
    [
        ({"size": 0}, "num_samples must be an integer >= 1, got 0."),
        ({"max_rounds": 0}, "max_rounds must be an integer >= 1, got 0."),
        ({"size": 3, "budget": 2}, "num_proposals must be at least num_samples = 3, got 2."),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError) as error:
        sample(jax.random.key(0), PAIR, jnp.zeros(2, int), jnp.zeros(2), **{"size": 2, "budget": 4, **change})
    assert str(error.value) == message


@pytest.mark.parametrize("dtype", [pytest.param(jnp.bfloat16, marks=pytest.mark.slow), jnp.float16])
def test_half_precision_accepts_at_the_right_rate(dtype):
    # log w = log 4, T = 3: a = 0.988 up to the rounding of log a; binomial, 6 standard deviations: false failure 2e-9
    pair = relbo.Pair(TableModel(jnp.zeros((1, 4), dtype), normalise=False), TableProposal(jnp.zeros((1, 4), dtype)))
    accepted = rejection.draw_accepted(
        relbo.view_of(pair, jnp.zeros(200, int)),
        split_streams(jax.random.key(0)),
        jnp.full(200, 3.0),
        relbo.Soft(),
        num_samples=50,
        max_rounds=20,
        throw=False,
    )
    rate = 4 / (4 + np.exp(-3))
    total = int(jnp.sum(accepted.num_proposals))
    assert not accepted.exhausted.any()
    assert abs(200 * 50 / total - rate) < 6 * np.sqrt(rate * (1 - rate) / total) + 2e-3
