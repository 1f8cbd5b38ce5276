"""Properties that every estimator of the registry must have."""

import dataclasses
import inspect
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import pair_for, small_batch, small_sbn, table_pair

import relbo
from relbo import estimators
from relbo.estimators import REGISTRY
from relbo.models.sbn import SBN

ALL = pytest.mark.parametrize("name", REGISTRY)


def structure(tree):
    return jax.tree.map(lambda v: (jnp.shape(v), jnp.asarray(v).dtype), tree)


def saturated(logit, dtype):
    """The small network with every bias at the given value."""
    pair = small_sbn(dtype=dtype)[0]

    def saturate(conditional):
        return eqx.tree_at(lambda c: c.output.bias, conditional, jnp.full_like(conditional.output.bias, logit))

    up = tuple(saturate(c) for c in pair.proposal.upward)
    down = tuple(saturate(c) for c in pair.model.downward)
    model = SBN(down, jnp.full_like(pair.model.prior, logit))
    return relbo.Pair(model, eqx.tree_at(lambda q: q.upward, pair.proposal, up))


def build(name):
    """The estimator with its defaults, but a threshold that costs no draws and accepts also at saturated logits."""
    cls = REGISTRY[name]
    fields = {field.name for field in dataclasses.fields(cls)}
    return cls(threshold=relbo.Fixed(1e3)) if "threshold" in fields else cls()


@ALL
@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.float64, marks=pytest.mark.slow)], ids=["float32", "float64"]
)
def test_one_compilation_kept_types_vmap_and_saturated_logits(name, dtype):
    estimator = build(name)
    pair, batch = pair_for(REGISTRY[name], dtype=dtype)
    state = estimator.init(jax.random.key(0), pair, 3)
    traces = []

    @jax.jit
    def many(keys, pair, state, batch):
        traces.append(None)
        return jax.vmap(lambda key: estimator.estimate(key, pair, state, batch))(keys)

    gradient, after, info = many(jax.random.split(jax.random.key(1), 3), pair, state, batch)
    last = jax.tree.map(lambda leaf: leaf[-1], after)
    assert structure(last) == structure(state)
    again, _, _ = many(jax.random.split(jax.random.key(2), 3), pair, last, batch)
    assert len(traces) == 1

    trainable = eqx.filter(pair, eqx.is_inexact_array)
    assert structure(jax.tree.map(lambda leaf: leaf[0], gradient)) == structure(trainable)
    assert info.bound.dtype == dtype
    assert info.bound.shape == info.valid.shape == info.num_proposals.shape == (3, 3)
    assert bool(jnp.all(info.valid)) and bool(jnp.all(jnp.isfinite(info.bound)))
    for leaves in (gradient, again):
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(leaves))
    # different keys give different gradients, in theta and in phi
    for part in (gradient.model, gradient.proposal):
        assert any(bool(jnp.any(leaf[0] != leaf[1])) for leaf in jax.tree.leaves(part))

    if isinstance(pair.model, SBN):
        for logit in (-50.0, 50.0):
            results = many(jax.random.split(jax.random.key(3), 3), saturated(logit, dtype), last, batch)
            assert not any(bool(jnp.any(jnp.isnan(leaf))) for leaf in jax.tree.leaves(results))
            assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(results[0]))
        assert len(traces) == 1


@ALL
def test_states_what_it_is(name):
    cls = REGISTRY[name]
    assert isinstance(cls.bound, relbo.Bound) and isinstance(cls.unbiased, bool)
    assert issubclass(cls.requires, relbo.AbstractProposal)
    module = inspect.getmodule(cls)
    author = cls.paper.split()[0]
    assert author in module.__doc__, "the module must cite the paper that the class names"
    assert f"{author}" in module.__doc__.split("Reference")[1]
    assert getattr(relbo, cls.__name__) is getattr(estimators, cls.__name__) is cls


@ALL
def test_refuses_a_proposal_that_cannot(name):
    cls = REGISTRY[name]
    if cls.requires is relbo.AbstractProposal:
        return
    with pytest.raises(ValueError, match=f"{cls.__name__} needs a proposal of type {cls.requires.__name__}"):
        cls().init(jax.random.key(0), table_pair(), 2)


def test_concrete_refuses_a_model_without_conditionals():
    pair, batch = small_sbn()[0], small_batch()
    pair = relbo.Pair(table_pair().model, pair.proposal)
    with pytest.raises(ValueError, match="Concrete needs a model of type AbstractBernoulliModel, got TableModel"):
        relbo.Concrete().estimate(jax.random.key(0), pair, relbo.types.EmptyState(), batch)


def test_files_are_small_and_all_are_registered():
    folder = pathlib.Path(estimators.__file__).parent
    names = {pathlib.Path(inspect.getfile(cls)).stem for cls in REGISTRY.values()}
    for path in folder.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 150, path.name
        assert path.stem in names or path.stem.startswith("_") or path.stem == "base", path.name


@pytest.mark.parametrize(
    "estimator", [relbo.NVIL(2), pytest.param(relbo.RELAX(width=3), marks=pytest.mark.slow)], ids=["nvil", "relax"]
)
def test_x_may_be_a_tree(estimator):
    """NVIL and RELAX feed x to networks: any tree of numbers will do."""

    class TreeModel(relbo.AbstractModel):
        inner: relbo.AbstractModel

        def log_joint(self, x, z):
            return self.inner.log_joint(jnp.concatenate([x["a"], x["b"]]), z)

        def sample(self, key):
            x, z = self.inner.sample(key)
            return {"a": x[:1], "b": x[1:]}, z

    class TreeProposal(relbo.AbstractBernoulliProposal):
        inner: relbo.AbstractBernoulliProposal

        def rollout(self, noise, x, unit):
            return self.inner.rollout(noise, jnp.concatenate([x["a"], x["b"]]), unit)

        def noise(self, key):
            return self.inner.noise(key)

    plain, batch = small_sbn()[0], small_batch(2)
    tree = relbo.Pair(TreeModel(plain.model), TreeProposal(plain.proposal))
    split = relbo.Batch({"a": batch.x[:, :1], "b": batch.x[:, 1:]}, batch.index)
    results = []
    for pair, rows in ((plain, batch), (tree, split)):
        state = estimator.init(jax.random.key(0), pair, 2)
        results.append(jax.jit(estimator.estimate)(jax.random.key(1), pair, state, rows)[0])
    for a, b in zip(jax.tree.leaves(results[0]), jax.tree.leaves(results[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
