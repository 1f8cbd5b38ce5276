"""Latents of the model that are summed out: the densities are those of `TraceEnum_ELBO`, draw by draw."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.funsor import config_enumerate, markov  # no test is skipped: the extra `dev` has funsor
from numpyro.infer import TraceEnum_ELBO

from relbo.numpyro import RLOO, SVI, resample
from relbo.numpyro.program import Program

X = jnp.array([-0.5, 0.4, 1.5, 3.0])
VALUES = {"m": jnp.array([0.3, -0.7]), "s": jnp.array([0.1, 0.2, -0.4, 0.5])}
WEIGHTS = jnp.array([[0.2, 0.3, 0.5], [0.4, 0.4, 0.2]])


def means():
    return numpyro.sample("m", dist.Normal(jnp.zeros(2), 1.0).to_event(1))


def rows(x, size=None):
    m = means()
    with numpyro.plate("d", 4, subsample_size=size):
        s = numpyro.sample("s", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.deterministic("own", m[0] + s)
        numpyro.deterministic("centre", m[z] + s)
        numpyro.sample("x", dist.Normal(m[z] + s, 1.0), obs=numpyro.subsample(x, 0))


def rows_guide(x, size=None):
    means()
    with numpyro.plate("d", 4, subsample_size=size):
        numpyro.sample("s", dist.Normal(0.0, jnp.exp(numpyro.param("log_scale", -0.7))))


def one_for_all(x):
    m = means()
    g = numpyro.sample("g", dist.Categorical(jnp.array([0.2, 0.8])))
    with numpyro.plate("d", 4):
        s = numpyro.sample("s", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(m[g] + s, 1.0), obs=x)


def nested(x):
    m = means()
    with numpyro.plate("d", 4, dim=-2):
        s = numpyro.sample("s", dist.Normal(0.0, 1.0))
        t = numpyro.sample("t", dist.Bernoulli(0.3))
        with numpyro.plate("w", 3, dim=-1):
            z = numpyro.sample("z", dist.Categorical(WEIGHTS[t]))
            numpyro.sample("x", dist.Normal(m[t] + s + z, 1.0), obs=x[:, None] + jnp.arange(3.0))


def nested_guide(x):
    means()
    with numpyro.plate("d", 4, dim=-2):
        numpyro.sample("s", dist.Normal(0.0, 0.5))


def masked_and_scaled(x):
    m = means()
    mask = jnp.array([True, False, True, True])
    with numpyro.plate("d", 4), handlers.mask(mask=mask), handlers.scale(scale=0.7):
        s = numpyro.sample("s", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("x", dist.Normal(m[z] + s, 1.0), obs=x)


def chain(x):
    m, z = means(), 0
    for t in markov(range(4)):
        z = numpyro.sample(f"z{t}", dist.Categorical(jnp.array([[0.8, 0.2], [0.3, 0.7]])[z]))
        numpyro.sample(f"x{t}", dist.Normal(m[z], 1.0), obs=x[t])


CASES = {
    "rows": (rows, rows_guide, VALUES, {}, "d"),
    "minibatch": (rows, rows_guide, {"m": VALUES["m"], "s": VALUES["s"][:2], "d": jnp.array([2, 0])}, {"size": 2}, "d"),
    "one for all rows": (one_for_all, rows_guide, VALUES, {}, None),
    "nested": (nested, nested_guide, {"m": VALUES["m"], "s": VALUES["s"][:, None]}, {}, "d"),
    "masked and scaled": (masked_and_scaled, handlers.scale(rows_guide, scale=0.7), VALUES, {}, "d"),
    "chain": (chain, lambda x: means(), {"m": VALUES["m"]}, {}, None),
}


FAST = ("minibatch", "chain")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES])
def test_it_is_what_numpyro_sums(name):
    model, guide, values, kwargs, plate = CASES[name]
    model = handlers.substitute(config_enumerate(model), data={"d": values["d"]} if "d" in values else {})
    guide = handlers.substitute(guide, data=values)
    params = {"log_scale": jnp.array(-0.7)}
    theirs = -TraceEnum_ELBO().loss(jax.random.key(0), params, model, guide, X, **kwargs)
    program = Program(model, guide, (X,), kwargs, jax.random.key(0), params)
    layout = program.layout
    assert layout.plate == plate and layout.summed and not layout.summed & set(values)
    parts = program.score(params, {n: values[n] for n in layout.shared}, {n: values[n] for n in layout.local})
    ours = parts.shared + layout.num_data / layout.num_rows * jnp.sum(parts.model - parts.guide)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


@pytest.mark.slow
def test_it_trains_and_resamples():
    model = config_enumerate(rows)
    svi = SVI(model, rows_guide, numpyro.optim.Adam(0.01), RLOO(4))
    result = svi.run(jax.random.key(0), 200, X, progress_bar=False)
    assert jnp.all(jnp.isfinite(result.losses))
    draws = resample(jax.random.key(1), model, rows_guide, result.params, X, rate=0.3, num_samples=50)
    # what is summed out has no draws, nor has what depends on it
    assert set(draws.samples) == {"m", "s", "own"}


def test_factors_of_one_sum_must_have_one_scale():
    def model(x):
        m = means()
        g = numpyro.sample("g", dist.Categorical(jnp.array([0.2, 0.8])))
        with handlers.scale(scale=2.0), numpyro.plate("d", 4):
            numpyro.sample("x", dist.Normal(m[g], 1.0), obs=x)

    program = Program(config_enumerate(model), lambda x: means(), (X,), {}, jax.random.key(0), {})
    with pytest.raises(ValueError, match="must have one scale, a number, got {'g': 1.0, 'x': 2.0}"):
        program.score({}, {}, {"m": VALUES["m"]})
