import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Impossible, assert_trees_equal, table_pair, threshold_at_rate

import relbo
from relbo import exact
from relbo.models.toy import TableProposal
from relbo.rejection import LogProbs

NEVER = float("inf")
ACCEPTANCES = {"t=0.5": relbo.Soft(0.5), "t=1": relbo.Soft(), "t=2": relbo.Soft(2.0), "hard": relbo.Hard()}
SUPPORT = jnp.arange(4)


def train(threshold, pair, rows, key=0, num_data=4, num_samples=2, steps=1):
    """Steps of VRS on the same rows; returns the state and the Info of each step."""
    estimator = relbo.VRS(num_samples, threshold)
    state = estimator.init(jax.random.key(0), pair, num_data)
    batch = relbo.Batch(jnp.asarray(rows), jnp.asarray(rows))
    step = jax.jit(estimator.estimate)
    infos = []
    for k in jax.random.split(jax.random.key(key), steps):
        _, state, info = step(k, pair, state, batch)
        infos.append(info)
    return state.thresholds, infos


@functools.partial(jax.jit, static_argnums=0)
def compiled_visit(threshold, pair, state, rows, key):
    batch = relbo.Batch(rows, rows)
    t, state = threshold.lookup(key, pair, state, batch, relbo.Soft())
    zeros = jnp.zeros((rows.size, 2))
    age = threshold.age(state, batch.index)
    return t, age, threshold.follow(state, batch, t, LogProbs(zeros, zeros), relbo.Soft())


def visit(threshold, pair, state, rows, key):
    """One lookup and one follow, as a step does them; returns T, its age and the next state."""
    return compiled_visit(threshold, pair, state, jnp.asarray(rows), key)


def test_quantile_is_infinite_before_the_first_refresh_and_then_per_row():
    pair, threshold = table_pair(1, num_x=4), relbo.Quantile(0.5, num_draws=50, every=3)
    state = threshold.init(4)
    keys = jax.random.split(jax.random.key(0), 12)
    for step, rows in enumerate([[0, 1], [2, 3], [0, 1]]):
        t, age, state = visit(threshold, pair, state, rows, keys[step])
        np.testing.assert_array_equal(t, [np.inf, np.inf])
        np.testing.assert_array_equal(age, [step, step])
    # step 3: rows 0 and 1 are due; 2 and 3 stay as they are until they are visited
    first, age, state = visit(threshold, pair, state, [0, 1], keys[3])
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(age, [0, 0])
    np.testing.assert_array_equal(np.isinf(state.value), [False, False, True, True])
    # step 4: row 0 is fresh and keeps its value, row 2 is due
    t, age, state = visit(threshold, pair, state, [0, 2], keys[4])
    assert float(t[0]) == float(first[0]) and np.isfinite(t[1])
    np.testing.assert_array_equal(age, [1, 0])
    # step 5 and 6: three steps after the first refresh all rows are due again
    t, age, state = visit(threshold, pair, state, [1, 3], keys[5])
    assert float(t[0]) == float(first[1]) and int(age[0]) == 2
    np.testing.assert_array_equal(state.refreshed, [3, 3, 4, 5])
    old = state.value
    t, age, state = visit(threshold, pair, state, [1, 0], keys[6])
    np.testing.assert_array_equal(age, [0, 0])
    np.testing.assert_array_equal(state.refreshed, [6, 6, 4, 5])
    np.testing.assert_array_equal(state.value[2:], old[2:])
    # step 7: row 3 is but 2 steps old, yet its turn has come with the others'
    t, age, state = visit(threshold, pair, state, [3, 0], keys[7])
    np.testing.assert_array_equal(age, [0, 1])
    np.testing.assert_array_equal(state.refreshed, [6, 6, 4, 7])
    assert int(state.step) == 8


def test_quantile_refresh_equals_solve_on_row_keys():
    pair, threshold = table_pair(1, num_x=4), relbo.Quantile(0.7, num_draws=40, every=1)
    state = threshold.init(4)._replace(step=jnp.asarray(1, jnp.int32))
    key = jax.random.key(5)
    t, _, _ = visit(threshold, pair, state, [3, 1], key)
    for place, row in enumerate([3, 1]):
        alone = threshold.solve(jax.random.fold_in(key, place), pair, jnp.asarray(row))
        assert float(t[place]) == float(alone)


