"""Bernoulli sites of a guide as layers: expected gradients against enumeration, numbers against native pairs, refusals.

ARM and DisARM are functions of uniform noise that are piecewise linear in it. The programs' logits are 0 and +-log 3,
so that a grid of 4 cells for each unit integrates them exactly. The other estimators are compared with themselves on a
pair that was written natively, whose own expectations tests/estimators checks; and, like the rest, by their means over
many keys: |z| < 6 in some 12 correlated numbers, a false-failure rate of 3e-8 a test over the choice of seeds.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_layers as programs
import pytest
from helpers import assert_trees_close
from numpyro.contrib.control_flow import scan
from numpyro_programs import quick

import relbo
from relbo import units
from relbo.numpyro import SVI, EstimatorELBO
from relbo.numpyro.layers import by_layers, of_program
from relbo.numpyro.objective import STATE_SITE
from relbo.numpyro.pair import build_pair
from relbo.numpyro.program import Program
from relbo.types import Batch
from relbo.view import RowView

PROGRAMS = {
    "flat": (programs.flat_model, programs.flat_guide, programs.FLAT_PARAMS, programs.FLAT_SHAPES),
    "deep": (programs.deep_model, programs.deep_guide, programs.DEEP_PARAMS, programs.DEEP_SHAPES),
    "shared": (programs.both_model, programs.both_guide, programs.BOTH_PARAMS, programs.BOTH_SHAPES),
    "one-row": (programs.one_model, programs.one_guide, programs.ONE_PARAMS, programs.ONE_SHAPES),
}


def exact(name):
    model, guide, params, shapes = PROGRAMS[name]
    bound = jax.value_and_grad(lambda p: programs.exact_elbo(p, model, guide, shapes, programs.X))
    return quick(bound)(params)


def grid(view, key, num_draws):
    """In place of `RowView.noise`: the midpoints of all cells."""
    widths = [layer.shape[0] for layer in jax.eval_shape(view.pair.proposal.noise, key)]
    points = np.array(list(itertools.product((np.arange(4) + 0.5) / 4, repeat=sum(widths))))
    assert len(points) == num_draws
    points = jnp.broadcast_to(points, (view.num_rows, *points.shape))
    return tuple(jnp.split(points, np.cumsum(widths)[:-1], axis=-1))


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (relbo.DisARM, "flat"),
        pytest.param(relbo.ARM, "deep", marks=pytest.mark.slow),
        pytest.param(relbo.ARM, "flat", marks=pytest.mark.slow),
        pytest.param(relbo.DisARM, "deep", marks=pytest.mark.slow),
    ],
)
def test_expected_gradient_by_enumeration(estimator, name, monkeypatch):
    monkeypatch.setattr(RowView, "noise", grid)
    model, guide, params, _ = PROGRAMS[name]
    loss = EstimatorELBO(estimator(4**3))
    found = quick(jax.value_and_grad(lambda p: loss.loss(jax.random.key(0), p, model, guide, programs.X)))(params)
    value, gradient = exact(name)
    assert_trees_close(found, (-value, jax.tree.map(jnp.negative, gradient)), rtol=1e-10)


class NativeModel(relbo.AbstractModel):
    """`programs.deep_model` for one row."""

    params: dict

    def log_joint(self, x, z):
        h1, h2 = z
        log_p = units.log_bernoulli_layers((h2, h1), (self.params["top"], h2[0] * self.params["down"]))
        return log_p + jnp.sum(jax.scipy.stats.norm.logpdf(x, h1 @ self.params["out"]))

    def sample(self, key):
        return jnp.zeros(2), None


class NativeGuide(relbo.AbstractBernoulliProposal):
    """`programs.deep_guide` for one row."""

    params: dict

    def noise(self, key):
        keys = jax.random.split(key)
        return tuple(units.uniform_noise(k, (n,), jnp.result_type(float)) for k, n in zip(keys, (2, 1), strict=True))

    def rollout(self, noise, x, unit):
        h1 = unit(self.params["first"], noise[0])
        logits = self.params["up"] @ h1 + self.params["up_bias"]
        return (h1, unit(logits, noise[1])), (self.params["first"], logits)


def layered(estimator, name="deep", params=None, **kwargs):
    model, guide, values, _ = PROGRAMS[name]
    values = values if params is None else params
    program = Program(model, guide, (programs.X,), kwargs, jax.random.key(0), values)
    return by_layers(build_pair(program, values, {}, 1), type(estimator))


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [relbo.REBAR(1), relbo.RELAX(2, width=3), relbo.MuProp(2), relbo.StraightThrough(2), relbo.DisARM(2)],
    ids=lambda e: type(e).__name__,
)
def test_same_numbers_as_a_pair_that_was_written_natively(estimator):
    key, batch = jax.random.key(3), Batch(programs.X, jnp.arange(3))

    def of(pair):
        state = estimator.init(key, pair, 3)
        gradient, state, info = estimator.estimate(key, pair, state, batch)
        return gradient, state, info.bound

    def program(params):
        gradient, state, bound = of(layered(estimator, params=params))
        return of_program(gradient).params, state, bound

    def native(params):
        gradient, state, bound = of(relbo.Pair(NativeModel(params), NativeGuide(params)))
        return jax.tree.map(jnp.add, gradient.model.params, gradient.proposal.params), state, bound

    assert_trees_close(quick(program)(programs.DEEP_PARAMS), quick(native)(programs.DEEP_PARAMS), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        *[(relbo.DisARM(1), name) for name in PROGRAMS],
        (relbo.REBAR(1), "shared"),
        (relbo.REBAR(1), "one-row"),
        (relbo.MuProp(1), "flat"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_mean_gradient_is_that_of_the_program(estimator, name):
    model, guide, params, _ = PROGRAMS[name]
    loss = EstimatorELBO(estimator, num_shared=3 if name == "shared" else 1)
    kwargs = {} if name == "one-row" else {"subsample_size": 2}
    state = loss.init_state(jax.random.key(1), params, model, guide, programs.X, **kwargs)

    def one(key):
        values = {} if isinstance(state, relbo.EmptyState) else {STATE_SITE: state}
        return jax.value_and_grad(
            lambda p: loss.loss_with_mutable_state(key, {**p, **values}, model, guide, programs.X, **kwargs)["loss"]
        )(params)

    found = quick(jax.vmap(one))(jax.random.split(jax.random.key(7), 4_000))
    value, gradient = exact(name)
    wanted = (-value, jax.tree.map(jnp.negative, gradient))
    for actual, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        error = np.std(actual, axis=0) / np.sqrt(len(actual))
        z = (np.mean(actual, axis=0) - expected) / np.maximum(error, 1e-12)
        assert np.abs(z).max() < 6, (z, np.mean(actual, axis=0), expected)


def refuse(estimator, model, guide, message, params=None):
    with pytest.raises(ValueError, match=message):
        EstimatorELBO(estimator).loss(jax.random.key(0), params or {}, model, guide, programs.X)


def rows_of(name, fn):
    def program(x):
        with numpyro.plate("rows", 3):
            z = numpyro.sample(name, fn)
            numpyro.sample("y", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(z[..., None], 1.0).to_event(1), obs=x)

    return program, numpyro.handlers.block(program, hide=["x"])


def test_what_the_program_does_not_allow_is_said_in_one_sentence():
    model, guide = rows_of("z", dist.Categorical(jnp.full(3, 1 / 3)))
    wanted = "DisARM needs Bernoulli layers: .* but 'z' is CategoricalProbs; 'y' is Normal. Choose an estimator"
    refuse(relbo.DisARM(1), model, guide, wanted)

    masked = numpyro.handlers.mask(programs.deep_guide, mask=jnp.array([True, True, False]))
    refuse(
        relbo.ARM(1), programs.deep_model, masked, r"but \['h1', 'h2'\] are masked in the guide", programs.DEEP_PARAMS
    )
    refuse(relbo.Concrete(1), programs.deep_model, programs.deep_guide, "Concrete needs a model", programs.DEEP_PARAMS)

    def chain(x, draw=True):
        def step(h, _):
            h = numpyro.sample("h", dist.Bernoulli(logits=0.3 * h))
            return h.astype(float), None

        h, _ = scan(step, 0.0, None, length=3)
        if draw:
            numpyro.sample("x", dist.Normal(h, 1.0), obs=x[0, 0])

    refuse(relbo.DisARM(1), chain, lambda x: chain(x, draw=False), r"but \['h'\] are drawn inside of control flow")


def table(x, draw=True):
    with numpyro.plate("rows", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        if draw:
            numpyro.sample("x", dist.Normal(jnp.array([0.0, 1.0])[z][:, None], 1.0).to_event(1), obs=x)


def test_bits_are_integers_for_estimators_that_never_relax_them():
    refuse(relbo.REBAR(1), table, lambda x: table(x, draw=False), "between 0 and 1, .* Choose DisARM or ARM")
    loss = EstimatorELBO(relbo.DisARM(1))
    guide = lambda x: table(x, draw=False)  # noqa: E731
    assert jax.eval_shape(lambda key: loss.loss(key, {}, table, guide, programs.X), jax.random.key(0)).shape == ()


@pytest.mark.slow
def test_controls_are_kept_by_svi_and_training_raises_the_bound():
    adam, wanted = numpyro.optim.Adam(0.03), exact("deep")[0]
    svi = SVI(programs.deep_model, programs.deep_guide, adam, EstimatorELBO(relbo.REBAR(2, learning_rate=0.05)))
    result = svi.run(jax.random.key(0), 300, programs.X, subsample_size=2, progress_bar=False)
    controls = result.state.mutable_state[STATE_SITE].controls
    assert not np.allclose(controls.scale, 1.0)
    bound = programs.exact_elbo(result.params, *PROGRAMS["deep"][:2], programs.DEEP_SHAPES, programs.X)
    assert bound > wanted + 0.5, (bound, wanted)
    plain = numpyro.infer.SVI(programs.deep_model, programs.deep_guide, adam, EstimatorELBO(relbo.REBAR(2)))
    with pytest.raises(ValueError, match="REBAR remembers things between steps"):
        plain.run(jax.random.key(0), 2, programs.X, progress_bar=False)
    plain = numpyro.infer.SVI(programs.deep_model, programs.deep_guide, adam, EstimatorELBO(relbo.DisARM(2)))
    assert plain.run(jax.random.key(0), 2, programs.X, progress_bar=False).losses.shape == (2,)
