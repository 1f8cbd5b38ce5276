"""Draws from r after a fit, and the figures that come with them."""

import functools
import re
import warnings
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_programs as programs
import pytest
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal, AutoNormal

import relbo
from relbo import exact
from relbo.numpyro import RLOO, resample
from relbo.numpyro.store import Store
from relbo.pareto import khat, log_mean_error, smoothed

with warnings.catch_warnings():
    # it announces its next major version at import
    warnings.simplefilter("ignore")
    import arviz

T = -0.5


@pytest.fixture(scope="module")
def rows():
    with jax.numpy_dtype_promotion("standard"):
        return resample(
            jax.random.key(0),
            programs.model,
            programs.guide,
            programs.PARAMS,
            programs.X,
            threshold=T,
            num_samples=4_000,
        )


def oracle(quantity, *args):
    pair = programs.row_pair(programs.PARAMS)
    return jax.vmap(lambda x: quantity(pair, x, programs.STATES, *args))(programs.X)


def test_draws_follow_r_in_every_row(rows):
    # chi-square with 2 degrees of freedom in each of 4 rows; 35 is exceeded with probability 3e-8
    counts = np.stack([np.sum(np.asarray(rows.samples["z"]) == state, axis=0) for state in range(3)], axis=1)
    expected = 4_000 * np.exp(oracle(exact.log_resampled, T))
    assert np.max(np.sum((counts - expected) ** 2 / expected, axis=1)) < 35


def test_figures_agree_with_the_oracle(rows):
    evidence = np.sum(
        jax.vmap(lambda x: exact.log_evidence(programs.RowModel(programs.PARAMS), x, programs.STATES))(programs.X)
    )
    error = np.sqrt(np.sum(rows.log_evidence_error**2))
    assert abs(rows.log_evidence.sum() - evidence) < 6 * error < 0.3
    np.testing.assert_allclose(rows.kl, oracle(exact.kl, T), atol=0.02)
    # (S-1)/(N-1) has standard deviation Z sqrt((1-Z)/S) <= 0.016 Z
    np.testing.assert_allclose(rows.acceptance, np.exp(oracle(exact.log_z, T)), rtol=0.1)
    np.testing.assert_array_equal(rows.num_proposals > 4_000, True)
    assert not np.any(rows.exhausted)
    assert np.all(rows.ess > rows.ess_before) and np.all(rows.ess <= 4_000)
    # all proposals, weighed: the posterior of each row, in the shape of the site
    assert rows.mean["z"].shape == (4,) and rows.proposals.z["z"].shape == (4, rows.num_weighed)
    posterior = jax.vmap(lambda x: exact.log_posterior(programs.RowModel(programs.PARAMS), x, programs.STATES))(
        programs.X
    )
    np.testing.assert_allclose(rows.mean["z"], np.exp(posterior) @ np.arange(3), atol=6 / np.sqrt(rows.num_weighed))
    np.testing.assert_allclose(rows.expectation(lambda z: z["z"] == 1), np.exp(posterior)[:, 1], atol=0.08)
    assert rows.verdict == ["fine (plain weights)"] * 4
    for word in (
        "verdict                 fine (plain weights) (4 of 4 rows)",
        "acceptance rate",
        "log evidence",
        "biased downwards",
        "Pareto k-hat",
    ):
        assert word in rows.summary()


@pytest.mark.slow
def test_a_rate_is_met_and_brings_r_closer_to_the_posterior():
    divergences = []
    for rate in (0.8, 0.2):
        result = resample(
            jax.random.key(1),
            programs.model,
            programs.guide,
            programs.PARAMS,
            (programs.X,),
            rate=rate,
            num_samples=500,
        )
        np.testing.assert_allclose(result.acceptance, rate, rtol=0.3)
        pair = programs.row_pair(programs.PARAMS)
        kl = jax.vmap(lambda x, t, pair=pair: exact.kl(pair, x, programs.STATES, t))(programs.X, result.threshold)
        divergences.append(kl)
    assert isinstance(result, relbo.Posterior) and jnp.all(divergences[1] < divergences[0])


