"""How often a step is compiled, and what it is compiled to."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Together, assert_trees_close, table_pair

import relbo
from relbo.lanes import widths_for
from relbo.streams import split_streams
from relbo.view import view_of

SLOW = pytest.mark.slow


def batch_of(rows):
    return relbo.Batch(jnp.asarray(rows), jnp.asarray(rows))


def counted(function):
    """The compiled function and a list that grows by one with each trace."""
    traces = []

    def traced(*args):
        traces.append(None)
        return function(*args)

    return jax.jit(traced), traces


def cooling(step):
    """A schedule."""
    return jnp.where(step < 2, 0.9, 0.3)


@pytest.mark.parametrize(
    "threshold",
    [
        relbo.Rate(0.5, 10),
        *(
            pytest.param(threshold, marks=SLOW)
            for threshold in (
                relbo.Fixed(0.0),
                relbo.Fixed(0.0, warmup=2),
                relbo.Quantile(0.5, 10, 2),
                relbo.Quantile(0.5, 10, None),
                relbo.Rate(0.5, 10, warmup=2),
                relbo.Rate(cooling, 10),
            )
        ),
    ],
    ids=["rate", "fixed", "fixed-warmup", "quantile", "quantile-online", "rate-warmup", "rate-schedule"],
)
def test_one_compilation_per_shape(threshold):
    # through refreshes, first visits, other rows, other parameters and another acceptance rate
    estimator = relbo.VRS(2, threshold)
    step, traces = counted(estimator.estimate)
    state = estimator.init(jax.random.key(0), table_pair(0, num_x=6), 6)
    for i, rows in enumerate([[0, 1], [2, 3], [0, 5], [4, 5], [1, 1]]):
        _, state, _ = step(jax.random.key(i), table_pair(i, num_x=6), state, batch_of(rows))
    assert len(traces) == 1
    jax.eval_shape(step, jax.random.key(9), table_pair(0, num_x=6), state, batch_of([0, 1, 2]))
    assert len(traces) == 2


@pytest.mark.parametrize("threshold", [relbo.Rate(0.5, 10), relbo.Quantile(0.5, 10, None), relbo.Quantile(0.5, 10, 2)])
def test_a_step_with_all_rows_leaves_a_state_of_the_types_that_it_found(threshold):
    # a weakly typed array is another type to JAX, and its loss another compilation: that of every `jit(svi.update)`
    estimator, pair = relbo.VRS(2, threshold), table_pair(0)
    state = estimator.init(jax.random.key(0), pair, 2)
    assert not any(jnp.asarray(leaf).aval.weak_type for leaf in jax.tree.leaves(state))
    step, traces = counted(lambda key, state: estimator.estimate(key, pair, state, batch_of([0, 1]))[1])
    shapes = jax.eval_shape(step, jax.random.key(1), state)
    jax.eval_shape(step, jax.random.key(1), jax.eval_shape(step, jax.random.key(1), shapes))
    assert len(traces) == 1


SETTINGS = {
    "T": [relbo.VRS(2, threshold=t) for t in (8.0, -2.0)],
    "rate": [relbo.VRS(2, rate=rate) for rate in (0.9, 0.2)],
    "gamma": [relbo.VRS(2, relbo.Quantile(gamma, 10, 1, warmup=0)) for gamma in (0.9, 0.2)],
    "gamma, online": [relbo.VRS(2, relbo.Quantile(gamma, 10, None)) for gamma in (0.9, 0.2)],
    "sharpness": [relbo.VRS(2, relbo.Fixed(0.0), relbo.Soft(sharpness)) for sharpness in (20.0, 0.2)],
    "gains": [relbo.VRS(2, relbo.Rate(0.5, gains=relbo.Gains(lead=lead))) for lead in (0.2, 0.01)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["T", *(pytest.param(name, marks=SLOW) for name in list(SETTINGS)[1:])])
def test_numbers_are_traced(name):
    # other numbers are another input of the same program, and they matter
    pair, batch = table_pair(0), batch_of([0, 1])
    step, traces = counted(lambda e, k, s: e.estimate(k, pair, s, batch))
    results = []
    for estimator in SETTINGS[name]:
        state = estimator.init(jax.random.key(0), pair, 2)
        for key in jax.random.split(jax.random.key(1), 4):
            _, state, info = step(estimator, key, state)
        results.append((info.num_proposals, state, info))
    assert len(traces) == 1
    if name == "gains":
        leaves = zip(*(jax.tree.leaves(state) for _, state, _ in results), strict=True)
        assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in leaves)
    else:
        easy, hard = (info.extra.acceptance.mean() for _, _, info in results)
        assert easy > hard


@pytest.mark.slow
def test_a_curve_over_t_is_one_program():
    pair, batch = table_pair(0), batch_of([0, 1])
    key, t = jax.random.key(3), jnp.asarray([-1.0, 1.0, 4.0])

    def at(t):
        estimator = relbo.VRS(2, threshold=t)
        grads, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 2), batch)
        return grads, info.extra

    curve, traces = counted(jax.vmap(at))
    grads, extra = curve(t)
    assert len(traces) == 1
    assert np.all(np.diff(extra.acceptance.mean(axis=1)) > 0)
    np.testing.assert_array_equal(extra.threshold, np.broadcast_to(t[:, None], (3, 2)))
    one, traces = counted(at)
    for i in range(3):
        assert_trees_close(jax.tree.map(lambda leaf, i=i: leaf[i], grads), one(t[i])[0], rtol=1e-12)
    assert len(traces) == 1


def network():
    """13 rows of 11 numbers and 7 bits: shapes by which a product is known."""
    return relbo.sbn(jax.random.key(0), (7,), jnp.full(11, 0.3)), relbo.Batch(jnp.zeros((13, 11)), jnp.arange(13))


def primitives(jaxpr, inside=()):
    """(equation, names of the primitives that it lies inside of), for every equation at any depth."""
    for equation in jaxpr.eqns:
        yield equation, inside
        for value in jax.tree.leaves(equation.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner, (*inside, equation.primitive.name))


@functools.cache
def one_step(kind):
    """The program of one step of VRS with a threshold that draws, every equation of it."""
    pair, batch = network()
    pair = pair if kind == "rows" else Together(pair)
    # without thrown errors, as the trainer runs it, and 5 proposals for 3 draws: no two shapes agree by chance
    estimator = relbo.VRS(3, relbo.Fixed(0.0), num_proposals=5, throw=False)
    state = estimator.init(jax.random.key(0), pair, 13)
    with relbo._check.collected():
        jaxpr = jax.make_jaxpr(lambda k, s: estimator.estimate(k, pair, s, batch)[0])(jax.random.key(0), state)
    return list(primitives(jaxpr.jaxpr))


@pytest.mark.parametrize("kind", ["rows", "together"])
def test_no_barrier_and_no_callback(kind):
    names = {equation.primitive.name for equation, _ in one_step(kind)}
    assert "while" in names and "dot_general" in names, "the walk sees the program"
    assert not any("callback" in name or "barrier" in name for name in names)


def is_product(equation):
    """A product of two matrices; sums are products with a vector of ones."""
    return equation.primitive.name == "dot_general" and all(v.aval.ndim >= 2 for v in equation.invars)


def products(kind, *, looped):
    """Shapes of what the matrix products of the program make, those in or out of its loops."""
    return [
        equation.outvars[0].aval.shape
        for equation, inside in one_step(kind)
        if is_product(equation) and ("while" in inside) == looped
    ]


def test_the_first_round_is_evaluated_once():
    # outside of the loops: x encoded to draw, x encoded to score, the draws decoded, and the two pull-backs to weights
    once = sorted(products("rows", looped=False))
    decoded = [shape for shape in once if 11 in shape and 5 in shape and 13 in shape]
    assert len(decoded) == 1, once


def test_x_is_encoded_once_for_all_late_rounds():
    # late rounds take the logits of each row as they are: only the gradient of late draws sees the encoder again
    in_rounds = [
        equation.outvars[0].aval.shape
        for equation, inside in one_step("rows")
        if is_product(equation) and "while" in inside and equation.outvars[0].aval.shape[0] in widths_for(13, 3)
    ]
    assert in_rounds == [(width, 11) for width in widths_for(13, 3)], in_rounds


@pytest.fixture
def optimised():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_first_round_is_evaluated_once_in_what_the_compiler_makes():
    pair, batch = network()
    estimator = relbo.VRS(3, relbo.Fixed(0.0), num_proposals=5, throw=False)
    state = estimator.init(jax.random.key(0), pair, 13)
    step = jax.jit(lambda k, p, s: estimator.estimate(k, p, s, batch)[0])
    lines = step.lower(jax.random.key(0), pair, state).compile().as_text().splitlines()
    made = [line.split(" dot(")[0] for line in lines if " dot(" in line]
    assert sum("[65,11]" in shape or "[13,5,11]" in shape for shape in made) == 1, made


def test_nothing_is_drawn_where_no_threshold_is_due():
    # the draws behind thresholds lie in a branch of their own
    pair = network()[0]
    estimator = relbo.VRS(2, relbo.Quantile(0.5, 17, 2))
    batch = relbo.Batch(jnp.zeros((13, 11)), jnp.arange(13))
    state = estimator.init(jax.random.key(0), pair, 13)

    def draw(key, state):
        draws, _ = estimator.draw(split_streams(key), view_of(pair, batch.x), state, batch)
        return draws.log_p

    found = [
        inside
        for equation, inside in primitives(jax.make_jaxpr(draw)(jax.random.key(0), state).jaxpr)
        if is_product(equation) and 17 in equation.outvars[0].aval.shape
    ]
    assert found and all("cond" in inside for inside in found)


def test_settings_are_values():
    # equal settings compare and hash alike, so that they can key a cache; repr shows them
    assert relbo.VRS(3, relbo.Rate(0.4)) == relbo.VRS(3, rate=0.4) == relbo.VRS(3, "rate:0.4")
    assert relbo.VRS(3, relbo.Rate(0.4)) != relbo.VRS(3, relbo.Rate(0.5))
    assert relbo.VRS(3, relbo.Rate(0.4)) != relbo.VRS(3, relbo.Rate(0.4), num_proposals=4)
    assert "0.4" in repr(relbo.VRS(3, relbo.Rate(0.4)))
    leaves = jax.tree.leaves(relbo.VRS(3, relbo.Fixed(1.5), relbo.Soft(2.5)))
    assert 1.5 in leaves and 2.5 in leaves and 3 not in leaves
    assert eqx.is_array(jax.tree.leaves(relbo.VRS(3, threshold=jnp.asarray(1.0)))[0])
