"""Programs as users write them: odd logits, growing minibatches, states of other runs, guides without a spread."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_programs as programs
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation

import relbo
from relbo.numpyro import RLOO, SVI, ResampledELBO, resample
from relbo.numpyro.densities import log_prob
from relbo.numpyro.memory import without_memory
from relbo.numpyro.objective import STATE_SITE
from relbo.numpyro.pair import build_pair
from relbo.numpyro.program import Program
from relbo.numpyro.strangers import recall
from relbo.thresholds import OnceSettled

OPTIM = numpyro.optim.Adam(0.05)


@pytest.mark.parametrize(
    "make",
    [
        lambda logits: dist.Bernoulli(logits=logits),
        lambda logits: dist.Bernoulli(logits=logits).mask(jnp.array([True, False, True])).to_event(1),
        lambda logits: dist.Binomial(3, logits=logits),
    ],
)
def test_the_score_at_a_logit_of_zero_is_that_beside_it(make):
    value = jnp.array([0.0, 1.0, 1.0])

    def gradient(logits):
        return jax.grad(lambda v: jnp.sum(log_prob(make(v), value)))(logits)

    np.testing.assert_allclose(gradient(jnp.zeros(3)), gradient(jnp.full(3, 1e-9)), atol=1e-8)
    np.testing.assert_array_equal(log_prob(make(jnp.zeros(3)), value), make(jnp.zeros(3)).log_prob(value))


def batch_model(x):
    centres = numpyro.param("centres", jnp.array([-1.0, 1.0]))
    with numpyro.plate("data", len(x)):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("x", dist.Normal(centres[z], 1.0), obs=x)


def batch_guide(x):
    slope, bias = numpyro.param("slope", 0.0), numpyro.param("bias", 0.0)
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Bernoulli(logits=bias + slope * x))


DATA = np.random.default_rng(0).normal(size=400) + 2 * np.random.default_rng(1).binomial(1, 0.3, 400)


@pytest.mark.parametrize(
    "how",
    [
        {"rate": 0.3, "warmup": 2},
        pytest.param({"threshold": "quantile:0.5", "every": 2}, marks=pytest.mark.slow),
        pytest.param({"threshold": "fixed:5"}, marks=pytest.mark.slow),
    ],
)
def test_minibatches_as_arguments_may_have_any_size(how, caplog):
    loss = ResampledELBO(2, num_draws=30, **how)
    svi = SVI(batch_model, batch_guide, OPTIM, loss)
    state = svi.init(jax.random.key(0), DATA[:3])
    update = programs.quick(svi.update)
    for start in range(0, 25, 5):
        state, value = update(state, DATA[start : start + 5])
        assert jnp.isfinite(value)
    assert state.mutable_state[STATE_SITE].thresholds.step == 5
    assert caplog.text.count("another number of rows than at init") == ("fixed:5" not in how.values())
    if "rate" in how:
        # 400 rows, T of each from 30 draws of two states: the mean acceptance has a standard deviation of about .02
        values = {**svi.get_params(state), **state.mutable_state}
        info = loss.info(jax.random.key(1), values, batch_model, batch_guide, DATA)
        assert abs(jnp.mean(info.extra.acceptance) - 0.3) < 0.12


@pytest.mark.parametrize("rule", [relbo.Rate(0.5, num_draws=37, warmup=3), relbo.Quantile(0.9, num_draws=37, every=3)])
def test_rows_without_a_past_are_solved_for_from_as_many_draws_as_the_user_said(rule):
    log_w, index = jnp.linspace(-1.0, 1.0, 37)[None], jnp.arange(1)
    key, estimator = jax.random.key(0), relbo.VRS(2, rule)
    pair = build_pair(Program(batch_model, batch_guide, (DATA[:4],), {}, key, {}), {}, {}, 1)
    plain, state = without_memory(estimator, key, pair, 4)
    kept, later, keep, _ = recall(estimator, estimator.init(key, pair, 4), 5)
    assert plain.threshold.fresh_draws == kept.threshold.fresh_draws == 37
    assert plain.threshold.read(state.thresholds, index).due.all(), "nobody counts a warm-up"
    for step in range(4):
        assert kept.threshold.read(later.thresholds, index).due.all() == (step == 3)
        thresholds = kept.threshold.update(later.thresholds, index, jnp.zeros(1), log_w, relbo.Soft())
        later = later._replace(thresholds=thresholds)
    assert keep(later).thresholds.step == 4


def test_rows_without_a_past_wait_until_the_guide_has_settled():
    log_w, index, key = jnp.linspace(-1.0, 1.0, 37)[None], jnp.arange(1), jax.random.key(0)
    pair = build_pair(Program(batch_model, batch_guide, (DATA[:4],), {}, key, {}), {}, {}, 1)
    estimator = relbo.VRS(2, OnceSettled(relbo.Rate(0.5, num_draws=37), first=2))
    plain, state = without_memory(estimator, key, pair, 4)
    assert plain.threshold.read(state.thresholds, index).due.all(), "nobody counts a warm-up"
    kept, later, keep, _ = recall(estimator, estimator.init(key, pair, 4), 5)
    for step in range(4):
        assert kept.threshold.read(later.thresholds, index).due.all() == (step >= 2)
        thresholds = kept.threshold.update(later.thresholds, index, jnp.zeros(1), log_w, relbo.Soft())
        later = later._replace(thresholds=thresholds)
    held = keep(later).thresholds
    assert (held.begun, held.step, held.inner.step, held.inner.value.shape) == (2, 4, 4, (4,))
    fixed = relbo.VRS(2, OnceSettled(relbo.Fixed(1.0)))
    _, resized, _, note = recall(fixed, fixed.init(key, pair, 4), 5)
    assert resized.thresholds.inner.num_data == 5 and note is None


@pytest.mark.slow
def test_a_step_without_any_valid_row_does_not_spoil_the_parameters():
    def model(x):
        numpyro.sample("g", dist.Bernoulli(0.5))
        with numpyro.plate("data", 2):
            numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.factor("x", jnp.full(2, -jnp.inf))

    def guide(x):
        numpyro.sample("g", dist.Bernoulli(logits=numpyro.param("g_logit", 0.3)))
        with numpyro.plate("data", 2):
            numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("z_logit", 0.2)))

    loss = ResampledELBO(2, threshold=1.0, warmup=0, max_rounds=2, num_shared=2)
    params = {"g_logit": jnp.array(0.3), "z_logit": jnp.array(0.2)}
    value, grads = programs.quick(
        jax.value_and_grad(lambda p: loss.loss_with_mutable_state(jax.random.key(0), p, model, guide, 0.0)["loss"])
    )(params)
    assert jnp.isnan(value), "nothing is known of the bound"
    assert all(jnp.isfinite(g) for g in grads.values())


@pytest.mark.slow
def test_a_run_goes_on_from_the_state_of_any_other(caplog):
    def run(loss, state=None, svi=None):
        svi = SVI(programs.model, programs.guide, OPTIM, loss) if svi is None else svi
        return svi.run(jax.random.key(0), 3, programs.X, progress_bar=False, init_state=state)

    plain = run(RLOO(2), svi=numpyro.infer.SVI(programs.model, programs.guide, OPTIM, RLOO(2)))
    assert plain.state.mutable_state is None
    resampled = run(ResampledELBO(2, rate=0.5, num_draws=20, warmup=0), plain.state)
    thresholds = resampled.state.mutable_state[STATE_SITE].thresholds
    assert thresholds.step == 3 and jnp.all(jnp.isfinite(thresholds.value))
    assert "begun anew" not in caplog.text
    again = run(ResampledELBO(2, rate=0.5, num_draws=20, warmup=0), resampled.state)
    assert again.state.mutable_state[STATE_SITE].thresholds.step == 6
    other = run(ResampledELBO(2, threshold="quantile:0.9", every=10), resampled.state)
    assert other.state.mutable_state[STATE_SITE].thresholds.step == 3 and "begun anew" in caplog.text
    assert not hasattr(run(RLOO(2), other.state).state.mutable_state[STATE_SITE], "thresholds")
    assert (
        SVI(programs.model, programs.guide, OPTIM, Trace_ELBO())._with_memory(other.state, (), {}).mutable_state is None
    )


def regression(x, y=None):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


REGRESSORS = jax.random.normal(jax.random.key(5), (12, 2))
RESPONSES = REGRESSORS @ jnp.array([1.0, -0.5]) + 0.3


@pytest.mark.slow
def test_a_laplace_approximation_is_drawn_from_and_is_exact_where_the_posterior_is_normal():
    guide = AutoLaplaceApproximation(regression)
    svi = SVI(regression, guide, OPTIM, Trace_ELBO())
    params = svi.run(jax.random.key(0), 2_000, REGRESSORS, RESPONSES, progress_bar=False).params
    draws = resample(jax.random.key(1), regression, guide, params, (REGRESSORS, RESPONSES), rate=0.5, num_samples=2_000)
    precision = jnp.eye(2) + REGRESSORS.T @ REGRESSORS
    mean = jnp.linalg.solve(precision, REGRESSORS.T @ RESPONSES)
    deviation = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(precision)))
    np.testing.assert_allclose(np.mean(draws.samples["b"], axis=0), mean, atol=6 * 0.5 / np.sqrt(2_000))
    np.testing.assert_allclose(np.std(draws.samples["b"], axis=0), deviation, rtol=6 / np.sqrt(2 * 2_000))
    assert draws.kl[0] < 1e-3


def test_a_guide_of_points_is_refused_with_advice():
    guide = AutoDelta(regression)
    svi = SVI(regression, guide, OPTIM, Trace_ELBO())
    params = svi.get_params(svi.init(jax.random.key(0), REGRESSORS, RESPONSES))
    with pytest.raises(ValueError, match=r"got none but points .* AutoLaplaceApproximation"):
        resample(jax.random.key(1), regression, guide, params, (REGRESSORS, RESPONSES), rate=0.5)