@pytest.mark.slow
def test_latents_outside_the_plate_are_accepted_with_it():
    result = resample(
        jax.random.key(0),
        programs.shared_model,
        programs.shared_guide,
        programs.SHARED_PARAMS,
        programs.X,
        threshold=4.0,
        num_samples=3_000,
    )
    assert result.acceptance.shape == (1,) and result.samples["shift"].shape == (3_000,)
    # enumerate (g, z_1..z_4): r is proportional to q w / (w + e^-T)
    states = exact.tuples(3, 4)
    total = []
    for g, shift in enumerate(programs.SHIFTS):
        pair = programs.row_pair(programs.SHARED_PARAMS, shift)
        table = jax.vmap(lambda x, p=pair: exact.log_joint(p.model, x, programs.STATES))(programs.X)
        table_q = jax.vmap(lambda x, p=pair: exact.log_proposal(p.proposal, x, programs.STATES))(programs.X)
        log_p = jax.nn.log_softmax(programs.SHARED_PARAMS["shift_prior"])[g]
        log_q = jax.nn.log_softmax(programs.SHARED_PARAMS["shift_logits"])[g]
        log_p = log_p + sum(table[i, states[:, i]] for i in range(4))
        log_q = log_q + sum(table_q[i, states[:, i]] for i in range(4))
        total.append(jnp.sum(jnp.exp(log_q + jax.nn.log_sigmoid(log_p - log_q + 4.0))))
    share = float(total[1] / (total[0] + total[1]))
    error = np.sqrt(share * (1 - share) / 3_000)
    assert abs(np.mean(result.samples["shift"]) - share) < 6 * error  # false failure 2e-9


def regression(x, y=None):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.deterministic("slope", b[0] / s)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, s), obs=y)


@pytest.mark.slow
def test_samples_suit_predictive_and_arviz():
    x = jax.random.normal(jax.random.key(5), (10, 2))
    y = x @ jnp.array([1.0, -0.5]) + 0.1
    guide = AutoMultivariateNormal(regression)
    svi = numpyro.infer.SVI(regression, guide, numpyro.optim.Adam(0.02), numpyro.infer.Trace_ELBO())
    params = svi.run(jax.random.key(0), 500, x, y, progress_bar=False).params
    result = resample(jax.random.key(1), regression, guide, params, (x,), kwargs={"y": y}, rate=0.5, num_samples=100)
    assert {name: value.shape for name, value in result.samples.items()} == {
        "b": (100, 2),
        "s": (100,),
        "slope": (100,),
    }
    np.testing.assert_allclose(result.samples["slope"], result.samples["b"][:, 0] / result.samples["s"], rtol=1e-10)
    assert Predictive(regression, result.samples)(jax.random.key(2), x)["y"].shape == (100, 10)
    both = result.to_arviz(weighted=True)
    assert both.posterior["b"].shape == (1, result.num_weighed, 2) and set(both.posterior) == {"b", "s", "slope"}
    assert result.mean["b"].shape == (2,) and result.sd["s"].shape == ()
    np.testing.assert_allclose(result.expectation(lambda v: v["b"][0] / v["s"])[0], result.mean["slope"], rtol=1e-5)
    found = result.to_arviz()
    assert found.posterior.sizes["draw"] == 100 and set(found.posterior) == {"b", "s", "slope"}


def tiny(x=None):
    numpyro.sample("x", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=x)


TINY_PARAMS = {"m_auto_loc": jnp.array(0.1), "m_auto_scale": jnp.array(0.7)}


def assert_is_ready(guide):
    kept = jax.tree.leaves((guide._init_locs, [site["value"] for site in guide.prototype_trace.values()]))
    assert kept and not any(isinstance(leaf, jax.core.Tracer) for leaf in kept)


def test_a_guide_that_was_never_run_can_be_trained_afterwards(monkeypatch):
    monkeypatch.setattr("relbo.numpyro.objective.STORE", store := Store())
    guide, loss = AutoNormal(tiny), RLOO(2)
    for seed in range(2):
        loss.info(jax.random.key(seed), TINY_PARAMS, tiny, guide, 0.5)
        assert_is_ready(guide)
    assert len(store.kept) == 1
    svi = numpyro.infer.SVI(tiny, guide, numpyro.optim.Adam(0.02), numpyro.infer.Trace_ELBO())
    assert svi.init(jax.random.key(0), 0.5) is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AutoNormal, AutoLaplaceApproximation])
def test_draws_from_a_guide_that_was_never_run(kind):
    guide, params = kind(tiny), {**TINY_PARAMS, "auto_loc": jnp.array([0.25])}
    resample(jax.random.key(0), tiny, guide, params, 0.5, threshold=1.0, num_samples=4, num_draws=8)
    assert_is_ready(guide)


