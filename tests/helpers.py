"""Oracles shared by the tests."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats

import relbo
from relbo import exact, rejection
from relbo.estimators.base import mean_over_valid
from relbo.estimators.records import Rejection
from relbo.models.gaussian import linear_gaussian
from relbo.models.toy import TableModel, TableProposal
from relbo.streams import split_streams, stream_keys
from relbo.thresholds import Reading
from relbo.view import num_features, offers, view_of

FALSE_FAILURE_RATE = 2e-5
"""Probability, over the choice of seeds, that a correct repository fails its statistical tests; seeds are fixed."""


def table_pair(seed=0, num_x=2, num_z=4, scale=1.5, dtype=jnp.float64):
    """A random enumerable pair: num_x observations, num_z latent states."""
    k1, k2 = jax.random.split(jax.random.key(seed))
    model = TableModel(scale * jax.random.normal(k1, (num_x, num_z), dtype))
    proposal = TableProposal(scale * jax.random.normal(k2, (num_x, num_z), dtype))
    return relbo.Pair(model, proposal)


def small_sbn(widths=(3, 2), num_visible=4, dtype=jnp.float64, scale=0.7):
    """A sigmoid belief network with random weights and biases, and all states of its z."""
    pair = relbo.sbn(jax.random.key(11), widths, jnp.full(num_visible, 0.4, dtype))
    leaves, treedef = jax.tree.flatten(pair)
    keys = jax.random.split(jax.random.key(12), len(leaves))
    leaves = [v + scale * jax.random.normal(k, v.shape, dtype) for k, v in zip(keys, leaves, strict=True)]
    states = exact.binary_states(sum(widths)).astype(dtype)
    support = tuple(jnp.split(states, np.cumsum(widths)[:-1], axis=1))
    return jax.tree.unflatten(treedef, leaves), support


def small_batch(num_rows=1, num_visible=4, dtype=jnp.float64):
    """Rows of bits."""
    x = jax.random.bernoulli(jax.random.key(13), 0.5, (num_rows, num_visible)).astype(dtype)
    return relbo.Batch(x, jnp.arange(num_rows))


def pair_for(estimator_class, num_rows=3, dtype=jnp.float64):
    """A small pair that the estimator can use, and a batch for it."""
    if estimator_class.needs is relbo.Needs.PATH:
        return linear_gaussian(jax.random.key(11), 2, jnp.full(4, 0.4, dtype)), small_batch(num_rows, dtype=dtype)
    return small_sbn(dtype=dtype)[0], small_batch(num_rows, dtype=dtype)


def draws_of(z, log_p, log_q, extra=None, used=None):
    """Draws that were made up, all of them used unless told otherwise; their gradient is for the test to take."""
    used = jnp.ones(log_p.shape, bool) if used is None else jnp.broadcast_to(used, log_p.shape)

    def pull_back(weights):
        raise AssertionError("made-up draws have no gradient")

    return relbo.Draws(z, log_p, log_q, used, pull_back, extra)


def expected_gradient(
    estimator,
    pair,
    x,
    support,
    log_draw,
    num_samples,
    extra=lambda n: None,
    state=None,
    index=None,
    prob=None,
    used=None,
):
    """Expected score-family gradient, by summing over all tuples of draws; log_draw is each draw's log probability.

    Other tuples of state numbers can be given as `index`, with their probabilities `prob`; `extra(n)` makes what the
    weights of n tuples read beside the draws, and `used` says which places of a tuple count.
    """
    num_states = log_draw.shape[0]
    state = estimator.init(jax.random.key(0), pair, 1) if state is None else state
    if index is None:
        index = exact.tuples(num_states, num_samples)
        prob = jnp.exp(jnp.sum(log_draw[index], axis=-1))
    n = index.shape[0]

    @jax.jit
    def run(pair, prob):
        log_p = exact.log_joint(pair.model, x, support)
        log_q = exact.log_proposal(pair.proposal, x, support)
        z = jax.tree.map(lambda leaf: leaf[index], support)
        batch = relbo.Batch(jax.tree.map(lambda v: jnp.broadcast_to(v, (n, *jnp.shape(v))), x), jnp.zeros(n, int))
        draws = draws_of(z, log_p[index], log_q[index], extra(n), used)
        weights, _, _ = estimator.weigh(draws, state, batch)

        def total(c):  # the weight that each state's score gets in expectation
            flat = (prob[:, None] * c).reshape(-1)
            return jnp.zeros(num_states).at[index.reshape(-1)].add(flat)

        c_p, c_q = total(weights.model), total(weights.proposal)

        def surrogate(p):
            lp, lq = exact.log_joint(p.model, x, support), exact.log_proposal(p.proposal, x, support)
            return jnp.sum(c_p * lp + c_q * lq)

        return exact.gradient(surrogate, pair)

    return run(pair, prob)


def draw_and_estimate(estimator, key, pair, state, batch):
    """Draws of a step, their weights in the mean over valid rows, gradient and info.

    What `estimate` of the score family does, written out: a test of the draws compiles the sampler but once. The draws
    come without their pull-back, which a compiled function cannot return.
    """
    draws, state = estimator.draw(split_streams(key), view_of(pair, batch.x), state, batch)
    weights, _, info = estimator.weigh(draws, state, batch)
    mean = relbo.Weights(*[mean_over_valid(c, info.valid) for c in weights])
    return draws._replace(pull_back=None), mean, draws.pull_back(mean), info


def reading_of(t, num_rows):
    """T of rows whose threshold is not due."""
    return Reading(jnp.full(num_rows, t), jnp.zeros(num_rows, bool), jnp.zeros(num_rows, jnp.int32))


def rejection_of(t, num_used, num_proposals):
    """What VRS's weights read beside the draws, for rows with these counts."""
    num_rows = num_used.shape[0]
    accepted = rejection.Accepted(
        z=None,
        log_probs=None,
        used=None,
        num_used=num_used,
        num_proposals=num_proposals,
        exhausted=jnp.zeros(num_rows, bool),
        t=jnp.full(num_rows, t),
        num_tried=num_proposals,
        position=None,
        num_evaluated=jnp.zeros((), jnp.int32),
    )
    return Rejection(reading_of(t, num_rows), accepted)