@pytest.mark.parametrize("gamma", [0.05, 0.5, 0.9])
def test_quantile_solve_against_the_enumerated_quantile(gamma):
    # the empirical quantile of 20,000 draws lies between the exact quantiles at gamma -+ 6 standard errors (2e-9)
    pair, x = table_pair(1), jnp.asarray(0)
    surprise = np.asarray(exact.log_proposal(pair.proposal, x, SUPPORT) - exact.log_joint(pair.model, x, SUPPORT))
    order = np.argsort(surprise)
    cdf = np.cumsum(np.exp(exact.log_proposal(pair.proposal, x, SUPPORT))[order])
    error = 6 * np.sqrt(gamma * (1 - gamma) / 20_000)
    low, high = (surprise[order][min(np.searchsorted(cdf, g), 3)] for g in (gamma - error, gamma + error))
    t = float(jax.jit(lambda k: relbo.Quantile(gamma, 20_000).solve(k, pair, x))(jax.random.key(3)))
    assert low - 1e-12 <= t <= high + 1e-12
    assert np.min(np.abs(surprise - t)) < 1e-12


@pytest.mark.parametrize(
    "gamma, num_draws, rank",
    [(0.55, 100, 55), (0.9, 10, 9), (0.91, 10, 10), (0.001, 5, 1), (0.7, 1, 1), (0.07, 100, 7)],
)
def test_quantile_rank_is_the_least_that_covers_gamma(gamma, num_draws, rank):
    class Counter(relbo.AbstractProposal):
        """Its log q is a number that differs from draw to draw."""

        def sample(self, key, x):
            return jax.random.uniform(key)

        def log_prob(self, z, x):
            return z

    class Flat(relbo.AbstractModel):
        def log_joint(self, x, z):
            return jnp.zeros(())

        def sample(self, key):
            raise NotImplementedError

    pair = relbo.Pair(Flat(), Counter())
    key = jax.random.key(2)
    draws = sorted(float(jax.random.uniform(jax.random.fold_in(key, i))) for i in range(num_draws))
    assert float(relbo.Quantile(gamma, num_draws).solve(key, pair, jnp.asarray(0))) == draws[rank - 1]


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_rate_solve_against_the_exact_rate(name, rate):
    # Z_R at the solved T is the target up to 6 standard errors of a mean of 20,000 acceptances (2e-9)
    pair, x, acceptance = table_pair(1), jnp.asarray(1), ACCEPTANCES[name]
    t = jax.jit(lambda k: relbo.Rate(rate, 20_000).solve(k, pair, x, acceptance))(jax.random.key(4))
    achieved = float(jnp.exp(exact.log_z(pair, x, SUPPORT, t, acceptance)))
    assert abs(achieved - rate) < 6 * np.sqrt(rate * (1 - rate) / 20_000)
    assert abs(float(t) - threshold_at_rate(pair, x, SUPPORT, rate, acceptance)) < 0.2


