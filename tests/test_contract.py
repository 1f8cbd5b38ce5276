"""One contract for every estimator of the registry."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, assert_trees_equal

import relbo
from relbo.estimators import REGISTRY
from relbo.models.gaussian import linear_gaussian
from relbo.models.sbn import SBN

NUM_DATA, ROWS = 7, 3


@functools.cache
def case(name, dtype=jnp.float64):
    """A pair that satisfies the estimator's requirement, and a batch."""
    mean = jnp.asarray([0.2, 0.5, 0.7, 0.4], dtype)
    pair = relbo.sbn(jax.random.key(0), (3, 2), mean)
    if not isinstance(pair.proposal, REGISTRY[name].requires):
        pair = linear_gaussian(jax.random.key(0), 2, mean)
    x = jax.random.bernoulli(jax.random.key(1), 0.5, (ROWS, 4)).astype(dtype)
    return pair, relbo.Batch(x, jnp.asarray([5, 0, 6]))


@functools.cache
def compiled(name, dtype=jnp.float64):
    """The estimator with its default settings, its first state and its compiled step."""
    estimator = REGISTRY[name]()
    state = estimator.init(jax.random.key(2), case(name, dtype)[0], NUM_DATA)
    return estimator, state, eqx.filter_jit(eqx.debug.assert_max_traces(estimator.estimate, max_traces=1))


# each case compiles a step; `estimators/test_catalogue.py` puts the same questions to all in one compilation each
CORE = ("vrs", "rloo", "vimco")
every_estimator = pytest.mark.parametrize(
    "name", [name if name in CORE else pytest.param(name, marks=pytest.mark.slow) for name in REGISTRY]
)
both_types = pytest.mark.parametrize(
    "dtype", [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.float64], ids=["float32", "float64"]
)


@every_estimator
def test_class_facts(name):
    cls = REGISTRY[name]
    assert isinstance(cls.bound, relbo.Bound)
    assert isinstance(cls.unbiased, bool)
    assert issubclass(cls.requires, relbo.AbstractProposal)
    assert isinstance(cls.paper, str) and cls.paper
    assert cls.__doc__ and ("Args:" in cls.__doc__ or "settings as `" in cls.__doc__)
    assert issubclass(cls, relbo.AbstractEstimator)


@both_types
@every_estimator
def test_types_dtypes_and_one_compilation(name, dtype):
    pair, batch = case(name, dtype)
    _, state, step = compiled(name, dtype)
    grads = info = None
    for key in jax.random.split(jax.random.key(3), 3):  # a second trace would raise
        before = state
        grads, state, info = step(key, pair, state, batch)
        assert jax.tree.structure(state) == jax.tree.structure(before)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
            assert (old.shape, old.dtype, old.weak_type) == (new.shape, new.dtype, new.weak_type)

    assert isinstance(grads, relbo.Pair) and isinstance(info, relbo.Info)
    assert jax.tree.structure(grads) == jax.tree.structure(eqx.filter(pair, eqx.is_inexact_array))
    for g, p in zip(jax.tree.leaves(grads), jax.tree.leaves(pair), strict=True):
        assert g.shape == p.shape and g.dtype == p.dtype == dtype
        assert np.isfinite(g).all()
    assert info.bound.shape == info.valid.shape == info.num_proposals.shape == (ROWS,)
    assert info.bound.dtype == dtype
    assert info.valid.dtype == bool and info.valid.all()
    assert jnp.issubdtype(info.num_proposals.dtype, jnp.integer) and (info.num_proposals >= 1).all()
    assert np.isfinite(info.bound).all() and (info.bound < 0).all()


@every_estimator
def test_the_key_decides(name):
    pair, batch = case(name)
    _, state, step = compiled(name)
    first, again, other = (step(jax.random.key(k), pair, state, batch) for k in (4, 4, 5))
    assert_trees_equal(first, again)
    leaves = zip(jax.tree.leaves(first[0]), jax.tree.leaves(other[0]), strict=True)
    assert any((a != b).any() for a, b in leaves)


@pytest.mark.slow
@every_estimator
def test_vmap_over_keys(name):
    pair, batch = case(name)
    estimator, state, step = compiled(name)
    keys = jax.random.split(jax.random.key(6), 3)
    grads, states, info = eqx.filter_jit(lambda ks: jax.vmap(lambda k: estimator.estimate(k, pair, state, batch))(ks))(
        keys
    )
    for i, key in enumerate(keys):
        one = step(key, pair, state, batch)
        many = jax.tree.map(lambda leaf, i=i: leaf[i], (grads, states, info))
        np.testing.assert_array_equal(many[2].num_proposals, one[2].num_proposals)
        assert_trees_close(many[0], one[0], rtol=1e-10)
        np.testing.assert_allclose(many[2].bound, one[2].bound, rtol=1e-10)


@every_estimator
def test_grad_through_user_code_around_it(name):
    # what an outer framework does: a scalar whose derivative is our gradient, with estimate inside the traced function
    pair, batch = case(name)
    estimator, state, step = compiled(name)
    key = jax.random.key(7)
    arrays, static = eqx.partition(pair, eqx.is_inexact_array)

    def loss(arrays):
        grads, _, info = estimator.estimate(key, eqx.combine(arrays, static), state, batch)
        held = jax.lax.stop_gradient((grads, arrays))
        inner = jax.tree.map(lambda g, p, p0: jnp.sum(g * (p - p0)), held[0], arrays, held[1])
        return -jax.lax.stop_gradient(info.bound.mean()) - sum(jax.tree.leaves(inner))

    got = jax.jit(jax.grad(loss))(arrays)
    want = step(key, pair, state, batch)[0]
    assert_trees_close(got, jax.tree.map(jnp.negative, want), rtol=1e-10)


@every_estimator
def test_scan(name):
    pair, batch = case(name)
    estimator, state, step = compiled(name)
    keys = jax.random.split(jax.random.key(8), 3)

    def body(state, key):
        grads, state, _ = estimator.estimate(key, pair, state, batch)
        return state, grads

    _, grads = jax.jit(lambda s: jax.lax.scan(body, s, keys))(state)
    for i, key in enumerate(keys):
        one, state, _ = step(key, pair, state, batch)
        assert_trees_close(jax.tree.map(lambda leaf, i=i: leaf[i], grads), one, rtol=1e-10)


@both_types
@every_estimator
def test_finite_at_saturated_logits(name, dtype):
    # every unit of the model and of the proposal at +-50: e^-50 is far below the resolution of a uniform
    pair, batch = case(name, dtype)
    if not isinstance(pair.model, SBN):
        pytest.skip("has no logits")
    signs = jnp.where(jnp.arange(8) % 2 == 0, 50.0, -50.0).astype(dtype)

    def saturate(leaf):
        if leaf.ndim == 1:
            return signs[: leaf.shape[0]]
        return jnp.zeros_like(leaf)

    extreme = jax.tree.map(saturate, pair)
    extreme = eqx.tree_at(lambda p: p.proposal.data_mean, extreme, pair.proposal.data_mean)
    _, state, step = compiled(name, dtype)
    for key in jax.random.split(jax.random.key(9), 2):
        grads, state, info = step(key, extreme, state, batch)
        assert np.isfinite(info.bound[info.valid]).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
