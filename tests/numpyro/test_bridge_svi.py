"""The adapter inside SVI: training, state, autoguides, networks."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_programs as programs
import pytest
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoBNAFNormal, AutoMultivariateNormal, AutoNormal

import relbo
from relbo.estimators import REGISTRY
from relbo.numpyro import RLOO, SVI, VIMCO, EstimatorELBO, ResampledELBO
from relbo.numpyro.objective import STATE_SITE

OPTIM = numpyro.optim.Adam(0.05)


def make_svi(loss, kind=SVI):
    return kind(programs.model, programs.guide, OPTIM, loss)


def run(svi, num_steps, *args, **kwargs):
    """`svi.run`, compiled in a hurry."""
    return programs.quick(lambda key: svi.run(key, num_steps, *args, progress_bar=False, **kwargs))(jax.random.key(0))


def thresholds(state):
    return state.mutable_state[STATE_SITE].thresholds


def test_training_raises_the_bound_with_numpyros_own_svi():
    svi = make_svi(VIMCO(4), numpyro.infer.SVI)
    far = {"means": jnp.array([5.0, -5.0, 3.0])}
    result = run(svi, 300, programs.X, init_params=far)
    assert jnp.mean(result.losses[-50:]) < jnp.mean(result.losses[:20]) - 3.0
    assert result.state.mutable_state is None


@pytest.mark.slow
def test_thresholds_survive_run_update_and_a_restored_state():
    loss = ResampledELBO(rate=0.5, num_samples=2, num_draws=20, warmup=0)
    svi = make_svi(loss)
    start = svi.init(jax.random.key(0), programs.X, subsample_size=2)
    assert thresholds(start).value.shape == (programs.NUM_ROWS,) and jnp.all(jnp.isnan(thresholds(start).value))

    update = programs.quick(lambda state: svi.update(state, programs.X, subsample_size=2)[0])
    middle = update(update(update(start)))
    assert thresholds(middle).step == 3
    visited = ~jnp.isnan(thresholds(middle).value)
    assert 2 <= jnp.sum(visited) <= programs.NUM_ROWS

    ran = run(svi, 3, programs.X, subsample_size=2, init_state=start).state
    restored = pickle.loads(pickle.dumps(jax.device_get(middle._replace(rng_key=jax.random.key_data(middle.rng_key)))))
    restored = restored._replace(rng_key=jax.random.wrap_key_data(jnp.asarray(restored.rng_key)))
    for state in (ran, restored):
        np.testing.assert_allclose(thresholds(state).value, thresholds(middle).value, rtol=1e-12)
    # what happens next is the same as without the interruption
    for actual, expected in zip(jax.tree.leaves(update(restored)), jax.tree.leaves(update(middle)), strict=True):
        if not jnp.issubdtype(jnp.asarray(actual).dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
def test_the_quantile_is_plain_until_its_first_refresh():
    svi = make_svi(ResampledELBO(2, threshold="quantile:0.5", num_draws=20, every=2, warmup=2))
    state = svi.init(jax.random.key(0), programs.X)
    update = programs.quick(lambda state: svi.update(state, programs.X)[0])
    state = update(update(state))
    assert jnp.all(jnp.isposinf(thresholds(state).value))
    assert jnp.all(jnp.isfinite(thresholds(update(state)).value))


@pytest.mark.slow
def test_evaluate_uses_the_thresholds_of_the_state_and_plain_svi_solves_its_own():
    loss = ResampledELBO(rate=0.3, num_samples=50, num_draws=200, warmup=0)
    ours, plain = make_svi(loss), make_svi(loss, numpyro.infer.SVI)
    state = programs.quick(lambda s: ours.update(s, programs.X)[0])(ours.init(jax.random.key(0), programs.X))
    plain.init(jax.random.key(0), programs.X)
    mine = programs.quick(lambda s: ours.evaluate(s, programs.X))(state)
    theirs = programs.quick(lambda s: plain.evaluate(s, programs.X))(state._replace(mutable_state=None))
    np.testing.assert_allclose(mine, theirs, atol=0.5)
    arguments = (ours.get_params(state), programs.model, programs.guide, programs.X)
    info = programs.quick(lambda key: loss.info(key, *arguments))(jax.random.key(1))
    assert jnp.all(info.valid) and info.extra.acceptance.shape == (programs.NUM_ROWS,)
    np.testing.assert_allclose(jnp.mean(info.extra.acceptance), 0.3, atol=0.12)


def test_forward_and_reverse_mode_agree_and_old_keys_work():
    svi = make_svi(RLOO(2))
    state = svi.init(jax.random.PRNGKey(0), programs.X)
    update = svi.update
    forward = programs.quick(lambda s: update(s, programs.X, forward_mode_differentiation=True)[0])(state)
    reverse = programs.quick(lambda s: update(s, programs.X)[0])(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), forward.optim_state, reverse.optim_state)


def test_constrained_parameters_and_a_delta_for_what_all_rows_share():
    def model(x):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("data", 4):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("x", dist.Normal(2.0 * z, scale), obs=x)

    def guide(x):
        numpyro.sample("scale", dist.Delta(numpyro.param("s", 1.0, constraint=constraints.positive)))
        with numpyro.plate("data", 4):
            p = numpyro.param("p", 0.5 * jnp.ones(4), constraint=constraints.unit_interval, event_dim=0)
            numpyro.sample("z", dist.Bernoulli(p))

    result = run(SVI(model, guide, OPTIM, VIMCO(4)), 200, programs.X)
    assert jnp.all((result.params["p"] > 0) & (result.params["p"] < 1))
    assert result.params["p"][0] < 0.2 and result.params["p"][3] > 0.8  # x = -1 and x = 2
    assert jnp.mean(result.losses[-50:]) < jnp.mean(result.losses[:20])


def regression(x, y=None):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, s), obs=y)


REGRESSORS = jax.random.normal(jax.random.key(5), (12, 2))
RESPONSES = REGRESSORS @ jnp.array([1.0, -0.5]) + 0.3


def test_plain_svi_says_once_that_it_forgets_thresholds(caplog):
    plain = make_svi(ResampledELBO(rate=0.3, num_samples=2), numpyro.infer.SVI)
    state = plain.init(jax.random.key(0), programs.X)
    for _ in range(2):
        jax.eval_shape(lambda s: plain.update(s, programs.X), state)
    assert caplog.text.count("no place for thresholds") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal, AutoBNAFNormal])
def test_autoguides_train(kind):
    guide = kind(regression)
    svi = SVI(
        regression, guide, numpyro.optim.Adam(0.01), ResampledELBO(rate=0.5, num_samples=4, num_draws=20, warmup=0)
    )
    result = run(svi, 100, REGRESSORS, RESPONSES)
    assert jnp.all(jnp.isfinite(result.losses))
    assert jnp.mean(result.losses[-20:]) < jnp.mean(result.losses[:20])


def test_equinox_and_flax_networks_in_guides():
    from flax import linen
    from numpyro.contrib.module import eqx_module, flax_module

    network = eqx.nn.MLP(1, 3, 4, 1, key=jax.random.key(0))

    def guide(x, use_flax):
        net = (
            flax_module("flax", linen.Dense(3), input_shape=(1,)) if use_flax else jax.vmap(eqx_module("eqx", network))
        )
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("z", dist.Categorical(logits=net(x[:, None])))

    for use_flax in (True, False):
        svi = SVI(lambda x, use_flax: programs.model(x), guide, OPTIM, RLOO(4), use_flax=use_flax)
        result = run(svi, 100, programs.X)
        assert jnp.mean(result.losses[-20:]) < jnp.mean(result.losses[:20])


@pytest.mark.parametrize("name", REGISTRY)
def test_every_estimator_serves_or_says_what_it_needs(name):
    estimator = REGISTRY[name]
    svi = make_svi(EstimatorELBO(estimator()))
    if estimator.needs is relbo.Needs.BITS:
        wanted = "own units can be relaxed" if name == "concrete" else "needs Bernoulli layers: .* 'z' is Categorical"
        with pytest.raises(ValueError, match=wanted):
            svi.run(jax.random.key(0), 2, programs.X, progress_bar=False)
        return
    if estimator.needs is not relbo.Needs.DRAWS:
        with pytest.raises(ValueError, match=r"latents with a reparameterised sampler, which \['z'\] do not have"):
            svi.run(jax.random.key(0), 2, programs.X, progress_bar=False)
        return
    if name == "wake-sleep":
        with pytest.raises(ValueError, match="needs draws of"):
            jax.eval_shape(lambda key: svi.run(key, 2, programs.X, progress_bar=False), jax.random.key(0))
        return
    # shapes and dtypes of the state are those of the step before, or the scan in `run` would fail
    result = jax.eval_shape(lambda key: svi.run(key, 2, programs.X, progress_bar=False), jax.random.key(0))
    assert result.losses.shape == (2,)
    if jax.tree.leaves(result.state.mutable_state) and name == "nvil":
        plain = make_svi(EstimatorELBO(estimator()), numpyro.infer.SVI)
        with pytest.raises(ValueError, match="NVIL remembers things between steps"):
            plain.run(jax.random.key(0), 2, programs.X, progress_bar=False)


@pytest.mark.slow
def test_plain_svi_neither_waits_for_a_warmup_nor_reads_a_schedule():
    loss = ResampledELBO(2, threshold="fixed:5", warmup=3)
    svi = make_svi(loss, numpyro.infer.SVI)
    state = svi.init(jax.random.key(0), programs.X)
    info = loss.info(jax.random.key(1), svi.get_params(state), programs.model, programs.guide, programs.X)
    np.testing.assert_array_equal(info.extra.threshold, 5.0)
    scheduled = make_svi(ResampledELBO(2, rate=lambda step: 0.5), numpyro.infer.SVI)
    state = scheduled.init(jax.random.key(0), programs.X)
    with pytest.raises(ValueError, match="a threshold with a schedule needs steps that are counted"):
        scheduled.update(state, programs.X)