@pytest.mark.parametrize("name", [*ACCEPTANCES, "t=0.01"])
@pytest.mark.parametrize("impossible", [0, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_solve_rate_hits_the_rate_exactly(name, impossible, dtype):
    acceptance = relbo.Soft(0.01) if name == "t=0.01" else ACCEPTANCES[name]
    log_w = jnp.asarray([-80.0, -3.0, 0.0, 1.0, 2.0, 700.0, 0.5] + [-np.inf] * impossible, dtype)
    for rate in (0.02, 0.3, 0.65):
        t = relbo.thresholds.solve_rate(log_w, rate, acceptance)
        assert t.dtype == dtype
        mean = float(jnp.mean(jnp.exp(acceptance.log_prob(log_w + t))))
        np.testing.assert_allclose(mean, rate, rtol=2e-3 if dtype == jnp.float32 else 1e-9)


@pytest.mark.parametrize("name", ACCEPTANCES)
def test_rate_beyond_what_is_possible_accepts_all_that_is(name):
    acceptance = ACCEPTANCES[name]
    log_w = jnp.asarray([-3.0, 5.0, -jnp.inf, -jnp.inf])
    t = relbo.thresholds.solve_rate(log_w, 0.9, acceptance)
    assert np.isfinite(t)
    np.testing.assert_allclose(jnp.mean(jnp.exp(acceptance.log_prob(log_w + t))), 0.5, rtol=1e-5)


@pytest.mark.parametrize("threshold", [relbo.Quantile(0.5, 10, 1), relbo.Rate(0.5, 10)], ids=repr)
def test_when_no_draw_is_possible_everything_possible_is_accepted(threshold):
    pair = relbo.Pair(Impossible(jnp.full((1, 4), -jnp.inf)), TableProposal(jnp.zeros((1, 4))))
    assert float(threshold.solve(jax.random.key(0), pair, jnp.asarray(0))) == np.inf


def test_quantile_that_is_infinite_takes_the_largest_finite_value():
    table = jnp.asarray([[0.0, -jnp.inf, -7.0, -jnp.inf]])
    pair = relbo.Pair(Impossible(table), TableProposal(jnp.zeros((1, 4))))
    t = relbo.Quantile(0.9, 200, 1).solve(jax.random.key(0), pair, jnp.asarray(0))
    np.testing.assert_allclose(t, -np.log(4) + 7, rtol=1e-12)


def test_rate_recovers_from_infinite_thresholds_and_impossible_proposals():
    threshold, n = relbo.Rate(0.5, 10), 3
    state = threshold.init(n)._replace(value=jnp.full(n, jnp.inf))
    batch = relbo.Batch(jnp.arange(n), jnp.arange(n))
    log_p = jnp.asarray([[-jnp.inf, -jnp.inf], [-jnp.inf, 0.0], [1.0, 0.0]])
    state = threshold.follow(state, batch, jnp.full(n, jnp.inf), LogProbs(log_p, jnp.zeros((n, 2))), relbo.Soft())
    np.testing.assert_array_equal(state.value == jnp.inf, [True, False, False])
    assert not np.isnan(state.value).any() and np.isfinite(state.level) and np.isfinite(state.spread).all()


@pytest.mark.parametrize("threshold", [relbo.Quantile(0.5, 20, 1), relbo.Rate(0.4, 20)], ids=repr)
def test_t_does_not_depend_on_the_draws_of_its_own_step(threshold):
    # T of a step comes from `other`, and from steps before: change the proposals and acceptances of the step alone
    pair, rows = table_pair(1, num_x=4), jnp.asarray([0, 3])
    batch = relbo.Batch(rows, rows)
    state = train(threshold, pair, [0, 1, 2, 3], steps=3)[0]
    estimator = relbo.VRS(2, threshold)
    draw = jax.jit(lambda s: estimator.draw(s, pair, relbo.estimators.vrs.VRSState(state), batch))
    used = []
    for seed in range(3):
        propose, accept = jax.random.split(jax.random.key(seed))
        draws, _ = draw(relbo.types.Streams(propose, accept, jax.random.key(99)))
        used.append((np.asarray(draws.extra[0]), np.asarray(draws.z)))
    assert any((used[0][1] != z).any() for _, z in used[1:]), "the draws did change"
    for t, _ in used[1:]:
        np.testing.assert_array_equal(t, used[0][0])


def test_rate_solves_at_the_first_visit_and_keeps_it():
    pair, threshold = table_pair(1, num_x=4), relbo.Rate(0.3, 400)
    state, infos = train(threshold, pair, [1, 3])
    assert np.isnan(state.value[jnp.asarray([0, 2])]).all()
    np.testing.assert_array_equal(infos[0].extra.threshold, state.value[jnp.asarray([1, 3])])
    for row, t in zip((1, 3), infos[0].extra.threshold, strict=True):
        rate = float(jnp.exp(exact.log_z(pair, jnp.asarray(row), SUPPORT, t)))
        assert abs(rate - 0.3) < 6 * np.sqrt(0.3 * 0.7 / 400)


@pytest.mark.parametrize(
    ("num_samples", "rate"),
    [(2, 0.9), (5, 0.3), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 0.3), (5, 0.9)])],
)
def test_rate_holds_a_model_that_stands_still(rate, num_samples):
    # 300 rows of one table, followed for 60 visits: the mean exact acceptance settles at the target
    pair, num_data = table_pair(1, num_x=1, scale=2.5), 300
    threshold = relbo.Rate(rate, 50)
    estimator = relbo.VRS(num_samples, threshold)
    batch = relbo.Batch(jnp.zeros(num_data, int), jnp.arange(num_data))

    def step(state, key):
        _, state, info = estimator.estimate(key, pair, state, batch)
        return state, info.extra.threshold

    run = jax.jit(lambda s, k: jax.lax.scan(step, s, jax.random.split(k, 60)))
    _, t = run(estimator.init(jax.random.key(0), pair, num_data), jax.random.key(1))
    exact_rate = jax.vmap(lambda v: jnp.exp(exact.log_z(pair, jnp.asarray(0), SUPPORT, v)))(t[-20:].reshape(-1))
    assert abs(float(exact_rate.mean()) - rate) < 0.03


def test_what_all_rows_share_is_remembered_also_where_there_is_one_row():
    # 4 draws of standard deviation 10: what one visit sees of it is 9.2 +- 3.9, its mean over 50 visits much steadier
    threshold, batch = relbo.Rate(0.5), relbo.Batch(jnp.zeros(1), jnp.zeros(1, int))

    def visit(state, log_w):
        t = jnp.zeros(1)
        state = threshold.follow(state, batch, t, LogProbs(log_w, jnp.zeros_like(log_w)), relbo.Soft())
        return state, (state.typical_spread, state.level)

    log_w = 10 * jax.random.normal(jax.random.key(3), (200, 1, 4))
    _, (spreads, levels) = jax.jit(lambda s: jax.lax.scan(visit, s, log_w))(threshold.init(1))
    assert np.std(spreads[50:]) < 1.5 and np.std(levels[50:]) < 1.5
    np.testing.assert_allclose(np.mean(spreads[50:]), 9.2, atol=1.5)


