"""A row-wise pair and the same pair as a whole-batch program are one and the same to whoever looks through a view."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Impossible, assert_trees_close, assert_trees_equal, small_batch, small_sbn, table_pair

import relbo
from relbo import rejection, streams
from relbo._tree import Begun
from relbo.lanes import Places
from relbo.models.base import AbstractReparameterizedProposal
from relbo.models.toy import TableProposal
from relbo.streams import split_streams, stream_keys
from relbo.types import Weights
from relbo.view import BatchView, Needs, Proposals, RowView, num_features, offers, view_of


class Together(relbo.AbstractBatchPair):
    """A row-wise pair as a program that runs for all rows together, on the same streams."""

    pair: relbo.Pair

    def on_keys(self, key, x, positions, function):
        row = jnp.arange(jax.tree.leaves(x)[0].shape[0], dtype=jnp.int32)
        keys = stream_keys(key, *jnp.broadcast_arrays(row[:, None], positions[None]))
        return jax.vmap(jax.vmap(function, (0, None)))(keys, x)

    def draw(self, key, x, positions):
        return self.on_keys(key, x, positions, self.pair.proposal.sample)

    def log_densities(self, x, z):
        def one(x, z):
            return self.pair.model.log_joint(x, z), self.pair.proposal.log_prob(z, x)

        return jax.vmap(jax.vmap(one, (None, 0)))(x, z)

    @property
    def num_features(self):
        return num_features(self.pair)

    def features(self, x):
        return RowView(self.pair, x).features(jnp.dtype(float))

    @property
    def has_path(self):
        return isinstance(self.pair.proposal, AbstractReparameterizedProposal)

    def noise(self, key, x, positions):
        return self.on_keys(key, x, positions, lambda k, _: self.pair.proposal.noise(k))

    def transform(self, noise, x):
        return RowView(self.pair, x).transform(noise)


SBN = small_sbn()[0]
GAUSSIAN = relbo.linear_gaussian(jax.random.key(11), 2, jnp.full(4, 0.4))
BATCH = small_batch(5)
SLOW_AND_FAST = jnp.asarray([jnp.inf, 5.0, 3.0, 2.0, 0.0])
ENOUGH = 10**5


def views(pair=SBN, x=BATCH.x):
    return RowView(pair, x), BatchView(Together(pair), x)


def inner(tree):
    """The gradient in the row-wise pair."""
    return tree.pair if isinstance(tree, Together) else tree


def test_a_view_is_chosen_by_the_kind_of_pair():
    assert isinstance(view_of(SBN, BATCH.x), RowView) and isinstance(view_of(Together(SBN), BATCH.x), BatchView)
    assert {view.num_rows for view in views()} == {5}
    assert num_features(Together(SBN)) == num_features(SBN) == 4
    by_row, together = views()
    np.testing.assert_array_equal(by_row.features(jnp.dtype("float32")), together.features(jnp.dtype("float32")))


@pytest.fixture(scope="module", params=["by row", "together"])
def looked_at(request):
    """All that a view shows of three draws; compiled once for each kind of view."""
    view = views()[request.param == "together"]
    c = jax.random.normal(jax.random.key(1), (2, 5, 3))

    def look(key):
        z = view.draw(key, 3)
        log_probs, pull = view.scored(z)
        return z, log_probs, view.log_densities(z), view.log_weights(key, 3), inner(pull(Weights(*c)))

    return jax.jit(look)(jax.random.key(0)), c


def test_draws_are_those_of_the_rows_streams(looked_at):
    (z, *_), _ = looked_at
    keys = stream_keys(jax.random.key(0), *jnp.indices((5, 3), jnp.int32))
    expected = [[SBN.proposal.sample(keys[i, j], BATCH.x[i]) for j in range(3)] for i in range(5)]
    stacked = [jax.tree.map(lambda *v: jnp.stack(v), *row) for row in expected]
    assert_trees_equal(z, jax.tree.map(lambda *v: jnp.stack(v), *stacked))


def test_densities_are_those_of_the_pair_and_their_pull_back_is_the_gradient(looked_at):
    (z, scored, log_probs, log_w, grads), c = looked_at

    @jax.jit
    def expected(pair):
        def total(pair):
            each = jax.vmap(jax.vmap(lambda x, z: pair.model.log_joint(x, z), (None, 0)))(BATCH.x, z)
            other = jax.vmap(jax.vmap(lambda x, z: pair.proposal.log_prob(z, x), (None, 0)))(BATCH.x, z)
            return jnp.sum(c[0] * each + c[1] * other), (each, other)

        grads, both = eqx.filter_grad(total, has_aux=True)(pair)
        return both, grads

    (log_p, log_q), gradient = expected(SBN)
    for got in (scored, log_probs):
        np.testing.assert_allclose(got.log_p, log_p, rtol=1e-13)
        np.testing.assert_allclose(got.log_q, log_q, rtol=1e-13)
    np.testing.assert_allclose(log_w, log_p - log_q, rtol=1e-12, atol=1e-12)
    assert_trees_close(grads, gradient, rtol=1e-12)


@pytest.mark.slow
def test_draws_are_constants_of_differentiation():
    for view in views(GAUSSIAN):

        def total(pair, view=view):
            return jnp.sum(view.at(pair).draw(jax.random.key(0), 2)) + jnp.sum(view.at(pair).log_weights(KEY, 2))

        assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(eqx.filter_grad(total)(view.pair))) == 0


KEY = jax.random.key(4)


@pytest.mark.slow
def test_impossible_draws_have_log_weight_minus_infinity():
    pair = relbo.Pair(Impossible(jnp.full((1, 2), -jnp.inf)), TableProposal(jnp.zeros((1, 2))))
    np.testing.assert_array_equal(view_of(pair, jnp.zeros(2, int)).log_weights(KEY, 3), -np.inf)


@functools.cache
def accepted_by(place, budget):
    view = views()[place]

    def run(key):
        streams = split_streams(key)
        z = view.draw(streams.propose, budget)
        first = Proposals(z, view.log_densities(z))
        return rejection.sample(
            view, streams, first, SLOW_AND_FAST, relbo.Soft(), num_samples=2, max_rounds=ENOUGH, widths=(4,)
        )

    return jax.jit(run)(jax.random.key(5))


@pytest.mark.parametrize("budget", [4, pytest.param(2, marks=pytest.mark.slow)])
def test_the_sampler_accepts_the_same_draws(budget):
    by_row, together = (accepted_by(place, budget) for place in (0, 1))
    for field in ("used", "num_used", "num_proposals", "exhausted"):
        np.testing.assert_array_equal(getattr(by_row, field), getattr(together, field))
    used = np.asarray(by_row.used)
    for a, b in zip(by_row.z, together.z, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[used], np.asarray(b)[used])
    for a, b in zip(by_row.log_probs, together.log_probs, strict=True):
        np.testing.assert_allclose(np.asarray(a)[used], np.asarray(b)[used], rtol=1e-13)
    assert (by_row.num_proposals > budget).any(), "some rows went on"


ESTIMATORS = {
    "rloo": relbo.RLOO(3),
    "rws": relbo.RWS(3),
    "vrs": relbo.VRS(2, 2.0),
    "vrs rate": relbo.VRS(2, relbo.Rate(0.5, 20), num_proposals=4),
    "vrs exhausted": relbo.VRS(2, 6.0, num_proposals=3, max_rounds=3),
    "vrs raw": relbo.VRSRaw(2, 2.0, num_proposals=4),
    "pathwise": relbo.Pathwise(3),
    "dreg": relbo.DReG(3),
    "vrs path": relbo.VRSPath(2, 6.0, num_proposals=3),
    "vrs path exhausted": relbo.VRSPath(2, 6.0, num_proposals=3, max_rounds=2),
}


@pytest.mark.parametrize(
    "name",
    [
        *["rloo", "rws", "pathwise"],
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("vrs", "vrs rate", "vrs exhausted", "vrs raw", "dreg")),
        *["vrs path", pytest.param("vrs path exhausted", marks=pytest.mark.slow)],
    ],
)
def test_gradients_agree(name):
    estimator = ESTIMATORS[name]
    pair = GAUSSIAN if estimator.needs is Needs.PATH else SBN
    results = []
    for one in (pair, Together(pair)):
        state = estimator.init(jax.random.key(0), one, 5)
        grads, state, info = eqx.filter_jit(estimator.estimate)(jax.random.key(2), one, state, BATCH)
        results.append((inner(grads), state, info))
    (by_row, state, info), (together, other_state, other_info) = results
    np.testing.assert_allclose(info.bound, other_info.bound, rtol=1e-12)
    np.testing.assert_array_equal(info.valid, other_info.valid)
    np.testing.assert_array_equal(info.num_proposals, other_info.num_proposals)
    assert_trees_close(together, by_row, rtol=1e-10)
    assert_trees_close(state, other_state, rtol=1e-10) if "rate" in name else assert_trees_equal(state, other_state)
    if name == "vrs path":
        assert (info.num_proposals > 3).any() and (info.num_proposals == 3).any(), "early and late draws"
    if "exhausted" in name:
        assert info.extra.exhausted.any() and not info.extra.exhausted.all(), "rows of both kinds"


@pytest.mark.parametrize("place", [0, 1], ids=["by row", "together"])
def test_the_gradient_in_blocks_is_the_pull_back(place):
    # of blocks of one column and of all, some rows without any draw to do, and of nothing
    view = views()[place]
    c = jax.random.normal(jax.random.key(1), (2, 5, 7))
    some = jax.random.bernoulli(jax.random.key(3), 0.5, (5, 7)).at[2].set(False).at[4].set(True)

    @functools.partial(jax.jit, static_argnums=1)
    def run(todo, width):
        z = view.draw(jax.random.key(0), 7)
        _, pull = view.scored(z)
        start = jax.tree.map(jnp.ones_like, pull(Weights(*c)))
        expected = jax.tree.map(jnp.add, start, pull(Weights(*jnp.where(todo[None], c, 0))))
        return view.gradient(z, Weights(*c), todo, Begun(start, jnp.array(True)), width), expected

    for width, todo in [(1, some), (7, some), (1, jnp.zeros((5, 7), bool)), (1, jnp.ones((5, 7), bool))]:
        got, expected = run(todo, width)
        assert_trees_close(got, expected, rtol=1e-12)


@pytest.mark.parametrize("place", [0, 1], ids=["by row", "together"])
def test_the_gradient_along_places_is_the_pull_back(place):
    view, key, c = views(GAUSSIAN)[place], jax.random.key(0), jax.random.normal(jax.random.key(1), (2, 5, 7))
    some = jax.random.bernoulli(jax.random.key(3), 0.5, (5, 7)).at[2].set(False).at[4].set(True)
    order = jnp.stack([jax.random.permutation(k, 7) for k in jax.random.split(key, 5)]).astype(jnp.int32)

    @functools.partial(jax.jit, static_argnums=1)
    def run(todo, width):
        z, _, pull = view.along(view.noise(key, 7))
        start = jax.tree.map(jnp.ones_like, pull(Weights(*c)))
        expected = jax.tree.map(jnp.add, start, pull(Weights(*jnp.where(todo[None], c, 0))))
        moved = Weights(*jnp.take_along_axis(c, order[None], axis=2))
        todo = jnp.take_along_axis(todo, order, axis=1)
        places = Places(key, order, z[jnp.arange(5)[:, None], order])
        return view.gradient(places, moved, todo, Begun(start, jnp.array(True)), width), expected

    for width, todo in [(2, some), (1, jnp.zeros((5, 7), bool))]:
        got, expected = run(todo, width)
        assert_trees_close(got, expected, rtol=1e-12)


def test_noise_makes_the_draws():
    for view in views(GAUSSIAN):
        z = view.transform(view.noise(KEY, 3))
        np.testing.assert_array_equal(z, view.draw(KEY, 3))


@pytest.mark.slow
def test_what_is_frozen_has_no_gradient():
    by_row, together = views(GAUSSIAN)
    z = by_row.draw(KEY, 2)

    def gradient(view, frozen):
        def total(pair):
            log_p, log_q = frozen(view.at(pair)).log_densities(z)
            return jnp.sum(log_p + log_q)

        return inner(eqx.filter_grad(total)(view.pair))

    def size(tree):
        return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))

    kept = gradient(by_row, lambda view: view.with_constant_proposal())
    assert size(kept.model) > 0 and size(kept.proposal) == 0
    assert size(gradient(by_row, lambda view: view.frozen())) == 0
    assert size(gradient(together, lambda view: view.frozen())) == 0


def test_what_pairs_offer():
    table = table_pair()
    assert offers(table) == offers(Together(table)) == {Needs.DRAWS}
    assert offers(SBN) == {Needs.DRAWS, Needs.BITS}
    assert offers(Together(SBN)) == {Needs.DRAWS}, "a program does not show its layers"
    assert offers(GAUSSIAN) == offers(Together(GAUSSIAN)) == {Needs.DRAWS, Needs.PATH}


@pytest.mark.parametrize(
    "estimator, pair, message",
    [
        (relbo.Pathwise(2), SBN, "Pathwise needs reparameterised z, got SBNProposal. Derive the proposal from "),
        (relbo.DisARM(), GAUSSIAN, "DisARM needs Bernoulli layers, got DiagonalGaussian. Derive the proposal from "),
        (relbo.DisARM(), Together(SBN), "DisARM needs Bernoulli layers, got Together. Derive the proposal from "),
        (relbo.Pathwise(2), Together(SBN), "Pathwise needs reparameterised z, got Together. Derive the proposal from "),
    ],
)
def test_a_pair_that_cannot_do_what_is_needed_is_refused(estimator, pair, message):
    for call in (
        lambda: estimator.init(KEY, pair, 5),
        lambda: estimator.estimate(KEY, pair, relbo.EmptyState.of(5), BATCH),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_a_program_has_no_dreams():
    with pytest.raises(ValueError, match="needs draws of .* from the model .* such as RWS"):
        relbo.WakeSleep(2).estimate(KEY, Together(SBN), relbo.EmptyState.of(5), BATCH)
    x, z = RowView(SBN, BATCH.x).dreams(KEY, 2)
    assert x.shape == (5, 2, 4) and [v.shape for v in z] == [(5, 2, 3), (5, 2, 2)]


def test_densities_that_are_not_one_number_are_refused():
    class Vector(relbo.AbstractModel):
        def log_joint(self, x, z):
            return jnp.zeros(3)

        def sample(self, key):
            raise NotImplementedError

    pair = relbo.Pair(Vector(), TableProposal(jnp.zeros((1, 2))))
    with pytest.raises(ValueError, match=r"must return one number for one x and one z, got shapes \(3,\) and \(\)"):
        view_of(pair, jnp.zeros(2, int)).log_densities(jnp.zeros((2, 3), int))


class Picky(relbo.AbstractBatchPair):
    """Row 0 always draws 1 and has p = theta z; row 1 draws 0 and has p = theta (z + 1), and is accepted less."""

    theta: jax.Array
    num_features, has_path = 1, False

    def draw(self, key, x, positions):
        return jnp.broadcast_to(1.0 - x[:, None], (x.shape[0], positions.size))

    def log_densities(self, x, z):
        log_p = jnp.log(self.theta * (z + x[:, None])) - 3.0 * x[:, None]
        return log_p, jnp.zeros_like(log_p)

    def features(self, x):
        raise NotImplementedError

    noise = transform = features


def test_a_row_that_is_done_is_not_scored_at_the_z_of_another():
    # z = 0 is impossible in row 0, whose derivative there is infinite
    pair = Picky(jnp.asarray(1.0))
    estimator = relbo.VRS(2, 1.0)
    batch = relbo.Batch(jnp.asarray([0.0, 1.0]), jnp.arange(2))
    step = eqx.filter_jit(estimator.estimate)
    for key in jax.random.split(jax.random.key(0), 3):
        grads, _, info = step(key, pair, estimator.init(key, pair, 2), batch)
        assert info.num_proposals[1] > 2
        np.testing.assert_allclose(grads.theta, 1.0)


class Root(relbo.AbstractModel):
    """P(x, z) is N(z; 0, 1) exp(theta sqrt z) for z > 0 and 0 elsewhere, where its derivative is NaN."""

    theta: jax.Array

    def log_joint(self, x, z):
        return -0.5 * z[0] ** 2 + jnp.where(z[0] > 0, self.theta * jnp.sqrt(z[0]), -jnp.inf)

    def sample(self, key):
        raise NotImplementedError


@pytest.mark.slow
def test_a_rejected_z_without_a_derivative_does_not_spoil_the_path_of_a_whole_batch():
    proposal = relbo.linear_gaussian(jax.random.key(3), 1, jnp.zeros(1)).proposal
    pair, x = relbo.Pair(Root(jnp.asarray(0.7)), proposal), jnp.asarray([[-0.4], [0.1], [0.5]])
    estimator, batch = relbo.VRSPath(2, 1.0, num_proposals=3), relbo.Batch(x, jnp.arange(3))
    state = estimator.init(KEY, pair, 3)
    run = eqx.filter_jit(lambda key, pair: estimator.estimate(key, pair, state, batch)[0])
    for key in jax.random.split(jax.random.key(0), 4):
        by_row, together = run(key, pair), run(key, Together(pair)).pair
        assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(together))
        assert_trees_close(together, by_row, rtol=1e-10)


def test_log_weights_do_not_depend_on_the_block(monkeypatch):
    # 7 draws of 2 rows, 2 at a time, the last block cut short
    view = view_of(table_pair(0), jnp.arange(2))
    key = jax.random.key(4)
    log_p, log_q = view.log_densities(view.draw(key, 7))
    monkeypatch.setattr(streams, "AT_ONCE", 4)
    np.testing.assert_allclose(view.log_weights(key, 7), log_p - log_q, rtol=1e-14)
