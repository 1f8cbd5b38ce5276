"""VRS with a budget, by enumeration: all proposals and acceptances of a small model go through the real sampler.

A script takes the place of randomness: which state each place of a row's stream proposes, and whether it is accepted.
The rows of one batch are all scripts, so that their probabilities times what the program makes of them is an exact
expectation. Rejections after the first N proposals change nothing but the count, so a row that goes on is scripted
with late draws that are accepted, each with its probability under r; the count's own law enters in the bound.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import assert_trees_close, table_pair

import relbo
from relbo import bounds, exact, rejection, view
from relbo.streams import split_streams

NUM_STATES, X = 3, 1


class Scripts(eqx.Module):
    """All courses of a row: N first places, then the late ones of rows that go on."""

    z: np.ndarray
    accepted: np.ndarray
    prob: np.ndarray
    num_first: np.ndarray


def all_scripts(pair, t, acceptance, num_samples, num_proposals):
    support, x = jnp.arange(NUM_STATES), jnp.asarray(X)
    log_p = np.asarray(exact.log_joint(pair.model, x, support))
    log_q = np.asarray(exact.log_proposal(pair.proposal, x, support))
    q, a = np.exp(log_q), np.exp(acceptance.log_prob(jnp.asarray(log_p - log_q + t)))
    r = q * a / np.sum(q * a)
    outcome = np.concatenate([q * a, q * (1 - a)])  # state z is accepted as outcome z, rejected as z + NUM_STATES
    first = exact.tuples(2 * NUM_STATES, num_proposals)
    first = first[outcome[first].prod(1) > 0]  # a hard acceptance leaves some impossible
    num_first = np.sum(first < NUM_STATES, axis=1)
    parts = []
    for count in range(num_proposals + 1):
        own = first[num_first == count]
        late = exact.tuples(NUM_STATES, num_samples - count) if count < num_samples else np.zeros((1, 0), int)
        i, j = (n.ravel() for n in np.indices((len(own), len(late))))
        both = np.concatenate([own[i], np.pad(late[j], [(0, 0), (0, num_samples - late.shape[1])])], axis=1)
        parts.append((both, outcome[own[i]].prod(1) * r[late[j]].prod(1), np.full(i.size, count)))
    both, prob, num_first = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Scripts(both % NUM_STATES, both < NUM_STATES, prob, num_first)


class Scripted(relbo.AbstractProposal):
    """Proposes what the script of its row says; scores as the table does."""

    table: relbo.AbstractProposal

    def sample(self, key, x):
        position = jax.random.key_data(key)[1].astype(jnp.int32)
        return x["script"][jnp.minimum(position, x["script"].shape[0] - 1)]

    def log_prob(self, z, x):
        return self.table.log_prob(z, x["state"])


class OnScriptedRows(relbo.AbstractModel):
    table: relbo.AbstractModel

    def log_joint(self, x, z):
        return self.table.log_joint(x["state"], z)

    def sample(self, key):
        raise NotImplementedError


class WholeBatch(relbo.AbstractBatchPair):
    """The same as a program that runs for all rows together."""

    rows: relbo.Pair
    num_features, has_path = 1, False

    def draw(self, key, x, positions):
        return x["script"][:, jnp.minimum(positions, x["script"].shape[1] - 1)]

    def log_densities(self, x, z):
        return view.RowView(self.rows, x).log_densities(z)

    def features(self, x):
        raise NotImplementedError

    noise = transform = features


def enumerate_step(monkeypatch, estimator, pair, t, *, whole_batch=False):
    """Scripts, the expected gradient of one step, and its info for every script."""
    scripts = all_scripts(pair, t, estimator.acceptance, estimator.num_samples, estimator.num_proposals)
    num_rows, length = scripts.z.shape
    never = jnp.where(jnp.asarray(scripts.accepted).reshape(-1), -jnp.inf, jnp.inf)

    def place(key, row, position):
        return row.astype(jnp.uint32), position.astype(jnp.uint32)

    def key_of_place(key, row, position):
        return jax.random.wrap_key_data(jnp.stack(place(key, row, position), axis=-1))

    def flat_place(key, row, position):
        return (row * length + jnp.minimum(position, length - 1),)

    monkeypatch.setattr(view, "stream_keys", key_of_place)
    monkeypatch.setattr(rejection, "stream_words", flat_place)
    monkeypatch.setattr(rejection, "log_uniform", lambda word, dtype: never[word])
    scripted = relbo.Pair(OnScriptedRows(pair.model), Scripted(pair.proposal))
    batch = relbo.Batch(
        {"script": jnp.asarray(scripts.z), "state": jnp.full(num_rows, X)}, jnp.zeros(num_rows, jnp.int32)
    )

    @eqx.filter_jit
    def step(scripted, prob):
        state = estimator.init(jax.random.key(0), scripted, 1)
        draws, state = estimator.draw(split_streams(jax.random.key(0)), view.view_of(scripted, batch.x), state, batch)
        weights, _, info = estimator.weigh(draws, state, batch)
        return draws.pull_back(relbo.Weights(*[c * prob[:, None] for c in weights])), info

    grads, info = step(WholeBatch(scripted) if whole_batch else scripted, jnp.asarray(scripts.prob))
    grads = grads.rows if whole_batch else grads
    return scripts, relbo.Pair(grads.model.table, grads.proposal.table), info


BUDGETS = [(2, 2), (2, 5), (3, 4), *(pytest.param(3, n, marks=pytest.mark.slow) for n in (3, 6))]
ACCEPTANCES = {"soft": relbo.Soft(), "sharper": relbo.Soft(2.0), "hard": relbo.Hard()}


@pytest.fixture
def pair():
    return table_pair(3, num_x=2, num_z=NUM_STATES)


@pytest.mark.parametrize("num_samples, num_proposals", BUDGETS)
def test_expected_gradients_are_exact(monkeypatch, pair, num_samples, num_proposals):
    t, x, support = -1.0, jnp.asarray(X), jnp.arange(NUM_STATES)
    estimator = relbo.VRS(num_samples, t, num_proposals=num_proposals)
    scripts, got, info = enumerate_step(monkeypatch, estimator, pair, t)
    np.testing.assert_allclose(scripts.prob.sum(), 1, rtol=1e-12)
    late = scripts.num_first < num_samples
    assert scripts.prob[late].sum() > 0.05  # rows that go on are not an afterthought
    np.testing.assert_array_equal(info.extra.num_used, np.maximum(scripts.num_first, num_samples))
    want = exact.gradient(exact.r_elbo, pair, x, support, t)
    assert_trees_close(got.model, want.model)
    assert_trees_close(got.proposal, want.proposal)


@pytest.mark.parametrize("whole_batch", [False, True])
@pytest.mark.parametrize("name", ["soft", "hard", pytest.param("sharper", marks=pytest.mark.slow)])
def test_with_any_acceptance_and_for_whole_batch_programs(monkeypatch, pair, name, whole_batch):
    t, acceptance = -0.5, ACCEPTANCES[name]
    estimator = relbo.VRS(2, t, acceptance, num_proposals=4)
    _, got, _ = enumerate_step(monkeypatch, estimator, pair, t, whole_batch=whole_batch)
    want = exact.gradient(exact.r_elbo, pair, jnp.asarray(X), jnp.arange(NUM_STATES), t, acceptance)
    assert_trees_close(got, want)


@pytest.mark.parametrize("num_samples, num_proposals", [(2, 5), (3, 4)])
def test_info_bound_is_unbiased(monkeypatch, pair, num_samples, num_proposals):
    t, x, support = -1.0, jnp.asarray(X), jnp.arange(NUM_STATES)
    estimator = relbo.VRS(num_samples, t, num_proposals=num_proposals)
    scripts, _, info = enumerate_step(monkeypatch, estimator, pair, t)
    rate = float(jnp.exp(exact.log_z(pair, x, support, t)))
    mean = np.sum(scripts.prob * np.asarray(info.bound))

    def log_z(num_proposed):
        counts = jnp.atleast_1d(jnp.asarray(num_proposed))
        return np.asarray(bounds.log_z_unbiased(jnp.full_like(counts, num_samples), counts, num_samples, num_proposals))

    for count in range(num_samples):  # late rejections, which the scripts leave out, only move the count
        missing = num_samples - count
        rejected = np.arange(int(scipy.stats.nbinom.isf(1e-14, missing, rate)) + 1)
        extra = log_z(num_proposals + missing + rejected) - log_z(num_proposals + missing)
        going_on = scripts.prob[scripts.num_first == count].sum()
        mean += going_on * np.sum(scipy.stats.nbinom.pmf(rejected, missing, rate) * extra)
    np.testing.assert_allclose(mean, exact.r_elbo(pair, x, support, t), rtol=1e-8)


def test_wake_trains_phi_on_draws_from_r(monkeypatch, pair):
    t, x, support = -1.0, jnp.asarray(X), jnp.arange(NUM_STATES)
    _, got, _ = enumerate_step(monkeypatch, relbo.VRSWake(2, t, num_proposals=4), pair, t)
    assert_trees_close(got.model, exact.gradient(exact.r_elbo, pair, x, support, t).model)
    r = jnp.exp(exact.log_resampled(pair, x, support, t))
    wake = exact.gradient(lambda p: jnp.sum(r * exact.log_proposal(p.proposal, x, support)), pair)
    assert_trees_close(got.proposal, wake.proposal)


def test_raw_trains_phi_on_all_proposals(monkeypatch, pair):
    t, x, support = -1.0, jnp.asarray(X), jnp.arange(NUM_STATES)
    _, got, _ = enumerate_step(monkeypatch, relbo.VRSRaw(2, t, num_proposals=4), pair, t)
    assert_trees_close(got.model, exact.gradient(exact.r_elbo, pair, x, support, t).model)
    assert_trees_close(got.proposal, exact.gradient(exact.elbo, pair, x, support).proposal)
