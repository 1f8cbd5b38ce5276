"""VRS along the path, against quadrature on a Gaussian proposal for a mixture of two, and in its limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, draws_of, rejection_of
from jax.scipy.stats import norm

import relbo
from relbo.models.gaussian import DiagonalGaussian, linear_gaussian
from relbo.models.layers import Affine
from relbo.streams import split_streams
from relbo.types import EmptyState
from relbo.variance import gradient_moments
from relbo.view import view_of


class Mixture(relbo.AbstractModel):
    """Two components; theta are their places and weights."""

    place: jax.Array
    logit: jax.Array

    def log_joint(self, x, z):
        parts = norm.logpdf(z[0], self.place, jnp.asarray([0.7, 1.2])) + jax.nn.log_softmax(self.logit)
        return jax.nn.logsumexp(parts) + x[0]

    def sample(self, key):
        raise NotImplementedError


class Normal(relbo.AbstractReparameterizedProposal):
    mean: jax.Array
    log_scale: jax.Array

    def noise(self, key):
        return jax.random.normal(key, self.mean.shape)

    def transform(self, noise, x):
        return self.mean + jnp.exp(self.log_scale) * noise

    def log_prob(self, z, x):
        return jnp.sum(norm.logpdf(z, self.mean, jnp.exp(self.log_scale)))


PAIR = relbo.Pair(
    Mixture(jnp.asarray([-1.0, 1.5]), jnp.asarray([0.3, -0.2])), Normal(jnp.asarray([0.4]), jnp.asarray([0.2]))
)
X = jnp.asarray([-0.7])
NOISE = jnp.linspace(-9.0, 9.0, 241)
PRIOR = norm.pdf(NOISE) / jnp.sum(norm.pdf(NOISE))
"""The trapezium rule is exact to rounding for functions as smooth as these."""
ACCEPTANCES = {
    "paper": relbo.Soft(),
    "soft": relbo.Soft(0.5),
    "sharp": relbo.Soft(3.0),
    "floor": relbo.Soft(1.0, 0.05),
    "sharp floor": relbo.Soft(3.0, 0.2),
}
THRESHOLDS = (-2.0, 0.0, 2.0, float("inf"))


def log_w(pair):
    z = jax.vmap(lambda e: pair.proposal.transform(e[None], X))(NOISE)
    return jax.vmap(lambda one: pair.model.log_joint(X, one) - pair.proposal.log_prob(one, X))(z)


def resampled(pair, t, acceptance):
    """Probabilities of the nodes under r, and the R-ELBO, by quadrature."""
    f = log_w(pair)
    log_a = acceptance.log_prob(f + t)
    kept = PRIOR * jnp.exp(log_a)
    r = kept / jnp.sum(kept)
    return r, jnp.sum(r * (f - log_a)) + jnp.log(jnp.sum(kept))


def exact_gradient(pair, t, acceptance):
    return jax.grad(lambda p: resampled(p, t, acceptance)[1])(pair)


def expected(pair, t, acceptance):
    """The estimator's mean over all pairs of nodes, through its own weights and the view's own pull-back."""
    size = NOISE.size
    view = view_of(pair, X[None])
    _, (log_p, log_q), pull_back = view.along(NOISE[None, :, None])
    index = jnp.stack(jnp.meshgrid(jnp.arange(size), jnp.arange(size), indexing="ij"), axis=-1).reshape(-1, 2)
    count = jnp.full(size**2, 2, jnp.int32)
    estimator = relbo.VRSPath(2, t, acceptance)
    draws = draws_of(None, log_p[0][index], log_q[0][index], rejection_of(t, count, count))
    state = estimator.init(jax.random.key(0), pair, 1)
    weights, _, _ = estimator.weigh(draws, state, relbo.Batch(jnp.zeros((size**2, 1)), jnp.zeros(size**2, int)))
    r, _ = resampled(pair, t, acceptance)
    prob = r[index[:, 0]] * r[index[:, 1]]

    def total(c):
        return jnp.zeros(size).at[index.reshape(-1)].add((prob[:, None] * c).reshape(-1))

    return pull_back(relbo.Weights(*[total(c)[None] for c in weights]))


@pytest.mark.parametrize("name", ACCEPTANCES)
def test_expected_gradient_against_quadrature(name):
    run = jax.jit(jax.vmap(lambda t: (expected(PAIR, t, acceptance), exact_gradient(PAIR, t, acceptance))))
    acceptance = ACCEPTANCES[name]
    got, wanted = run(jnp.asarray(THRESHOLDS))
    for i in range(len(THRESHOLDS)):
        pick = functools.partial(jax.tree.map, lambda v, i=i: v[i])
        assert_trees_close(pick(got), pick(wanted), rtol=1e-7)
        assert_trees_close(pick(got).proposal, pick(wanted).proposal, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", [relbo.Soft(), relbo.Soft(2.0, 0.05)], ids=repr)
def test_sampled_gradient_with_a_budget_and_late_draws(acceptance):
    # each of 6 entries within 5.5 standard errors: rate 2e-7
    batch, t = relbo.Batch(jnp.broadcast_to(X, (100, 1)), jnp.zeros(100, int)), -0.5
    estimator = relbo.VRSPath(2, t, acceptance, num_proposals=4)
    state = estimator.init(jax.random.key(0), PAIR, 1)
    found = gradient_moments(estimator, jax.random.key(1), PAIR, state, batch, num_estimates=2_000, chunk=500)
    assert float(found.num_proposals) > 4.5, "late draws"
    wanted = exact_gradient(PAIR, t, acceptance)
    for mean, variance, value in zip(*map(jax.tree.leaves, (found.mean, found.variance, wanted)), strict=True):
        assert np.all(np.abs(mean - value) < 5.5 * np.sqrt(variance / found.num_estimates))


def test_without_rejection_it_is_pathwise_score_and_all():
    pair, batch = linear_gaussian(jax.random.key(1), 2, jnp.asarray([0.3, -0.2, 0.5])), jnp.ones((4, 3))
    batch = relbo.Batch(batch * jnp.arange(4.0)[:, None], jnp.arange(4))
    estimator = relbo.VRSPath(3, float("inf"))
    plain = relbo.Pathwise(3)
    got, _, info = jax.jit(estimator.estimate)(
        jax.random.key(2), pair, estimator.init(jax.random.key(0), pair, 4), batch
    )
    wanted, _, other = jax.jit(plain.estimate)(jax.random.key(2), pair, EmptyState.of(4), batch)
    assert_trees_close(got, wanted, rtol=1e-12)
    np.testing.assert_allclose(info.bound, other.bound, rtol=1e-12)


class Positive(relbo.AbstractModel):
    """Log z, impossible below 0, where the derivative is not a number."""

    scale: jax.Array

    def log_joint(self, x, z):
        return self.scale * jnp.log(jax.nn.relu(z[0]))

    def sample(self, key):
        raise NotImplementedError


def test_without_rejection_the_score_of_impossible_draws_counts():
    # without these the term that has mean 0 would have another one
    rows, size, mean, spread = 20, 4, 0.5, 0.8
    pair = relbo.Pair(Positive(jnp.asarray(1.0)), Normal(jnp.asarray([mean]), jnp.log(jnp.asarray([spread]))))
    estimator = relbo.VRSPath(2, float("inf"), num_proposals=size)
    key, x = jax.random.key(3), jnp.zeros((rows, 1))
    state = estimator.init(jax.random.key(0), pair, rows)
    got, _, info = jax.jit(estimator.estimate)(key, pair, state, relbo.Batch(x, jnp.arange(rows)))
    draws, _ = estimator.draw(split_streams(key), view_of(pair, x), state, relbo.Batch(x, jnp.arange(rows)))
    z, used = np.asarray(draws.z)[..., 0], np.asarray(draws.used)
    assert (z[:, :size] < 0).any() and not (used & (z < 0)).any() and (info.extra.num_used < size).any()
    away = (z - mean) / spread
    slope = np.where(used, 1 / np.where(used, z, 1) + away / spread, 0)
    path = [np.mean(np.sum(slope * one, axis=1) / used.sum(axis=1)) for one in (1.0, spread * away)]
    score = [np.mean(one[:, :size]) for one in (away / spread, away**2 - 1)]
    wanted = np.subtract(path, score)
    np.testing.assert_allclose([got.proposal.mean[0], got.proposal.log_scale[0]], wanted, rtol=1e-9)


class Box(relbo.AbstractModel):
    """Uniform on a box, under a Gaussian likelihood."""

    slope: jax.Array

    def log_joint(self, x, z):
        return jnp.where(jnp.all(jnp.abs(z) < 1), norm.logpdf(0.8, self.slope @ z), -jnp.inf)

    def sample(self, key):
        raise NotImplementedError


BOXES = {
    1: relbo.Pair(Box(jnp.asarray([0.7])), Normal(jnp.asarray([0.4]), jnp.asarray([-0.2]))),
    2: relbo.Pair(Box(jnp.asarray([0.7, -0.4])), Normal(jnp.asarray([0.4, -0.3]), jnp.asarray([-0.2, 0.1]))),
}


def exact_in_box(pair, t, acceptance):
    """The gradient of the R-ELBO by Gauss-Legendre quadrature, which never leaves the box."""
    node, weight = (jnp.asarray(v) for v in np.polynomial.legendre.leggauss(60))
    dim = pair.model.slope.size
    z = jnp.stack(jnp.meshgrid(*[node] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    volume = jnp.prod(jnp.stack(jnp.meshgrid(*[weight] * dim, indexing="ij"), axis=-1).reshape(-1, dim), axis=1)

    def bound(pair):
        log_p, log_q = (
            jax.vmap(f)(z) for f in (lambda v: pair.model.log_joint(X, v), lambda v: pair.proposal.log_prob(v, X))
        )
        log_a = acceptance.log_prob(log_p - log_q + t)
        kept = volume * jnp.exp(log_q + log_a)
        return jnp.sum(kept * (log_p - log_q - log_a)) / jnp.sum(kept) + jnp.log(jnp.sum(kept))

    return jax.grad(bound)(pair)


@pytest.mark.parametrize("dim", BOXES)
@pytest.mark.parametrize(
    ("t", "acceptance"),
    [(1.0, relbo.Soft()), (-1.0, relbo.Soft(3.0)), (1.0, relbo.Soft(0.5)), (0.0, relbo.Soft(1.0, 0.1))],
    ids=repr,
)
def test_an_edge_of_p_turns_the_run_over_to_scores(dim, t, acceptance):
    # each of at most 6 entries, 8 times, within 5.5 standard errors: rate 2e-6. Along the path they are 20 to 70 away
    pair, batch = BOXES[dim], relbo.Batch(jnp.broadcast_to(X, (50, 1)), jnp.zeros(50, int))
    estimator = relbo.VRSPath(2, t, acceptance, num_proposals=4)
    state = estimator.init(jax.random.key(0), pair, 1)
    _, state, _ = jax.jit(estimator.estimate)(jax.random.key(1), pair, state, batch)
    assert bool(state.edge)
    found = gradient_moments(estimator, jax.random.key(2), pair, state, batch, num_estimates=1_000, chunk=100)
    wanted = exact_in_box(pair, t, acceptance)
    for mean, variance, value in zip(*map(jax.tree.leaves, (found.mean, found.variance, wanted)), strict=True):
        assert np.all(np.abs(mean - value) < 5.5 * np.sqrt(variance / found.num_estimates)), (mean, value)


@pytest.mark.parametrize("t", [-2.0, float("inf")])
@pytest.mark.parametrize("model", [BOXES[1].model, Positive(jnp.asarray(1.0))], ids=["box", "infinite slope"])
def test_after_an_edge_it_is_vrs_draw_for_draw(model, t):
    # late draws included, and impossible ones whose derivative is not a number
    pair = relbo.Pair(model, BOXES[1].proposal)
    batch, key = relbo.Batch(jnp.zeros((20, 1)), jnp.arange(20)), jax.random.key(3)
    found = []
    for kind in (relbo.VRSPath, relbo.VRS):
        estimator = kind(2, t, num_proposals=3)
        state = estimator.init(key, pair, 20)
        state = state if state.edge is None else state._replace(edge=jnp.asarray(True))
        found.append(jax.jit(estimator.estimate)(key, pair, state, batch))
    (got, _, info), (wanted, _, _) = found
    assert (info.num_proposals > 3).any()
    assert_trees_close(got, wanted, rtol=1e-10)


def test_the_step_that_sees_an_edge_first_keeps_its_form():
    pair, key, batch = BOXES[1], jax.random.key(3), relbo.Batch(jnp.zeros((20, 1)), jnp.arange(20))
    estimator = relbo.VRSPath(2, 0.0)
    state = estimator.init(key, pair, 20)
    first, after, _ = jax.jit(estimator.estimate)(key, pair, state, batch)
    again, _, _ = jax.jit(estimator.estimate)(key, pair, after, batch)
    assert not bool(state.edge) and bool(after.edge)
    assert not jnp.allclose(first.proposal.mean, again.proposal.mean)


def test_every_sample_is_zero_at_the_posterior():
    model = linear_gaussian(jax.random.key(1), 1, jnp.asarray([0.3, -0.2, 0.5])).model
    x, weight, scale = jnp.asarray([1.0, -0.4, 0.2]), model.decoder.matrix[0], jnp.exp(2 * model.log_scale)
    precision = 1 + jnp.sum(weight**2 / scale)
    mean = jnp.sum(weight * (x - model.decoder.bias) / scale) / precision
    proposal = DiagonalGaussian(Affine(jnp.zeros((3, 1)), mean[None]), -0.5 * jnp.log(precision)[None])
    pair, rows = relbo.Pair(model, proposal), 50
    estimator = relbo.VRSPath(2, rate=0.3, num_proposals=3)
    state = estimator.init(jax.random.key(0), pair, rows)
    batch = relbo.Batch(jnp.broadcast_to(x, (rows, 3)), jnp.arange(rows))
    grads, _, info = jax.jit(estimator.estimate)(jax.random.key(3), pair, state, batch)
    assert (info.num_proposals > 3).any() and float(jnp.mean(info.extra.acceptance)) < 0.5
    assert max(float(jnp.max(jnp.abs(v))) for v in jax.tree.leaves(grads.proposal)) < 1e-12


def test_an_acceptance_that_is_not_smooth_is_refused_at_once():
    with pytest.raises(ValueError, match=r"must be smooth .* got Hard\(\)"):
        relbo.VRSPath(2, 0.0, relbo.Hard())


def test_fit_says_once_that_p_has_an_edge(caplog):
    estimator = relbo.VRSPath(2, 1.0)
    result = relbo.fit(BOXES[1], estimator, np.zeros((8, 1)), num_epochs=3, batch_size=4, progress=False)
    assert bool(result.state.estimator_state.edge)
    assert sum("p has an edge inside the support of q" in record.message for record in caplog.records) == 1
