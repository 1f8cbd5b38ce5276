"""The names that every example of the API reference may use; the tests run the examples with exactly these."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo
import relbo.numpyro

key = jax.random.key(0)
x = jnp.array([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])
batch = relbo.Batch(x, jnp.arange(4))
pair = relbo.sbn(key, [3], jnp.full(4, 0.5))  # z: one layer of three bits
support = (relbo.exact.binary_states(3).astype(jnp.float32),)  # all eight of them
gaussian = relbo.linear_gaussian(key, 2, jnp.full(4, 0.5))  # z: two numbers that follow a path
view = relbo.view_of(pair, x)


def model(x):
    """A NumPyro model: a bit behind a number."""
    z = numpyro.sample("z", dist.Bernoulli(0.3))
    numpyro.sample("x", dist.Normal(2.0 * z, 1.0), obs=x)


def guide(x):
    """Its guide."""
    numpyro.sample("z", dist.Bernoulli(logits=numpyro.param("logit", 0.0)))


__all__ = ["batch", "dist", "gaussian", "guide", "jax", "jnp", "key", "model", "np", "numpyro", "pair", "relbo"]
__all__ += ["support", "view", "x"]
