import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from relbo._hash import threefry


def test_words_are_those_of_jax():
    key = jax.random.key_data(jax.random.key(12345))
    a = jax.random.bits(jax.random.key(1), (3, 7), jnp.uint32)
    b = jax.random.bits(jax.random.key(2), (3, 7), jnp.uint32)
    np.testing.assert_array_equal(jnp.stack(threefry(key, a, b)), threefry_2x32(key, jnp.stack([a, b])))
