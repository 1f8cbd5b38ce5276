"""Oracles shared by the tests."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats

import relbo
from relbo import exact, rejection
from relbo.models.base import AbstractReparameterizedProposal
from relbo.models.gaussian import linear_gaussian
from relbo.models.toy import TableModel, TableProposal
from relbo.types import Draws

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
    if issubclass(AbstractReparameterizedProposal, estimator_class.requires) and not issubclass(
        relbo.AbstractProposal, estimator_class.requires
    ):
        return linear_gaussian(jax.random.key(11), 2, jnp.full(4, 0.4, dtype)), small_batch(num_rows, dtype=dtype)
    return small_sbn(dtype=dtype)[0], small_batch(num_rows, dtype=dtype)


def expected_gradient(
    estimator, pair, x, support, log_draw, num_samples, extra=lambda n: (), state=None, index=None, prob=None
):
    """Expected score-family gradient, by summing over all tuples of draws; log_draw is each draw's log probability.

    Other tuples of state numbers can be given as `index`, with their probabilities `prob`.
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
        weights, _, _ = estimator.coefficients(log_p[index], log_q[index], Draws(z, extra(n)), state, batch)

        def total(c):  # the weight that each state's score gets in expectation
            flat = (prob[:, None] * c).reshape(-1)
            return jnp.zeros(num_states).at[index.reshape(-1)].add(flat)

        c_p, c_q = total(weights.model), total(weights.proposal)

        def surrogate(p):
            lp, lq = exact.log_joint(p.model, x, support), exact.log_proposal(p.proposal, x, support)
            return jnp.sum(c_p * lp + c_q * lq)

        return exact.gradient(surrogate, pair)

    return run(pair, prob)


def vrs_extra(t, num_samples):
    """The part of VRS's draws that its coefficients read, as if nothing had been rejected."""

    def build(n):
        first = rejection.LogProbs(jnp.zeros((n, num_samples)), jnp.zeros((n, num_samples)))
        accepted = rejection.Accepted(
            z=None,
            num_proposals=jnp.full(n, num_samples, jnp.int32),
            exhausted=jnp.zeros(n, bool),
            first=first,
            num_evaluated=jnp.zeros((), jnp.int32),
        )
        return jnp.full(n, t), jnp.zeros(n, jnp.int32), accepted

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
    draws = Draws(jnp.zeros(log_w.shape, int))
    weights, _, info = estimator.coefficients(log_w, jnp.zeros_like(log_w), draws, state, batch)
    return weights.model, weights.proposal, info.bound


class Impossible(relbo.AbstractModel):
    """A table of log p(x, z) as it stands, with -inf or NaN where the test wants it."""

    table: jax.Array

    def log_joint(self, x, z):
        return self.table[x, z]

    def sample(self, key):
        raise NotImplementedError


def threshold_at_rate(pair, x, support, rate, acceptance):
    """T at which the exact mean acceptance is `rate`."""

    def excess(t):
        return float(exact.log_z(pair, x, support, t, acceptance)) - np.log(rate)

    return scipy.optimize.brentq(excess, -200.0, 200.0, xtol=1e-12)
