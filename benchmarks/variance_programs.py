"""Pairs and programs with a path, to measure the gradient noise of `VRSPath` beside that of `VRS` on.

    relbo variance --model benchmarks/variance_programs.py:gaussian --data digits --estimator vrs --estimator vrs-path
    relbo variance --program benchmarks/variance_programs.py:regression --estimator vrs --estimator vrs-path

`fresh_regression` is the same program before training.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import relbo


def gaussian(key: Any, data: Any) -> relbo.Pair:
    """A linear Gaussian model with six latents after ten epochs, whose posterior a diagonal proposal does not match."""
    start = relbo.linear_gaussian(key, 6, jnp.asarray(data.mean(), jnp.float32))
    return relbo.fit(start, relbo.DReG(num_samples=6), data, num_epochs=10, optimizer="adam").pair


def model(x: Any, y: Any) -> None:
    """Logistic regression with correlated features."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def _regression(num_steps: int) -> tuple[Any, Any, dict[str, Any], tuple]:
    key_x, key_mix, key_weights, key_y, key_run = jax.random.split(jax.random.key(1), 5)
    x = 0.4 * jax.random.normal(key_x, (100, 17)) @ jax.random.normal(key_mix, (17, 17))
    y = jax.random.bernoulli(key_y, jax.nn.sigmoid(x @ jax.random.normal(key_weights, (17,)))).astype(float)
    guide = AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(5))
    result = svi.run(key_run, num_steps, x, y, progress_bar=False)
    return model, guide, result.params, (x, jnp.asarray(y))


def regression() -> tuple[Any, Any, dict[str, Any], tuple]:
    """Diagonal guide after 4,000 steps of `Trace_ELBO`."""
    return _regression(4_000)


def fresh_regression() -> tuple[Any, Any, dict[str, Any], tuple]:
    """The same after 20 steps."""
    return _regression(20)
