"""Proposals that draw what the model holds to be impossible, log p = -inf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, expected_gradient, small_batch, small_sbn

import relbo
from relbo import exact
from relbo.estimators import (
    ARM,
    IWAE,
    NVIL,
    REBAR,
    REINFORCE,
    RLOO,
    RWS,
    VIMCO,
    VRS,
    DisARM,
    MuProp,
    Pathwise,
    VRSRaw,
    WakeSleep,
)
from relbo.models.toy import TableModel, TableProposal

TABLE = jnp.asarray([[-1.0, -jnp.inf, -2.5, -jnp.inf, -0.3]])
PAIR = relbo.Pair(TableModel(TABLE, normalise=False), TableProposal(jnp.asarray([[0.3, 0.2, -0.4, -0.9, 0.1]])))
X, SUPPORT = jnp.asarray(0), jnp.arange(5)


class Edge(relbo.AbstractModel):
    """Another model whose first units are never all on, or whose coordinate lies in (-1, 1)."""

    inner: relbo.AbstractModel

    def log_joint(self, x, z):
        first = jax.tree.leaves(z)[0]
        return jnp.where(jnp.min(jnp.abs(first)) < 0.999, self.inner.log_joint(x, z), -jnp.inf)

    def sample(self, key):
        raise AssertionError("not used")


@pytest.mark.parametrize("estimator", [IWAE(2), VIMCO(3), VIMCO(3, "arithmetic")], ids=repr)
def test_of_the_tuples_with_a_possible_draw_the_gradient_is_exact(estimator):
    k = estimator.num_samples
    index = exact.tuples(5, k)
    index = index[jnp.any(jnp.isfinite(TABLE[0][index]), axis=1)]

    def part_of_the_bound(pair):
        log_p, log_q = exact.log_joint(pair.model, X, SUPPORT), exact.log_proposal(pair.proposal, X, SUPPORT)
        bound = jax.nn.logsumexp((log_p - log_q)[index], axis=1) - jnp.log(1.0 * k)
        return jnp.sum(jnp.exp(jnp.sum(log_q[index], axis=1)) * bound)

    log_q = exact.log_proposal(PAIR.proposal, X, SUPPORT)
    prob = jnp.exp(jnp.sum(log_q[index], axis=1))
    got = expected_gradient(estimator, PAIR, X, SUPPORT, log_q, k, index=index, prob=prob)
    assert_trees_close(got, exact.gradient(part_of_the_bound, PAIR))


def check(estimator, pair, batch):
    """Rows that are left out, and finite numbers for all others, through two steps."""
    state = estimator.init(jax.random.key(0), pair, len(batch.index))
    for key in jax.random.split(jax.random.key(1)):
        gradient, state, info = jax.jit(estimator.estimate)(key, pair, state, batch)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
        assert 0 < info.valid.sum() < info.valid.size
        np.testing.assert_array_equal(info.bound > -np.inf, info.valid)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, float))


DISCRETE = [RLOO(3), VIMCO(2), NVIL(2), WakeSleep(2), VRSRaw(2, 0.0, num_proposals=3), REINFORCE(2), IWAE(2), RWS(2)]
CONTINUOUS = [Pathwise(2)]
BITS = [DisARM(1), REBAR(1), MuProp(1), ARM(1)]
FAST = [*DISCRETE[:5], Pathwise(2), DisARM(1), REBAR(1)]
SLOW = [pytest.param(e, marks=pytest.mark.slow) for e in (*DISCRETE, *CONTINUOUS, *BITS) if e not in FAST]


@pytest.mark.parametrize("estimator", [*FAST, *SLOW], ids=lambda estimator: type(estimator).__name__)
def test_a_row_without_a_finite_bound_is_left_out(estimator):
    if estimator in DISCRETE:
        pair, batch = PAIR, relbo.Batch(jnp.zeros(40, int), jnp.arange(40))
    else:
        pair = small_sbn()[0] if estimator in BITS else relbo.linear_gaussian(jax.random.key(11), 1, jnp.full(4, 0.4))
        pair, batch = relbo.Pair(Edge(pair.model), pair.proposal), small_batch(40)
    check(estimator, pair, batch)


def test_nan_among_the_draws_behind_t_is_named():
    # a state of 1 in 60, which 20 draws for T see more often than the two that a row begins with
    logits = jnp.log(jnp.asarray([[59.0, 1.0]]))
    pair = relbo.Pair(TableModel(jnp.asarray([[0.0, jnp.nan]]), normalise=False), TableProposal(logits))
    batch = relbo.Batch(jnp.zeros(2, int), jnp.arange(2))
    estimator = VRS(2, rate=0.5)
    state = estimator.init(jax.random.key(0), pair, 2)
    step = jax.jit(estimator.estimate)
    for key in jax.random.split(jax.random.key(2), 3):  # some of which see it
        try:
            _, state, info = step(key, pair, state, batch)
        except Exception as error:
            assert "NaN at one of the draws behind T" in str(error)
            return
    raise AssertionError("not refused")


def test_nan_is_not_taken_for_an_impossible_draw():
    pair = relbo.Pair(TableModel(TABLE.at[0, 0].set(jnp.nan), normalise=False), PAIR.proposal)
    batch = relbo.Batch(jnp.zeros(40, int), jnp.arange(40))
    for estimator in (RLOO(3), VIMCO(3)):
        _, _, info = estimator.estimate(jax.random.key(1), pair, estimator.init(jax.random.key(0), pair, 40), batch)
        assert (jnp.isnan(info.bound) & info.valid).any()  # which ends a training
