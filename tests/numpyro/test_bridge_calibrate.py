"""Calibration of NumPyro programs whose posterior is known."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from relbo.numpyro import calibrate

X = jnp.arange(4.0)


def model(x):
    with numpyro.plate("rows", 4):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("x", dist.Normal(2.0 * z, 1.0), obs=x)


def guide_at(offset):
    def guide(x):
        # the log odds of z given x are log(.3 / .7) + 2 x - 2
        with numpyro.plate("rows", 4):
            numpyro.sample("z", dist.Bernoulli(logits=jnp.log(3 / 7) + 2 * x - 2 + offset))

    return guide


QUICK = {"num_simulations": 200, "num_samples": 19, "num_draws": 100, "batch": 200}


@pytest.mark.slow
def test_the_posterior_passes():
    found = calibrate(jax.random.key(0), model, guide_at(0.0), {}, X, rates=[], **QUICK)
    assert found.statistics == ("z[0]", "z[1]", "z[2]", "z[3]", "log p(x, z)")
    assert found.passes("guide", 1e-5)  # a false failure once in 1e5 seeds


def test_a_wrong_guide_fails_and_r_mends_it():
    found = calibrate(jax.random.key(1), model, guide_at(2.0), {}, X, rates=[0.1], **QUICK)
    assert not found.passes("guide", 1e-5) and found.passes("r at 0.1", 1e-5)
    assert found.proposals_per_draw["guide"] == 1
    assert found.proposals_per_draw["r at 0.1"] == pytest.approx(10, rel=0.15)


def regression(x, y):
    weight = numpyro.sample("weight", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", 10):
        numpyro.sample("y", dist.Normal(weight * x, noise + 0.1), obs=y)


@pytest.mark.slow
def test_a_guide_is_fitted_to_each_data_set():
    guide = AutoNormal(regression)
    svi = SVI(regression, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    x = jnp.linspace(-1.0, 1.0, 10)
    svi.init(jax.random.key(0), x, x + 0.5)  # makes the guide's sites

    def fit(key, *args):
        return svi.run(key, 300, *args, progress_bar=False).params

    quick = {**QUICK, "num_simulations": 100, "batch": 100}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = calibrate(jax.random.key(2), regression, guide, None, (x, x + 0.5), fit=fit, rates=[0.05], **quick)
    assert set(found.statistics) == {"weight", "noise", "log p(x, z)"}
    assert found.passes("r at 0.05", 1e-5)
    assert found.p_value("guide") < found.p_value("r at 0.05")


def test_the_argument_that_is_observed_must_be_known():
    def twice(x, y):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0).expand([4]).to_event(1), obs=x + y)

    with pytest.raises(ValueError, match="must know which argument the observed site 'x' is given as, and 0 arguments"):
        calibrate(jax.random.key(0), twice, guide_at(0.0), {}, (X, X))


def test_without_observations_nothing_can_be_simulated():
    with pytest.raises(ValueError, match="a model with observed sites at these data"):
        calibrate(jax.random.key(0), model, guide_at(0.0), {}, (None,))