def vrs_extra(t, num_samples):
    """The `extra` of VRS's draws for `expected_gradient`, as if nothing had been rejected."""

    def build(n):
        count = jnp.full(n, num_samples, jnp.int32)
        return rejection_of(t, count, count)

    return build


def assert_trees_close(actual, expected, rtol=1e-8):
    """Relative to the largest entry of the expected tree."""
    flat_a = np.concatenate([np.ravel(v) for v in jax.tree.leaves(actual)])
    flat_e = np.concatenate([np.ravel(v) for v in jax.tree.leaves(expected)])
    np.testing.assert_allclose(flat_a, flat_e, rtol=0, atol=rtol * np.abs(flat_e).max())


def assert_trees_equal(actual, expected):
    """Bit for bit, structure included."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_frequencies(states, log_prob):
    """Chi-square test of observed state numbers against exact log probabilities.

    Each call may fail a correct program with probability FALSE_FAILURE_RATE / 100, so that a hundred of them stay
    within the budget of the repository. States too rare for the test to hold are pooled.
    """
    prob = np.exp(np.asarray(log_prob, float))
    counts = np.bincount(np.ravel(states), minlength=prob.size).astype(float)
    assert counts.size == prob.size, "a state outside the support"
    assert counts[prob == 0].sum() == 0, "an impossible state"
    rare = prob * counts.sum() < 20
    pooled_counts = np.append(counts[~rare], counts[rare].sum())
    pooled = np.append(prob[~rare], prob[rare].sum())
    keep = pooled > 0
    expected = counts.sum() * pooled[keep] / pooled.sum()
    assert keep.sum() >= 2, "nothing to compare"
    p_value = scipy.stats.chisquare(pooled_counts[keep], expected).pvalue
    assert p_value > FALSE_FAILURE_RATE / 100, f"chi-square p-value {p_value:.2e}"


def coefficients_of(estimator, log_w):
    """(c^p, c^q, bound) that an estimator without memory gives to log weights of shape (b, k)."""
    num_rows = log_w.shape[0]
    batch = relbo.Batch(jnp.zeros(num_rows, int), jnp.zeros(num_rows, int))
    state = estimator.init(jax.random.key(0), table_pair(), 1)
    draws = draws_of(jnp.zeros(log_w.shape, int), log_w, jnp.zeros_like(log_w))
    weights, _, info = estimator.weigh(draws, state, batch)
    return weights.model, weights.proposal, info.bound


class Impossible(relbo.AbstractModel):
    """A table of log p(x, z) as it stands, with -inf or NaN where the test wants it."""

    table: jax.Array

    def log_joint(self, x, z):
        return self.table[x, z]

    def sample(self, key):
        raise NotImplementedError


class Together(relbo.AbstractBatchPair):
    """A pair run as a program for all rows together, on the very streams of the row-wise one."""

    pair: relbo.Pair

    @property
    def num_features(self):
        return num_features(self.pair)

    @property
    def has_path(self):
        return relbo.Needs.PATH in offers(self.pair)

    def draw(self, key, x, positions):
        return self._on_keys(key, x, positions, self.pair.proposal.sample)

    def noise(self, key, x, positions):
        return self._on_keys(key, x, positions, lambda k, _: self.pair.proposal.noise(k))

    def log_densities(self, x, z):
        return view_of(self.pair, x).log_densities(z)

    def transform(self, noise, x):
        return view_of(self.pair, x).transform(noise)

    def features(self, x):
        return view_of(self.pair, x).features(jnp.float64)

    def _on_keys(self, key, x, positions, function):
        row = jnp.arange(jax.tree.leaves(x)[0].shape[0], dtype=jnp.int32)
        keys = stream_keys(key, *jnp.meshgrid(row, positions, indexing="ij"))
        return jax.vmap(lambda ks, one: jax.vmap(lambda k: function(k, one))(ks))(keys, x)


def threshold_at_rate(pair, x, support, rate, acceptance):
    """T at which the exact mean acceptance is `rate`."""

    def excess(t):
        return float(exact.log_z(pair, x, support, t, acceptance)) - np.log(rate)

    return scipy.optimize.brentq(excess, -200.0, 200.0, xtol=1e-12)
