"""The names that every example of the API reference may use; the tests run the examples with exactly these."""

import jax
import jax.numpy as jnp
import numpy as np

import relbo

key = jax.random.key(0)
x = jnp.array([[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])
batch = relbo.Batch(x, jnp.arange(4))
pair = relbo.sbn(key, [3], jnp.full(4, 0.5))  # z: one layer of three bits
support = (relbo.exact.binary_states(3).astype(jnp.float32),)  # all eight of them
gaussian = relbo.linear_gaussian(key, 2, jnp.full(4, 0.5))  # z: two numbers that follow a path
view = relbo.view_of(pair, x)

__all__ = ["batch", "gaussian", "jax", "jnp", "key", "np", "pair", "relbo", "support", "view", "x"]