def test_refusals():
    call = (jax.random.key(0), programs.shared_model, programs.shared_guide, programs.SHARED_PARAMS, programs.X)
    with pytest.raises(ValueError, match="threshold= or by rate="):
        resample(*call)
    with pytest.raises(ValueError, match="num_samples must be an integer >= 2, got 1"):
        resample(*call, rate=0.5, num_samples=1)
    with pytest.raises(ValueError, match="plate 'data' subsampled to 2 of 4 rows"):
        resample(*call, rate=0.5, kwargs={"subsample_size": 2})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"params": {}}, "all of the fit, but ['slope', 'offset', 'prior', 'means'] are missing, got []."),
        (
            {"params": {"prio": 0.0} | {n: v for n, v in programs.PARAMS.items() if n != "prior"}},
            "got 'prio'; did you mean 'prior'?",
        ),
        ({"data": [programs.X]}, "data must be a tuple of the positional arguments, or the one argument; a list as"),
        ({"data": ()}, "data and kwargs must be the arguments of the model, got missing a required argument: 'x'."),
        ({"model": lambda x: None, "guide": lambda x: None, "params": {}}, "latent to draw, got none at all."),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_one_sentence(change, message):
    call = {"key": jax.random.key(0), "model": programs.model, "guide": programs.guide, "params": programs.PARAMS}
    with pytest.raises(ValueError, match=re.escape(message)):
        resample(**{**call, "data": programs.X, "rate": 0.5, **change})


def test_a_decorator_may_fill_in_arguments_and_a_handler_parameters_and_params_may_be_those_of_more():
    def model(scale, x):
        numpyro.sample("x", dist.Normal(numpyro.sample("z", dist.Normal()), scale), obs=x)

    @functools.wraps(model)
    def filled(x):
        return model(2.0, x)

    def guide(x):
        numpyro.sample("z", dist.Normal(numpyro.param("m", 0.0)))

    found = resample(
        jax.random.key(0),
        filled,
        numpyro.handlers.substitute(guide, data={"m": 0.1}),
        MappingProxyType({"other": 1.0}),
        0.3,
        rate=0.5,
    )
    assert np.isfinite(found.log_evidence).all()


def test_nan_and_impossible_draws_and_rejections_are_told_apart_by_site():
    def guide():
        numpyro.sample("z", dist.Normal())

    def model():
        z = numpyro.sample("z", dist.Normal())
        numpyro.sample("noisy", dist.Normal(0.0, jnp.where(z > 2, jnp.nan, 1.0), validate_args=False), obs=0.0)
        numpyro.factor("wall", jnp.where(z < -1, -jnp.inf, 0.0))

    # of a standard normal 2.3% lie above 2, 15.9% below -1: 5 standard deviations of 1,000 draws are 24 and 58
    with pytest.raises(RuntimeError, match="^log p .*NaN") as error:
        resample(jax.random.key(0), model, guide, {}, rate=0.5, num_samples=2)
    said = re.search(
        r"(\d+) have a density that is NaN \(at 'noisy'\), (\d+) are .*-inf \(at 'wall'\)", str(error.value)
    )
    assert abs(int(said[1]) - 23) < 24 and abs(int(said[2]) - 159) < 58 and "exhausted" not in str(error.value)


@pytest.mark.slow
def test_exhausted_rows_are_flagged_or_raised():
    call = (jax.random.key(0), programs.model, programs.guide, programs.PARAMS, programs.X)
    result = resample(*call, threshold=-12.0, num_samples=10, max_rounds=2, throw=False)
    assert np.all(result.exhausted)
    with pytest.raises(Exception, match="exhausted"):
        resample(*call, threshold=-12.0, num_samples=10, max_rounds=2)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.7])  # above 1 ours takes a smaller tail
def test_khat_agrees_with_arviz(shape):
    log_weights = np.log(np.random.default_rng(0).pareto(1 / shape, 2_000) + 1)
    weights, expected = arviz.psislw(log_weights.copy())
    np.testing.assert_allclose(khat(log_weights), expected, rtol=1e-6)
    np.testing.assert_allclose(smoothed(log_weights), weights, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0.1, 0.4, 0.6])
def test_errors_of_the_log_evidence_cover(shape):
    # Pareto weights, whose mean is 1 / (1 - k). Two errors should cover 95% of 200 sets; a coverage of 88% has
    # probability 2e-5 at 95%. The delta method, 2 sd / sqrt n, covers about 70% at k = 0.6
    random = np.random.default_rng(0)
    sets = [np.log(random.pareto(1 / shape, 2_000) + 1) for _ in range(200)]
    misses = np.array([np.log(np.mean(np.exp(s))) + np.log1p(-shape) for s in sets])
    errors = np.array([log_mean_error(s) for s in sets])
    assert np.mean(np.abs(misses) <= 2 * errors) > 0.88
    if shape < 0.5:
        assert np.median(errors) < 2 * np.std(misses), "nor are they far too large"


def test_khat_of_too_few_or_equal_weights():
    assert np.isnan(khat(np.zeros(10)))
    assert khat(np.zeros(100)) == -np.inf
