"""Oracles shared by the tests."""

import jax
import jax.numpy as jnp
import numpy as np

import relbo
from relbo import exact, rejection
from relbo._types import Draws
from relbo.models.toy import TableModel, TableProposal

FALSE_FAILURE_RATE = 2e-5
"""Probability, over the choice of seeds, that a correct repository fails its statistical tests; seeds are fixed."""


def table_pair(seed=0, num_x=2, num_z=4, scale=1.5, dtype=jnp.float64):
    """A random enumerable pair: num_x observations, num_z latent states."""
    k1, k2 = jax.random.split(jax.random.key(seed))
    model = TableModel(scale * jax.random.normal(k1, (num_x, num_z), dtype))
    proposal = TableProposal(scale * jax.random.normal(k2, (num_x, num_z), dtype))
    return relbo.Pair(model, proposal)


def expected_gradient(estimator, pair, x, support, log_draw, num_samples, extra=lambda n: ()):
    """Expected score-family gradient, by summing over all tuples of draws; log_draw is each draw's log probability."""
    num_states = log_draw.shape[0]
    index = exact.tuples(num_states, num_samples)
    prob = jnp.exp(jnp.sum(log_draw[index], axis=-1))
    log_p = exact.log_joint(pair.model, x, support)
    log_q = exact.log_proposal(pair.proposal, x, support)
    z = jax.tree.map(lambda leaf: leaf[index], support)
    n = index.shape[0]
    batch = relbo.Batch(jax.tree.map(lambda v: jnp.broadcast_to(v, (n, *jnp.shape(v))), x), jnp.zeros(n, int))
    draws = Draws(z, extra(n))
    state = estimator.init(jax.random.key(0), pair, 1)
    weights, _, _ = estimator.coefficients(log_p[index], log_q[index], draws, state, batch)

    def total(c):  # the weight that each state's score gets in expectation
        flat = (prob[:, None] * c).reshape(-1)
        return jnp.zeros(num_states).at[index.reshape(-1)].add(flat)

    c_p, c_q = total(weights.model), total(weights.proposal)

    def surrogate(p):
        lp, lq = exact.log_joint(p.model, x, support), exact.log_proposal(p.proposal, x, support)
        return jnp.sum(c_p * lp + c_q * lq)

    return exact.gradient(surrogate, pair)


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