@pytest.mark.parametrize(
    ("drift", "rate"),
    [
        *[(3.0, 0.5), (1.0, 0.9), (-1.0, 0.5), (-3.0, 0.9)],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(3.0, 0.9), (1.0, 0.5), (-1.0, 0.9), (-3.0, 0.5)]),
    ],
)
def test_rate_follows_a_model_that_drifts(rate, drift):
    # log w of row i moves by drift * (0.5 .. 1.5) nats per visit; its spread under q is 1 to 4 nats
    num_data, num_draws, visits = 200, 5, 40
    speed, spread = jnp.linspace(0.5, 1.5, num_data), jnp.linspace(4.0, 1.0, num_data)
    threshold, rows = relbo.Rate(rate, 50), jnp.arange(num_data)

    class Gaussian(relbo.AbstractProposal):
        def sample(self, key, x):
            return jax.random.normal(key)

        def log_prob(self, z, x):
            return jnp.zeros(())

    class Drifting(relbo.AbstractModel):
        time: jax.Array

        def log_joint(self, x, z):
            return drift * speed[x] * self.time + spread[x] * z

        def sample(self, key):
            raise NotImplementedError

    def step(carry, inputs):
        state, (key, time) = carry, inputs
        pair = relbo.Pair(Drifting(time), Gaussian())
        key_solve, key_first = jax.random.split(key)
        accepted = []
        for half in (rows[::2], rows[1::2]):  # two batches an epoch
            batch = relbo.Batch(half, half)
            t, state = threshold.lookup(key_solve, pair, state, batch, relbo.Soft())
            noise = jax.random.normal(jax.random.fold_in(key_first, half[0]), (half.size, num_draws))
            log_p = drift * speed[half][:, None] * time + spread[half][:, None] * noise
            state = threshold.follow(state, batch, t, LogProbs(log_p, jnp.zeros_like(log_p)), relbo.Soft())
            accepted.append(jnp.exp(relbo.Soft().log_prob(log_p + t[:, None])).mean(axis=-1))
        return state, jnp.concatenate(accepted)

    keys = jax.random.split(jax.random.key(0), visits)
    _, accepted = jax.jit(lambda s: jax.lax.scan(step, s, (keys, jnp.arange(float(visits)))))(threshold.init(num_data))
    late = np.asarray(accepted[10:])
    # while log w rises by three spreads a visit, T follows by one: too much is accepted, never too little
    assert -0.06 < late.mean() - rate < (0.25 if drift == 3 else 0.06)
    if abs(drift) <= 1:  # and no row is left behind, though it may move 1.5 times its spread between two visits
        assert np.quantile(late.mean(axis=0), 0.02) > 0.3 * rate


@pytest.mark.parametrize("threshold", [relbo.Quantile(0.5, 10, 2), relbo.Rate(0.4, 10)], ids=repr)
def test_only_the_visited_rows_change(threshold):
    pair = table_pair(1, num_x=4)
    state, _ = train(threshold, pair, [0, 1, 2, 3], steps=3)
    estimator = relbo.VRS(2, threshold)
    batch = relbo.Batch(jnp.asarray([2]), jnp.asarray([2]))
    _, new, _ = jax.jit(estimator.estimate)(jax.random.key(9), pair, relbo.estimators.vrs.VRSState(state), batch)
    for before, after in zip(state, new.thresholds, strict=True):
        if before.ndim == 1:
            kept = jnp.asarray([0, 1, 3])
            np.testing.assert_array_equal(before[kept], after[kept])


def test_solve_is_a_function_of_its_key_and_differentiates_to_nothing():
    pair, x = table_pair(1), jnp.asarray(0)
    for threshold in (relbo.Quantile(0.5, 30), relbo.Rate(0.4, 30), relbo.Fixed(1.5)):

        def solve(p, t=threshold):
            return t.solve(jax.random.key(1), p, x)

        assert float(solve(pair)) == float(solve(pair))
        grads = jax.grad(solve)(pair)
        assert_trees_equal(grads, jax.tree.map(jnp.zeros_like, pair))


def test_fixed():
    threshold = relbo.Fixed(2.5)
    t, _, _ = visit(threshold, table_pair(), threshold.init(2), [1, 0], jax.random.key(0))
    np.testing.assert_array_equal(t, [2.5, 2.5])
    assert float(threshold.solve(jax.random.key(0), table_pair(), jnp.asarray(0))) == 2.5
