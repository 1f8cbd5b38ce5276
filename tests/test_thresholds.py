"""Thresholds: what is read, solved and followed, row by row and step by step."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import Impossible, assert_trees_equal, table_pair

import relbo
from relbo import exact, thresholds
from relbo.estimators.records import Tally, VRSState
from relbo.models.toy import TableProposal
from relbo.streams import Streams
from relbo.thresholds import as_threshold, look_up
from relbo.view import view_of

ACCEPTANCES = {"s=0.5": relbo.Soft(0.5), "s=1": relbo.Soft(), "s=2": relbo.Soft(2.0), "hard": relbo.Hard()}
SUPPORT = jnp.arange(4)
SOFT = relbo.Soft()


def log_weights(pair, x, num_draws, key):
    return view_of(pair, jnp.asarray([x])).log_weights(key, num_draws)


class Normal(relbo.AbstractProposal):
    """Standard normal z whose density counts for nothing."""

    def sample(self, key, x):
        return jax.random.normal(key)

    def log_prob(self, z, x):
        return jnp.zeros(())


class Affine(relbo.AbstractModel):
    """Log w = mean + scale z, for an x that says both; `tell` is called when it runs."""

    tell: Callable[[], None] | None = eqx.field(static=True, default=None)

    def log_joint(self, x, z):
        if self.tell is not None:
            jax.debug.callback(self.tell)
        return x["mean"] + x["scale"] * z

    def sample(self, key):
        raise NotImplementedError


def affine_view(mean, scale, tell=None):
    return view_of(relbo.Pair(Affine(tell), Normal()), {"mean": mean, "scale": scale})


def steps(threshold, rows_of_steps, num_data=4, num_draws=6, state=None, seed=0):
    """T, age, whether fresh draws were made, and the state after each step, where log w is normal."""
    state, asked = threshold.init(num_data) if state is None else state, []

    @jax.jit
    def run(state, rows, key):
        key_fresh, key_first = jax.random.split(key)
        view = affine_view(jnp.zeros(rows.size), jnp.full(rows.size, 2.0), lambda: asked.append(True))
        reading = look_up(threshold, key_fresh, view, state, rows, SOFT)
        log_w = 2 * jax.random.normal(key_first, (rows.size, num_draws))
        return reading, threshold.update(state, rows, reading.t, log_w, SOFT)

    found = []
    for step, rows in enumerate(rows_of_steps):
        before = len(asked)
        reading, state = run(state, jnp.asarray(rows), jax.random.fold_in(jax.random.key(seed), step))
        jax.block_until_ready(state)
        jax.effects_barrier()
        found.append((np.asarray(reading.t), np.asarray(reading.age), len(asked) > before, state))
    return found


def test_quantile_is_infinite_before_the_first_refresh_and_then_per_row():
    threshold = relbo.Quantile(0.5, num_draws=50, every=3)
    visits = [[0, 1], [2, 3], [0, 1], [0, 1], [0, 2], [1, 3], [1, 0], [3, 0]]
    t, age, asked, states = zip(*steps(threshold, visits), strict=True)
    for step in range(3):
        np.testing.assert_array_equal(t[step], [np.inf, np.inf])
        np.testing.assert_array_equal(age[step], [step, step])
    # step 3: rows 0 and 1 are due; 2 and 3 stay as they are until they are visited
    assert np.isfinite(t[3]).all()
    np.testing.assert_array_equal(age[3], [0, 0])
    np.testing.assert_array_equal(np.isinf(states[3].value), [False, False, True, True])
    # step 4: row 0 is fresh and keeps its value, row 2 is due
    assert t[4][0] == t[3][0] and np.isfinite(t[4][1])
    np.testing.assert_array_equal(age[4], [1, 0])
    assert t[5][0] == t[3][1] and age[5][0] == 2
    np.testing.assert_array_equal(states[5].refreshed, [3, 3, 4, 5])
    # step 6: three steps after the first refresh all rows are due again
    np.testing.assert_array_equal(age[6], [0, 0])
    np.testing.assert_array_equal(states[6].refreshed, [6, 6, 4, 5])
    np.testing.assert_array_equal(states[6].value[2:], states[5].value[2:])
    # step 7: row 3 is but 2 steps old, yet its turn has come with the others'
    np.testing.assert_array_equal(age[7], [0, 1])
    np.testing.assert_array_equal(states[7].refreshed, [6, 6, 4, 7])
    assert int(states[7].step) == 8
    assert sum(asked[:3]) == 0 and sum(asked[3:]) == 5, "nothing is drawn where nothing is due"


def test_a_refresh_solves_on_draws_of_the_rows_own_streams():
    pair, threshold = table_pair(1, num_x=4), relbo.Quantile(0.7, num_draws=40, every=1)
    state = threshold.init(4)._replace(step=jnp.asarray(1, jnp.int32))
    rows, key = jnp.asarray([3, 1]), jax.random.key(5)
    view = view_of(pair, rows)
    reading = look_up(threshold, key, view, state, rows, SOFT)
    np.testing.assert_array_equal(reading.t, threshold.solve(view.log_weights(key, 40), SOFT))


@pytest.mark.parametrize("gamma", [0.05, 0.5, 0.9])
def test_quantile_solve_against_the_enumerated_quantile(gamma):
    # the empirical quantile of 20,000 draws lies between the exact quantiles at gamma -+ 6 standard errors (2e-9)
    pair, x = table_pair(1), jnp.asarray(0)
    surprise = np.asarray(exact.log_proposal(pair.proposal, x, SUPPORT) - exact.log_joint(pair.model, x, SUPPORT))
    order = np.argsort(surprise)
    cdf = np.cumsum(np.exp(exact.log_proposal(pair.proposal, x, SUPPORT))[order])
    error = 6 * np.sqrt(gamma * (1 - gamma) / 20_000)
    low, high = (surprise[order][min(np.searchsorted(cdf, g), 3)] for g in (gamma - error, gamma + error))
    t = float(relbo.Quantile(gamma).solve(log_weights(pair, 0, 20_000, jax.random.key(3)), SOFT)[0])
    assert low - 1e-12 <= t <= high + 1e-12
    assert np.min(np.abs(surprise - t)) < 1e-12


@pytest.mark.parametrize(
    "gamma, num_draws, rank",
    [(0.55, 100, 55), (0.9, 10, 9), (0.91, 10, 10), (0.001, 5, 1), (0.7, 1, 1), (0.07, 100, 7)],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_quantile_rank_is_the_least_that_covers_gamma(gamma, num_draws, rank, dtype):
    surprise = jax.random.permutation(jax.random.key(2), jnp.arange(1, num_draws + 1)).astype(dtype)
    assert float(relbo.Quantile(gamma).solve(-surprise[None], SOFT)[0]) == rank


@pytest.mark.parametrize("name", ACCEPTANCES)
def test_rate_solve_against_the_exact_rate(name):
    # Z_R at the solved T is the target up to 6 standard errors of a mean of 20,000 acceptances (2e-9)
    pair, x, acceptance = table_pair(1), jnp.asarray(1), ACCEPTANCES[name]
    log_w = log_weights(pair, 1, 20_000, jax.random.key(4))

    @jax.jit
    @jax.vmap
    def achieved(rate):
        t = relbo.Rate(rate).solve(log_w, acceptance)[0]
        return jnp.exp(exact.log_z(pair, x, SUPPORT, t, acceptance))

    rates = np.array([0.05, 0.5, 0.9])
    assert (np.abs(achieved(rates) - rates) < 6 * np.sqrt(rates * (1 - rates) / 20_000)).all()


@pytest.mark.parametrize("name", [*ACCEPTANCES, "s=0.01"])
@pytest.mark.parametrize("impossible", [0, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_solve_rate_hits_the_rate_exactly(name, impossible, dtype):
    acceptance = relbo.Soft(0.01) if name == "s=0.01" else ACCEPTANCES[name]
    log_w = jnp.asarray([-80.0, -3.0, 0.0, 1.0, 2.0, 700.0, 0.5] + [-np.inf] * impossible, dtype)
    rates = jnp.asarray([0.02, 0.3, 0.65], dtype)
    t = jax.vmap(lambda rate: thresholds.solve_rate(log_w, rate, acceptance))(rates)
    assert t.dtype == dtype
    mean = jnp.mean(jnp.exp(acceptance.log_prob(log_w[None] + t[:, None])), axis=1)
    np.testing.assert_allclose(mean, rates, rtol=2e-3 if dtype == jnp.float32 else 1e-9)


@pytest.mark.parametrize("name", ACCEPTANCES)
def test_rate_beyond_what_is_possible_accepts_all_that_is(name):
    acceptance = ACCEPTANCES[name]
    log_w = jnp.asarray([-3.0, 5.0, -jnp.inf, -jnp.inf])
    t = thresholds.solve_rate(log_w, jnp.asarray(0.9), acceptance)
    assert np.isfinite(t)
    np.testing.assert_allclose(jnp.mean(jnp.exp(acceptance.log_prob(log_w + t))), 0.5, rtol=1e-5)


@pytest.mark.parametrize("threshold", [relbo.Quantile(0.5), relbo.Rate(0.5)], ids=repr)
def test_when_no_draw_is_possible_everything_possible_is_accepted(threshold):
    np.testing.assert_array_equal(threshold.solve(jnp.full((2, 10), -jnp.inf), SOFT), [np.inf, np.inf])


def test_quantile_that_is_infinite_takes_the_largest_finite_value():
    log_w = jnp.asarray([[0.0, -jnp.inf, -7.0, -jnp.inf]])
    np.testing.assert_array_equal(relbo.Quantile(0.9).solve(log_w, SOFT), [7.0])


def test_thresholds_follow_through_infinite_thresholds_and_impossible_proposals():
    log_w = jnp.asarray([[-jnp.inf, -jnp.inf], [-jnp.inf, 0.0], [1.0, 0.0], [1.0, 2.0]])
    for threshold in (relbo.Rate(0.5), relbo.Quantile(0.5, every=None)):
        state = threshold.init(4)
        for t in (jnp.asarray([jnp.inf, 1.0, 2.0, jnp.inf]), jnp.asarray([jnp.inf, 1.0, jnp.inf, 0.0])):
            state = jax.jit(lambda s, t, h=threshold: h.update(s, jnp.arange(4), t, log_w, SOFT))(state, t)
            np.testing.assert_array_equal(np.isnan(state.value), np.isinf(t))
            for field in state._fields:
                assert field == "value" or np.isfinite(getattr(state, field)).all(), field


KINDS = {
    "fixed": relbo.Fixed(0.5),
    "quantile": relbo.Quantile(0.5, 10, 2),
    "online quantile": relbo.Quantile(0.5, 10, None),
    "rate": relbo.Rate(0.4, 10),
}


@pytest.mark.parametrize("name", KINDS)
def test_only_the_visited_rows_change(name):
    *_, state = steps(KINDS[name], [[0, 1, 2, 3]] * 4)[-1]
    *_, new = steps(KINDS[name], [[2]], state=state)[-1]
    assert int(new.step) == int(state.step) + 1
    for before, after in zip(state, new, strict=True):
        if before.ndim == 1:
            kept = jnp.asarray([0, 1, 3])
            np.testing.assert_array_equal(before[kept], after[kept])
    if name != "fixed":
        assert float(state.value[2]) != float(new.value[2])


@pytest.mark.parametrize("name", KINDS)
def test_rows_outside_of_the_dataset_are_refused(name):
    with pytest.raises(ValueError, match=r"batch.index must lie in \[0, 4\)"):
        KINDS[name].read(KINDS[name].init(4), jnp.asarray([1, 4]))


@pytest.mark.parametrize(
    "name", ["rate", *(pytest.param(n, marks=pytest.mark.slow) for n in ("quantile", "online quantile"))]
)
def test_t_does_not_depend_on_the_draws_of_its_own_step(name):
    # T of a step comes from `other`, and from steps before: change the proposals and acceptances of the step alone
    threshold, pair, rows = KINDS[name], table_pair(1, num_x=4), jnp.asarray([0, 3])
    batch = relbo.Batch(rows, rows)
    *_, state = steps(threshold, [[0, 1, 2, 3]] * 2)[-1]
    estimator = relbo.VRS(2, threshold, num_proposals=3)

    @jax.jit
    def draw(streams):
        draws, _ = estimator.draw(streams, view_of(pair, rows), VRSState(state, Tally.zero()), batch)
        return draws.extra.reading.t, draws.z

    used = []
    for seed in range(3):
        propose, accept = jax.random.split(jax.random.key(seed))
        used.append(draw(Streams(propose, accept, jax.random.key(99))))
    assert any((used[0][1] != z).any() for _, z in used[1:]), "the draws did change"
    for t, _ in used[1:]:
        np.testing.assert_array_equal(t, used[0][0])


def test_vrs_hands_over_its_first_proposals_impossible_ones_included():
    # what a step teaches its threshold is log w of the first N proposals, iid from q, and nothing that came later
    table = jnp.asarray([[0.0, -jnp.inf, -1.0]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((1, 3))))
    seen = []

    class Spy(relbo.AbstractThreshold):
        fresh_draws = 0

        def init(self, num_data):
            return ()

        def read(self, state, index):
            return thresholds.Reading(jnp.zeros(3), jnp.zeros(3, bool), jnp.zeros(3, jnp.int32))

        def update(self, state, index, t, log_w, acceptance):
            seen.append(log_w)
            return state

        def solve(self, log_w, acceptance, step=None):
            raise NotImplementedError

    rows = jnp.zeros(3, int)
    view = view_of(pair, rows)
    streams = Streams(*jax.random.split(jax.random.key(0), 3))
    relbo.VRS(2, Spy(), num_proposals=5).draw(
        streams, view, VRSState((), Tally.zero()), relbo.Batch(rows, jnp.arange(3))
    )
    np.testing.assert_array_equal(seen[0], view.log_weights(streams.propose, 5))
    assert np.isneginf(seen[0]).any() and not np.isnan(seen[0]).any()


ONLINE = {"rate": relbo.Rate(0.3, 400), "quantile": relbo.Quantile(0.3, 400, None)}


@pytest.mark.parametrize("name", ONLINE)
def test_online_thresholds_are_solved_for_until_the_past_is_a_guide(name):
    # 20 visits of rows that were visited before tell that nothing moves
    found = steps(ONLINE[name], [[1, 3], [3, 1], [1, 3]] + [[0, 1, 2, 3]] * 12)
    t, age, asked, states = zip(*found, strict=True)
    assert np.isnan(states[1].value[jnp.asarray([0, 2])]).all()
    np.testing.assert_allclose(states[0].value[jnp.asarray([1, 3])], t[0], rtol=1e-12)  # the lead was 0 till then
    assert all(asked[:8]) and not any(asked[8:]) and (age[0] == 0).all() and (age[9] == 1).all()


def test_rows_that_are_other_datapoints_every_time_are_strangers():
    threshold, rows = relbo.Rate(0.3, 20), jnp.arange(50)

    def visit(state, inputs):
        key, apart = inputs
        key_mean, key_fresh, key_first = jax.random.split(key, 3)
        view = affine_view(apart * jax.random.normal(key_mean, (50,)), jnp.full(50, 2.0))
        reading = look_up(threshold, key_fresh, view, state, rows, SOFT)
        log_w = view.log_weights(key_first, 5)
        share = jnp.mean(jnp.exp(SOFT.log_prob(log_w + reading.t[:, None])))
        return threshold.update(state, rows, reading.t, log_w, SOFT), (jnp.mean(reading.due.astype(float)), share)

    keys, apart = jax.random.split(jax.random.key(0), 200), jnp.repeat(jnp.asarray([10.0, 0.0]), 100)
    _, (due, share) = jax.jit(lambda s: jax.lax.scan(visit, s, (keys, apart)))(threshold.init(50))
    assert np.all(due[:100] == 1), "their past is no guide"
    assert np.all(due[140:] == 0), "what stands still is followed"
    # 50 * 5 * 100 acceptances of standard deviation below 0.4: 6 standard errors, and what the solutions vary by
    assert abs(float(share[20:100].mean()) - 0.3) < 0.03 and abs(float(share[140:].mean()) - 0.3) < 0.03


@functools.partial(jax.jit, static_argnums=0)
def still(num_steps, rate, spread, possible, repeats, key):
    """T of a row over the second half of its visits, two proposals each; log w is normal, or impossible."""
    threshold, rows = relbo.Rate(rate, 20), jnp.zeros(2, int)

    def draw(key, shape):
        key_w, key_possible = jax.random.split(key)
        log_w = spread * jax.random.normal(key_w, shape)
        return jnp.where(jax.random.bernoulli(key_possible, possible, shape), log_w, -jnp.inf)

    def visit(state, key):
        key_fresh, key_first = jax.random.split(key)
        reading = threshold.read(state, rows)
        t = jnp.where(reading.due, threshold.solve(draw(key_fresh, (2, 20)), SOFT) + reading.correction, reading.t)
        log_w = draw(key_first, (2, 2))
        both = threshold.update(state, rows, t, log_w, SOFT)
        one = threshold.update(state, rows[:1], t[:1], log_w[:1], SOFT)
        return jax.tree.map(lambda a, b: jnp.where(repeats, a, b), both, one), t[0]

    _, t = jax.lax.scan(visit, threshold.init(1), jax.random.split(key, num_steps))
    return t[num_steps // 2 :]


STILL = [(rate, spread, 1.0, False) for rate in (0.3, 0.1, 0.03) for spread in (1.0, 3.0)]
STILL += [(0.3, 2.0, 0.5, False), (0.3, 2.0, 1.0, True)]


def test_a_guide_that_stands_still_costs_what_its_rate_says():
    # also with impossible proposals, and with a row that stands twice in a batch
    cases = [jnp.asarray(setting) for setting in zip(*STILL, strict=True)]
    keys = jax.random.split(jax.random.key(2), len(STILL))
    found = jax.vmap(lambda *case: still(4_000, *case))(*cases, keys)
    z = jax.scipy.special.ndtri((jnp.arange(2_000.0) + 0.5) / 2_000)
    for (rate, spread, possible, _), t in zip(STILL, found, strict=True):
        grid = jnp.linspace(jnp.min(t), jnp.max(t), 50)
        rates = possible * jnp.mean(jnp.exp(SOFT.log_prob(spread * z[None] + grid[:, None])), axis=1)
        per_draw = float(jnp.mean(1 / jnp.interp(t, grid, rates)))
        assert 0.93 / rate < per_draw < 1.05 / rate and float(jnp.std(t)) < 0.16


@pytest.mark.parametrize(
    "threshold",
    [relbo.Rate(0.3, 20, warmup=3), relbo.Quantile(0.3, 20, None, warmup=3)],
    ids=["rate", "online quantile"],
)
def test_nothing_is_learned_in_warmup(threshold):
    visits = [[0, 1], [0, 1], [1, 2], [0, 1], [2, 3]]
    t, _, asked, states = zip(*steps(threshold, visits), strict=True)
    for step in range(3):
        np.testing.assert_array_equal(t[step], np.inf)
    assert_trees_equal(states[2]._replace(step=jnp.zeros((), jnp.int32)), threshold.init(4))
    assert np.isfinite(t[3]).all() and np.isfinite(t[4]).all() and asked == (False, False, False, True, True)


def test_warmup_of_a_quantile_that_is_refreshed():
    # by default as long as a turn, as in the paper; any other number is counted from the start
    for warmup, first in [(None, 4), (2, 2), (0, 0), (6, 6)]:
        found = steps(relbo.Quantile(0.5, 10, 4, warmup), [[0, 1]] * 11)
        is_plain = [bool(np.isinf(t).all()) for t, *_ in found]
        assert is_plain == [step < first for step in range(11)]
        refreshed = [step for step, (_, _, asked, _) in enumerate(found) if asked]
        assert refreshed == list(range(first, 11, 4))


def test_warmup_of_a_fixed_threshold():
    t = [float(t[0]) for t, *_ in steps(relbo.Fixed(2.5, warmup=2), [[1, 0]] * 4)]
    assert t == [np.inf, np.inf, 2.5, 2.5]


def test_fixed():
    (t, age, asked, _), *_ = steps(relbo.Fixed(2.5), [[1, 0]])
    np.testing.assert_array_equal(t, [2.5, 2.5])
    assert not asked and relbo.Fixed(2.5).fresh_draws == 0 and (age == 0).all()
    np.testing.assert_array_equal(relbo.Fixed(2.5).solve(jnp.zeros((3, 1)), SOFT), [2.5] * 3)
    np.testing.assert_array_equal(relbo.Fixed(np.inf).solve(jnp.zeros((3, 1)), SOFT), [np.inf] * 3)


def test_schedule_of_a_fixed_threshold():
    t = [float(t[0]) for t, *_ in steps(relbo.Fixed(optax.linear_schedule(4.0, 0.0, 4)), [[0]] * 6)]
    np.testing.assert_allclose(t, [4.0, 3.0, 2.0, 1.0, 0.0, 0.0])


@pytest.mark.slow
def test_schedule_of_a_quantile():
    # draws 1..10 for every refresh: the rank is the schedule's
    threshold = relbo.Quantile(optax.linear_schedule(0.9, 0.5, 4), 10, 1, warmup=0)
    log_w = -jnp.arange(1.0, 11.0)[None]
    t = [float(threshold.solve(log_w, SOFT, jnp.asarray(step))[0]) for step in range(6)]
    assert t == [9, 8, 7, 6, 5, 5]
    state = threshold.init(1)._replace(step=jnp.asarray(2, jnp.int32))
    view, key = affine_view(jnp.zeros(1), jnp.ones(1)), jax.random.key(0)
    reading = look_up(threshold, key, view, state, jnp.zeros(1, int), SOFT)
    np.testing.assert_array_equal(reading.t, np.sort(-view.log_weights(key, 10))[:, 6])


def test_schedule_of_a_rate_that_starts_without_rejection():
    threshold = relbo.Rate(optax.linear_schedule(1.0, 0.5, 10), 20)
    t, _, asked, states = zip(*steps(threshold, [[0, 1]] * 14), strict=True)
    assert np.isinf(t[0]).all() and np.isfinite(t[1:]).all()
    assert not asked[0] and asked[1]
    assert np.isnan(states[0].value).all() and np.isfinite(states[1].value[:2]).all()
    log_w = jax.random.normal(jax.random.key(0), (3, 500))
    np.testing.assert_array_equal(threshold.solve(log_w, SOFT, jnp.asarray(0)), [np.inf] * 3)
    for step, rate in [(5, 0.75), (10, 0.5), (99, 0.5)]:
        solved = threshold.solve(log_w, SOFT, jnp.asarray(step))
        np.testing.assert_allclose(jnp.mean(jnp.exp(SOFT.log_prob(log_w + solved[:, None])), axis=1), rate, rtol=1e-9)
    constant = relbo.Rate(optax.constant_schedule(1.0), 20)
    followed = steps(constant, [[0, 1]] * 3)
    assert all(np.isinf(t).all() for t, *_ in followed)


@pytest.mark.parametrize(
    "threshold, name",
    [
        (relbo.Rate(optax.constant_schedule(0.5)), "Rate: rate"),
        (relbo.Quantile(optax.constant_schedule(0.5)), "Quantile: gamma"),
        (relbo.Fixed(optax.constant_schedule(0.5)), "Fixed: T"),
    ],
    ids=["rate", "quantile", "fixed"],
)
def test_a_schedule_without_a_step_is_refused(threshold, name):
    with pytest.raises(ValueError) as error:
        threshold.solve(jnp.zeros((2, 5)), SOFT)
    assert str(error.value) == f"{name} must be a number outside training, got a schedule; give its last value instead."


SPREAD, STILL_ROWS = 2.0, 300


def follow_still(threshold, num_draws):
    """T of 300 rows over the last 20 of 60 visits; log w is normal with standard deviation 2, whatever the row."""

    def step(state, key):
        key_fresh, key_first = jax.random.split(key)
        view, rows = affine_view(jnp.zeros(STILL_ROWS), jnp.full(STILL_ROWS, SPREAD)), jnp.arange(STILL_ROWS)
        reading = look_up(threshold, key_fresh, view, state, rows, SOFT)
        log_w = SPREAD * jax.random.normal(key_first, (STILL_ROWS, num_draws))
        return threshold.update(state, rows, reading.t, log_w, SOFT), reading.t

    run = jax.jit(lambda s, k: jax.lax.scan(step, s, jax.random.split(k, 60)))
    _, t = run(threshold.init(STILL_ROWS), jax.random.key(1))
    return np.asarray(t[-20:])


QUANTILES = jax.scipy.special.ndtri((jnp.arange(400.0) + 0.5) / 400) * SPREAD
"""Log w at equally likely places, for sums that stand for expectations."""


@pytest.mark.parametrize(
    ("num_draws", "rate"),
    [
        *[(2, 0.9), (5, 0.5), (5, 0.1)],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 0.5), (2, 0.1), (5, 0.9)]),
    ],
)
def test_rate_holds_a_model_that_stands_still(rate, num_draws):
    # the mean exact acceptance settles at the target
    t = follow_still(relbo.Rate(rate, 50), num_draws).reshape(-1)
    rates = jax.jit(lambda v: jnp.mean(jnp.exp(SOFT.log_prob(QUANTILES[None] + v[:, None])), axis=1))(t)
    assert abs(float(rates.mean()) - rate) < 0.03


@pytest.mark.parametrize(
    ("num_draws", "gamma"),
    [(6, 0.9), (2, 0.5), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(6, 0.5), (2, 0.9), (6, 0.1)])],
)
def test_the_online_quantile_holds_the_share_that_is_accepted_by_half_or_more(gamma, num_draws):
    # a >= 1/2 is log w + T >= 0, whose share is Phi(T / 2)
    t = follow_still(relbo.Quantile(gamma, 50, None), num_draws)
    share = jax.scipy.special.ndtr(t / SPREAD)
    assert abs(float(share.mean()) - gamma) < 0.03


@pytest.mark.slow
def test_vrs_holds_a_rate_and_an_online_quantile():
    # the same through whole steps of VRS with a budget, on a table
    pair, num_data, x = table_pair(1, num_x=1, num_z=40, scale=2.5), 300, jnp.asarray(0)
    batch = relbo.Batch(jnp.zeros(num_data, int), jnp.arange(num_data))
    log_q = exact.log_proposal(pair.proposal, x, jnp.arange(40))
    log_w = exact.log_joint(pair.model, x, jnp.arange(40)) - log_q
    for threshold, target in [(relbo.Rate(0.5, 50), 0.5), (relbo.Quantile(0.8, 50, None), 0.8)]:
        estimator = relbo.VRS(2, threshold, num_proposals=4)

        def step(state, key, estimator=estimator):
            _, state, info = estimator.estimate(key, pair, state, batch)
            return state, info.extra.threshold

        run = jax.jit(lambda s, k, step=step: jax.lax.scan(step, s, jax.random.split(k, 60)))
        _, t = run(estimator.init(jax.random.key(0), pair, num_data), jax.random.key(1))
        u = log_w[None] + t[-20:].reshape(-1, 1)
        held = jnp.exp(SOFT.log_prob(u)) if isinstance(threshold, relbo.Rate) else (u >= 0).astype(float)
        assert abs(float(jnp.mean(jnp.sum(jnp.exp(log_q)[None] * held, axis=1))) - target) < 0.04


@functools.partial(jax.jit, static_argnums=0)
def drifting(kind, drift, target):
    """Log w of row i moves by drift * (0.5 .. 1.5) nats per visit; its spread under q is 1 to 4 nats."""
    num_data, num_draws, visits = 200, 5, 40
    speed, spread = jnp.linspace(0.5, 1.5, num_data), jnp.linspace(4.0, 1.0, num_data)
    rows = jnp.arange(num_data)
    threshold = relbo.Rate(target, 50) if kind == "rate" else relbo.Quantile(target, 50, None)

    def step(state, inputs):
        key, time = inputs
        key_solve, key_first = jax.random.split(key)
        held = []
        for half in (rows[::2], rows[1::2]):  # two batches an epoch
            mean, scale = drift * speed[half] * time, spread[half]
            reading = look_up(threshold, key_solve, affine_view(mean, scale), state, half, SOFT)
            noise = jax.random.normal(jax.random.fold_in(key_first, half[0]), (half.size, num_draws))
            log_w = mean[:, None] + scale[:, None] * noise
            state = threshold.update(state, half, reading.t, log_w, SOFT)
            u = log_w + reading.t[:, None]
            held.append((jnp.exp(SOFT.log_prob(u)) if kind == "rate" else (u >= 0).astype(u.dtype)).mean(axis=-1))
        return state, jnp.concatenate(held)

    keys = jax.random.split(jax.random.key(0), visits)
    return jax.lax.scan(step, threshold.init(num_data), (keys, jnp.arange(float(visits))))[1]


@pytest.mark.parametrize("rate", [0.5, 0.9])
@pytest.mark.parametrize("drift", [3.0, 1.0, -1.0, -3.0])
def test_rate_follows_a_model_that_drifts(rate, drift):
    late = np.asarray(drifting("rate", drift, rate)[10:])
    assert abs(late.mean() - rate) < 0.03
    # and no row is left behind, though it may move 4.5 times its spread between two visits
    assert np.quantile(late.mean(axis=0), 0.02) > 0.5 * rate


@pytest.mark.parametrize("drift", [1.0, -1.0])
def test_the_online_quantile_follows_a_model_that_drifts(drift):
    late = np.asarray(drifting("quantile", drift, 0.7)[10:])
    assert abs(late.mean() - 0.7) < 0.04
    assert np.quantile(late.mean(axis=0), 0.02) > 0.5 * 0.7


@pytest.mark.slow
def test_solve_differentiates_to_nothing_through_a_view():
    pair = table_pair(1)
    for threshold in (relbo.Quantile(0.5), relbo.Rate(0.4), relbo.Fixed(1.5)):

        def solve(p, t=threshold):
            return t.solve(log_weights(p, 0, 30, jax.random.key(1)), SOFT)[0]

        assert_trees_equal(jax.grad(solve)(pair), jax.tree.map(jnp.zeros_like, pair))


@pytest.mark.parametrize(
    "words, settings, threshold",
    [
        ("rate:0.5", {}, relbo.Rate(0.5)),
        (" Rate:0.5 ", {"num_draws": 7, "warmup": 3, "every": 9}, relbo.Rate(0.5, 7, 3)),
        ("quantile:0.9", {"num_draws": None}, relbo.Quantile(0.9)),
        ("quantile:0.9", {"every": None, "warmup": 5}, relbo.Quantile(0.9, every=None, warmup=5)),
        ("quantile:.7", {"num_draws": 20, "every": 50}, relbo.Quantile(0.7, 20, 50)),
        ("fixed:-3", {"num_draws": 7}, relbo.Fixed(-3.0)),
        ("fixed:inf", {"warmup": 2}, relbo.Fixed(np.inf, 2)),
    ],
)
def test_words(words, settings, threshold):
    assert thresholds.parse(words, **settings) == threshold
    assert thresholds.as_threshold(words, **settings) == threshold


def test_what_a_user_means():
    mine, usual = relbo.Quantile(0.3), relbo.Fixed(9.0)
    assert thresholds.as_threshold(mine, num_draws=3) is mine
    assert thresholds.as_threshold(3.0) == thresholds.as_threshold(3) == relbo.Fixed(3.0)
    assert thresholds.as_threshold(np.inf) == relbo.Fixed(np.inf)
    assert float(thresholds.as_threshold(jnp.asarray(3.0)).value) == 3
    assert thresholds.as_threshold(None, 0.25, num_draws=7) == relbo.Rate(0.25, 7)
    assert thresholds.as_threshold(None, default=usual) is usual
    assert relbo.VRS(2, rate=0.25).threshold == relbo.VRS(2, "rate:0.25").threshold == relbo.Rate(0.25)
    schedule = optax.linear_schedule(1.0, 0.5, 10)
    assert relbo.VRS(2, rate=schedule).threshold == relbo.Rate(schedule)


WORDS = "a threshold in words must be rate:RATE, quantile:GAMMA or fixed:T, got "


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: thresholds.parse("x:0.5"), WORDS + "'x:0.5'."),
        (lambda: thresholds.parse("rate"), WORDS + "'rate'."),
        (lambda: thresholds.parse("rate:half"), WORDS + "'rate:half'."),
        (lambda: thresholds.parse("rate:1.5"), "Rate: rate must be a number in (0, 1), or a schedule, got 1.5."),
        (lambda: thresholds.parse("quantile:0"), "Quantile: gamma must be a number in (0, 1), or a schedule, got 0.0."),
        (lambda: thresholds.parse("fixed:nan"), "Fixed: T must be a real number or +inf, or a schedule, got nan."),
        (lambda: relbo.Fixed(-np.inf), "Fixed: T must be a real number or +inf, or a schedule, got -inf."),
        (lambda: relbo.Rate(1.0), "Rate: rate must be a number in (0, 1), or a schedule, got 1.0."),
        (lambda: relbo.Rate(0.5, 0), "Rate: num_draws must be an integer >= 1, got 0."),
        (lambda: relbo.Rate(0.5, warmup=-1), "Rate: warmup must be an integer >= 0, got -1."),
        (lambda: relbo.Fixed(1.0, -1), "Fixed: warmup must be an integer >= 0, got -1."),
        (
            lambda: relbo.Quantile(0.5, every=0),
            "Quantile: every must be an integer >= 1, or None to follow online, got 0.",
        ),
        (lambda: relbo.Gains(lead=0.0), "Gains: lead must be a finite number > 0, got 0.0."),
        (
            lambda: thresholds.as_threshold("rate:0.5", 0.5),
            "the threshold must be set by threshold= or by rate=, not by both, got ('rate:0.5', 0.5).",
        ),
        (lambda: thresholds.as_threshold(None), "the threshold must be set by threshold= or by rate=, got None."),
        (lambda: relbo.VRS(2, 3.0, rate=0.5), "the threshold must be set by threshold= or by rate=, not by both"),
        (lambda: thresholds.as_threshold(True), "threshold must be a threshold such as relbo.Rate(0.5), a number"),
        (lambda: relbo.Rate(0.5).init(0), "num_data must be an integer >= 1, got 0."),
        (lambda: relbo.Quantile(0.5).init(0), "num_data must be an integer >= 1, got 0."),
        (lambda: relbo.Fixed(0.5).init(0), "num_data must be an integer >= 1, got 0."),
    ],
)
def test_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message) and "\n" not in str(error.value) and str(error.value).endswith(".")


def test_a_warmup_is_not_dropped():
    assert as_threshold(3.0, warmup=5) == relbo.Fixed(3.0, warmup=5)
    with pytest.raises(ValueError, match="warmup must be a setting of the threshold itself"):
        as_threshold(relbo.Rate(0.5), warmup=5)


@pytest.mark.parametrize("value", [np.float32(3.0), np.asarray(3.0), jnp.asarray(3), jnp.asarray(jnp.inf)])
def test_any_number_is_a_threshold(value):
    assert float(as_threshold(value).value) == float(value)


@pytest.mark.parametrize("value", [np.nan, jnp.asarray(jnp.nan), jnp.asarray(-jnp.inf)])
def test_what_is_no_threshold(value):
    with pytest.raises(ValueError, match="Fixed: T must be a real number or"):
        as_threshold(value)


@pytest.mark.parametrize(
    "threshold",
    [relbo.Quantile(0.5, 10, 100, warmup=0), relbo.Quantile(0.5, 10, None), relbo.Rate(0.4, 10)],
    ids=["quantile", "online quantile", "rate"],
)
def test_a_row_that_ran_out_is_accepted_more_at_its_next_visit(threshold):
    *_, state = steps(threshold, [[0, 1]] * 2)[-1]
    rows, t = jnp.asarray([0, 1]), threshold.read(state, jnp.asarray([0, 1])).t
    due = bool(threshold.read(state, rows).due[1])
    after = threshold.update(state, rows, t.at[1].set(jnp.inf), jnp.zeros((2, 3)), SOFT)
    reading = threshold.read(after, rows)
    # what was solved for before, or is refreshed, is solved for again; what is followed rises by a standard deviation
    assert bool(reading.due[1]) or (not due and float(reading.t[1]) >= float(t[1]) + 1 - float(jnp.abs(t[1])))
    assert np.isfinite(reading.t[0])
    (t, _, _, _), (again, _, _, _) = steps(threshold, [[0, 1]] * 2, state=after)
    assert np.isfinite(t).all() and np.isfinite(again).all()


@functools.partial(jax.jit, static_argnums=(0, 1))
def rates_of(threshold, log_weights_at, key):
    """Acceptance rate at each of 600 steps, all of 8 rows in every batch, 4 proposals each, and what was due."""
    rows = jnp.arange(8)

    def visit(state, inputs):
        step, key = inputs
        key_fresh, key_step, key_rate = jax.random.split(key, 3)
        reading = threshold.read(state, rows)
        solved = threshold.solve(log_weights_at(key_fresh, step, threshold.fresh_draws), SOFT, step)
        t = jnp.where(reading.due, solved + reading.correction, reading.t)
        many = log_weights_at(key_rate, step, 500)
        rate = jnp.mean(jnp.exp(SOFT.log_prob(jnp.where(jnp.isneginf(many), many, many + t[:, None]))))
        ran_out = rate < 1e-3
        state = threshold.update(state, rows, jnp.where(ran_out, jnp.inf, t), log_weights_at(key_step, step, 4), SOFT)
        return state, (rate, jnp.mean(reading.due))

    with jax.numpy_dtype_promotion("standard"):  # Optax mixes floats with integer steps
        return jax.lax.scan(visit, threshold.init(8), (jnp.arange(600), jax.random.split(key, 600)))[1]


def plain_normal(key, step, size):
    return 2 * jax.random.normal(key, (8, size))


def one_outlier(key, step, size):
    hit = (step == 200) & (size == 4)
    return plain_normal(key, step, size).at[3, 0].add(jnp.where(hit, -1e6, 0))


def impossible_at_first(key, step, size):
    key_possible, key_value = jax.random.split(key)
    gone = (jax.random.uniform(key_possible, (8, size)) < 0.7) & (step < 200)
    return jnp.where(gone, -jnp.inf, plain_normal(key_value, step, size))


def test_a_schedule_is_followed_where_every_row_is_in_every_batch():
    rate, due = rates_of(relbo.Rate(optax.linear_schedule(0.9, 0.1, 400)), plain_normal, jax.random.key(3))
    for step in (100, 200, 300, 400, 600):
        target = max(0.9 - 0.8 * (step - 10) / 400, 0.1)
        assert abs(float(jnp.mean(rate[step - 20 : step])) - target) < 0.06  # 4 standard errors of 20 steps
    assert 0 < float(jnp.mean(due)) < 0.1, "solved for anew now and then, not at every visit"


def test_one_proposal_in_the_far_tail_changes_little():
    rate, _ = rates_of(relbo.Rate(0.5), one_outlier, jax.random.key(4))
    assert float(jnp.min(rate[190:400])) > 0.35


def test_a_target_that_could_not_be_reached_leaves_no_trace():
    rate, _ = rates_of(relbo.Rate(0.5), impossible_at_first, jax.random.key(5))
    assert 0.25 < float(jnp.mean(rate[50:200])) < 0.35
    assert float(jnp.mean(rate[550:])) < 0.85, "T had not risen for ever"


def test_strangers_that_run_out_raise_what_all_rows_share():
    threshold = relbo.Rate(0.3, 10)
    state, rows = threshold.init(4), jnp.arange(4)
    before = threshold.update(state, rows, jnp.zeros(4), jnp.zeros((4, 3)), SOFT)
    after = threshold.update(state, rows, jnp.full(4, jnp.inf), jnp.zeros((4, 3)), SOFT)
    assert bool(threshold.read(state, rows).due.all())
    assert float(after.lead) > max(float(before.lead), 0.0)


def test_a_rate_below_the_floor_keeps_t_finite():
    floored = relbo.Soft(1.0, floor=0.1)
    t = thresholds.solve_rate(jax.random.normal(jax.random.key(0), (3, 50)), jnp.asarray(0.05), floored)
    assert np.isfinite(t).all()
    shares = jnp.exp(floored.log_prob(jnp.zeros(3) + t))
    np.testing.assert_allclose(shares, 0.1, atol=1e-3)


@pytest.mark.parametrize(
    "threshold, share",
    [(relbo.Rate(0.5), jax.nn.sigmoid), (relbo.Quantile(0.7, every=None), lambda u: (u >= 0).astype(u.dtype))],
    ids=["rate", "quantile"],
)
def test_a_row_that_cannot_reach_its_target_neither_climbs_nor_pulls_the_others(threshold, share):
    # of row 0 one state in 16 is possible
    log_w = (1.5 * jax.random.normal(jax.random.key(0), (5, 160))).at[0, 10:].set(-jnp.inf)

    def step(state, key):
        key_rows, key_fresh, key_first = jax.random.split(key, 3)
        rows = jax.random.permutation(key_rows, 5)[:2]
        fresh, first = (
            log_w[rows[:, None], jax.random.randint(k, (2, n), 0, 160)]
            for k, n in ((key_fresh, threshold.fresh_draws), (key_first, 6))
        )
        reading = threshold.read(state, rows)
        t = jnp.where(reading.due, threshold.solve(fresh, SOFT) + reading.correction, reading.t)
        state = threshold.update(state, rows, t, first, SOFT)
        t = threshold.read(state, jnp.arange(5)).t
        return state, (t, jnp.mean(share(log_w + t[:, None]), axis=1))

    _, (t, shares) = jax.jit(lambda s, k: jax.lax.scan(step, s, jax.random.split(k, 3_000)))(
        threshold.init(5), jax.random.key(1)
    )
    target = threshold.rate if isinstance(threshold, relbo.Rate) else threshold.gamma
    np.testing.assert_allclose(jnp.nanmean(shares[1_500:, 1:], axis=0), target, atol=0.02)
    assert float(jnp.nanmax(t[:, 0])) < 19 and abs(float(t[-1, 0] - t[1_500, 0])) < 1


def test_a_row_without_impossible_proposals_may_always_rise():
    # T lies 4 standard deviations above the level of an exponential tail, which is not yet its .99 quantile
    threshold, rows = relbo.Quantile(0.99, every=None), jnp.arange(2)
    state = threshold.init(2)
    log_w = jnp.asarray([[-1.0, -2.0, -3.0, -1.0, -2.0, -3.0], [-1.0, -2.0, -3.0, -1.0, -2.0, -9.0]])
    state = threshold.update(state, rows, jnp.full(2, 8.0), log_w.at[1, 5].set(-3.0), SOFT)
    before = threshold.read(state, rows).t
    t = threshold.read(threshold.update(state, rows, before, log_w, SOFT), rows).t
    assert float(t[1] - t[0]) > 0.2, "a proposal of row 1 was rejected"


@pytest.mark.parametrize("threshold", [relbo.Rate(0.4), relbo.Quantile(0.7, every=None)], ids=repr)
def test_a_batch_of_all_rows_is_as_good_as_their_numbers(threshold):
    # rows that are known while the step is traced are neither gathered nor scattered
    rows, acceptance = jnp.arange(6), relbo.Soft()
    state = threshold.init(6)

    def step(state, index, log_w):
        reading = threshold.read(state, index)
        t = jnp.where(reading.due, threshold.solve(log_w, acceptance, state.step) + reading.correction, reading.t)
        return threshold.update(state, index, t, log_w, acceptance), t

    known = jax.jit(lambda state, log_w: step(state, rows, log_w))
    traced = jax.jit(step)
    assert "scatter" not in str(jax.make_jaxpr(lambda s, w: step(s, rows, w))(state, jnp.zeros((6, 8))))
    ours = theirs = state
    for i in range(30):
        log_w = 0.1 * i + jnp.arange(6.0)[:, None] * jax.random.normal(jax.random.key(i), (6, 8))
        (ours, t), (theirs, same) = known(ours, log_w), traced(theirs, rows, log_w)
        np.testing.assert_allclose(t, same, rtol=1e-12)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_rows_have_in_common_is_their_mean():
    # the first visits set the running means outright; a row with one possible draw has no spread to tell of
    threshold, index, t = relbo.Rate(0.5), jnp.arange(4), jnp.zeros(4)
    draws = 2.0 * jax.random.normal(jax.random.key(0), (2, 4, 5))
    first, second = draws.at[0, 3, 1:].set(-jnp.inf)
    start = threshold.init(4)
    one = threshold.update(start, index, t, first, relbo.Soft())
    spreads = np.std(np.asarray(first[:3]), axis=1, ddof=1)
    np.testing.assert_allclose(one.spread, np.mean(np.maximum(spreads, 1)), rtol=1e-6)
    assert float(one.num_visits) == 3 and float(one.num_again) == 0
    two = threshold.update(one, index, t, second, relbo.Soft())
    surprise = np.mean(np.asarray(second), axis=1) - np.asarray(one.mean)
    seen = np.minimum(np.var(np.asarray(second), axis=1, ddof=1), threshold.gains.outlier * np.asarray(one.variance))
    excess = (surprise**2 - np.asarray(one.error) - seen / 5) / np.asarray(one.variance)
    np.testing.assert_allclose(two.drift, np.mean(excess), rtol=1e-5)
    np.testing.assert_allclose(two.drift_square, np.mean(excess**2), rtol=1e-5)
    assert float(two.num_visits) == 7 and float(two.num_again) == 4
