"""One contract for every estimator of the registry."""

import dataclasses
import functools
import inspect
import pathlib
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import assert_trees_close, assert_trees_equal, pair_for, small_batch, small_sbn, table_pair

import relbo
from relbo import estimators
from relbo.bounds import AbstractBound
from relbo.estimators import REGISTRY
from relbo.models.sbn import SBN
from relbo.train.loop import init_state, make_step

NUM_DATA, ROWS = 7, jnp.asarray([5, 0, 6])
SLOW = pytest.mark.slow

every_estimator = pytest.mark.parametrize("name", REGISTRY)
RELATIVES = {"vrs-wake", "vrs-raw", "reinforce", "rebar"}
"""Estimators that share all but their weights with one of the others."""


def mostly_slow(fast):
    """What follows from any estimator being a pure function: one of them is enough for the fast suite."""
    return pytest.mark.parametrize(
        "name", [name if name == fast else pytest.param(name, marks=SLOW) for name in REGISTRY]
    )


@functools.cache
def case(name, dtype=jnp.float64):
    """The estimator, a pair and a batch that suit it, and its first state.

    Settings are the defaults, but for a threshold that is cheap to compile and accepts also at saturated logits.
    """
    cls = REGISTRY[name]
    fields = {field.name for field in dataclasses.fields(cls)}
    estimator = cls(threshold=relbo.Fixed(1e3)) if "threshold" in fields else cls()
    pair, batch = pair_for(cls, dtype=dtype)
    return estimator, pair, batch._replace(index=ROWS), estimator.init(jax.random.key(2), pair, NUM_DATA)


@functools.cache
def compiled(name, dtype=jnp.float64):
    """The estimates for three keys in one call, which may be traced but once."""
    estimator = case(name, dtype)[0]

    def three(keys, pair, state, batch):
        return jax.vmap(lambda key: estimator.estimate(key, pair, state, batch))(keys)

    return eqx.filter_jit(eqx.debug.assert_max_traces(three, max_traces=1))


def keys(seed):
    return jax.random.split(jax.random.key(seed), 3)


def signature(tree):
    return jax.tree.map(lambda v: (v.shape, v.dtype, v.weak_type), tree)


def pick(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def saturated(pair, logit):
    """The network with every bias at the given value."""

    def saturate(conditional):
        return eqx.tree_at(lambda c: c.output.bias, conditional, jnp.full_like(conditional.output.bias, logit))

    up = tuple(saturate(c) for c in pair.proposal.upward)
    down = tuple(saturate(c) for c in pair.model.downward)
    model = SBN(down, jnp.full_like(pair.model.prior, logit))
    return relbo.Pair(model, eqx.tree_at(lambda q: q.upward, pair.proposal, up))


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW if n in RELATIVES else []) for n in REGISTRY])
@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.float64, marks=SLOW)], ids=["float32", "float64"])
def test_one_compilation_kept_types_vmap_and_saturated_logits(name, dtype):
    _, pair, batch, state = case(name, dtype)
    many = compiled(name, dtype)
    first = many(keys(1), pair, state, batch)
    gradient, after, info = first
    last = pick(after, -1)
    assert signature(last) == signature(state)
    again = many(keys(2), pair, last, batch)  # a second trace would raise

    trainable = eqx.filter(pair, eqx.is_inexact_array)
    assert signature(pick(gradient, 0)) == signature(trainable)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(gradient))
    assert isinstance(info, relbo.Info) and info.bound.dtype == dtype
    assert info.bound.shape == info.valid.shape == info.num_proposals.shape == (3, 3)
    assert info.valid.dtype == bool and info.valid.all()
    assert jnp.issubdtype(info.num_proposals.dtype, jnp.integer) and (info.num_proposals >= 1).all()
    assert np.isfinite(info.bound).all()
    for leaf in jax.tree.leaves((gradient, again[0])):
        assert np.isfinite(leaf).all()

    # the key decides, in theta and in phi
    assert_trees_equal(many(keys(1), pair, state, batch), first)
    for part in (gradient.model, gradient.proposal):
        assert any(bool(jnp.any(leaf[0] != leaf[1])) for leaf in jax.tree.leaves(part))

    if isinstance(pair.model, SBN):
        for logit in (-50.0, 50.0):  # e^-50 is far below the resolution of a uniform
            results = many(keys(3), saturated(pair, logit), last, batch)
            assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(results))
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results[0]))


@mostly_slow("rloo")
def test_compiled_is_eager_and_scanned(name):
    estimator, pair, batch, state = case(name)
    several = keys(4)

    def step(state, key):
        gradient, state, info = estimator.estimate(key, pair, state, batch)
        return state, (gradient, info.bound, info.num_proposals)

    last, (gradients, values, counts) = jax.jit(lambda s: jax.lax.scan(step, s, several))(state)
    for i, key in enumerate(several):
        gradient, state, info = estimator.estimate(key, pair, state, batch)
        assert_trees_close(pick(gradients, i), gradient, rtol=1e-10)
        np.testing.assert_allclose(values[i], info.bound, rtol=1e-10)
        np.testing.assert_array_equal(counts[i], info.num_proposals)
    assert jax.tree.structure(last) == jax.tree.structure(state)
    for got, want in zip(jax.tree.leaves(last), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@mostly_slow("vrs")
def test_vmap_over_keys_is_one_key_at_a_time(name):
    estimator, pair, batch, state = case(name)
    many = compiled(name)(keys(6), pair, state, batch)
    step = eqx.filter_jit(estimator.estimate)
    for i, key in enumerate(keys(6)):
        gradient, _, info = step(key, pair, state, batch)
        np.testing.assert_array_equal(many[2].num_proposals[i], info.num_proposals)
        assert_trees_close(pick(many[0], i), gradient, rtol=1e-10)
        np.testing.assert_allclose(many[2].bound[i], info.bound, rtol=1e-10)


@pytest.mark.slow
@mostly_slow("vrs")
def test_grad_through_user_code_around_it(name):
    # what an outer framework does: a scalar whose derivative is our gradient, with estimate inside the traced function
    estimator, pair, batch, state = case(name)
    key = keys(6)[0]
    arrays, static = eqx.partition(pair, eqx.is_inexact_array)

    def loss(arrays):
        grads, _, info = estimator.estimate(key, eqx.combine(arrays, static), state, batch)
        held = jax.lax.stop_gradient((grads, arrays))
        inner = jax.tree.map(lambda g, p, p0: jnp.sum(g * (p - p0)), held[0], arrays, held[1])
        return -jax.lax.stop_gradient(info.bound.mean()) - sum(jax.tree.leaves(inner))

    got = jax.jit(jax.grad(loss))(arrays)
    want = pick(compiled(name)(keys(6), pair, state, batch)[0], 0)
    assert_trees_close(got, jax.tree.map(jnp.negative, want), rtol=1e-10)


@every_estimator
def test_the_trainers_step_does_not_call_the_host(name):
    # a program that does cannot be kept in the persistent compilation cache
    estimator = REGISTRY[name]()
    pair, batch = pair_for(REGISTRY[name])
    optimizer = optax.sgd(0.1)
    state = init_state(jax.random.key(0), pair, estimator, optimizer, 3)
    step = make_step(estimator, optimizer, lambda key, rows: rows)
    jaxpr = str(jax.make_jaxpr(step)(state, batch.x, batch.index))
    assert "callback" not in jaxpr
    assert "optimization_barrier" not in jaxpr


WITHOUT_ROWS = {"nvil": "learns for all rows", "rebar": "tunes for all rows", "relax": "tunes for all rows"}


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in WITHOUT_ROWS])
def test_rows_outside_the_dataset_are_refused(name):
    estimator, pair, batch, state = case(name)
    for rows, got in (([0, 1, NUM_DATA], "to 7"), ([-1, 2, 3], "from -1")):
        with pytest.raises(ValueError, match=rf"batch.index must lie in \[0, {NUM_DATA}\).*{got}"):
            estimator.estimate(jax.random.key(0), pair, state, batch._replace(index=jnp.asarray(rows)))


@every_estimator
def test_states_what_it_is(name):
    cls, estimator = REGISTRY[name], REGISTRY[name]()
    assert issubclass(cls, relbo.AbstractEstimator)
    assert isinstance(estimator.bound, AbstractBound) and isinstance(cls.unbiased, bool)
    assert isinstance(cls.needs, relbo.Needs)
    assert cls.__doc__ and ("Args:" in cls.__doc__ or "settings as `" in cls.__doc__)
    author = cls.paper.split()[0]
    cited = inspect.getmodule(cls).__doc__.split("Reference")
    assert len(cited) > 1 and author in cited[1], "the module must cite the paper that the class names"
    assert getattr(relbo, cls.__name__) is getattr(estimators, cls.__name__) is cls


@every_estimator
def test_is_a_value(name):
    # equal settings compare and hash alike, so that they can key a cache, and survive a pickle
    estimator = REGISTRY[name]()
    assert estimator == REGISTRY[name]() and hash(estimator) == hash(REGISTRY[name]())
    assert estimator != REGISTRY[name](num_samples=estimator.num_samples + 1)
    assert pickle.loads(pickle.dumps(estimator)) == estimator
    assert repr(estimator).startswith(type(estimator).__name__ + "(")


@pytest.mark.parametrize("name", [name for name, cls in REGISTRY.items() if cls.needs is not relbo.Needs.DRAWS])
def test_refuses_a_proposal_that_cannot(name):
    cls, batch = REGISTRY[name], relbo.Batch(jnp.zeros(1, int), jnp.zeros(1, int))
    message = f"{cls.__name__} needs {cls.needs.value}, got TableProposal"
    with pytest.raises(ValueError, match=message):
        cls().init(jax.random.key(0), table_pair(), 2)
    with pytest.raises(ValueError, match=message):
        cls().estimate(jax.random.key(0), table_pair(), case(name)[3], batch)


def test_concrete_refuses_a_model_without_conditionals():
    pair, batch = small_sbn()[0], small_batch()
    pair = relbo.Pair(table_pair().model, pair.proposal)
    with pytest.raises(ValueError, match="Concrete needs a model of type AbstractBernoulliModel, got TableModel"):
        relbo.Concrete().estimate(jax.random.key(0), pair, relbo.EmptyState.of(1), batch)


SHARED = {"__init__", "base", "score", "path", "bernoulli", "control", "learned", "records"}


def test_files_are_small_and_all_are_registered():
    files = {path.stem: path for path in pathlib.Path(estimators.__file__).parent.glob("*.py")}
    names = {pathlib.Path(inspect.getfile(cls)).stem for cls in REGISTRY.values()}
    assert set(files) == names | SHARED
    for stem, path in files.items():
        # the flagship holds formulas, settings, sampler and weights in one place
        assert len(path.read_text().splitlines()) <= (220 if stem == "vrs" else 150), stem


def test_at_most_four_bases():
    classes = {c for cls in REGISTRY.values() for c in cls.__mro__ if c.__module__.startswith("relbo.estimators")}
    bases = classes - set(REGISTRY.values())
    assert len(bases) <= 4, bases
    for cls in REGISTRY.values():  # abstract or final: what a base has written, nobody writes again
        for base in cls.__mro__[1:]:
            if base in bases:
                written = {n for n, f in vars(base).items() if inspect.isfunction(f) and not n.startswith("__")}
                concrete = {n for n in written if not getattr(vars(base)[n], "__isabstractmethod__", False)}
                assert not concrete & set(vars(cls)), (cls, base)


@pytest.mark.parametrize(
    "estimator", [relbo.NVIL(2), pytest.param(relbo.RELAX(width=3), marks=SLOW)], ids=["nvil", "relax"]
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
