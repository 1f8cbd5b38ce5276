import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from relbo._hash import threefry
from relbo.streams import split


def test_words_are_those_of_jax():
    key = jax.random.key_data(jax.random.key(12345))
    a = jax.random.bits(jax.random.key(1), (3, 7), jnp.uint32)
    b = jax.random.bits(jax.random.key(2), (3, 7), jnp.uint32)
    np.testing.assert_array_equal(jnp.stack(threefry(key, a, b)), threefry_2x32(key, jnp.stack([a, b])))


def test_keys_are_split_as_jax_does():
    # of the default generator, whose rounds are written out, and of one that is left to JAX
    for impl in ("threefry2x32", "rbg"):
        key = jax.random.key(7, impl=impl)
        for num in (2, 5):
            got, expected = (jax.random.key_data(f(key, num)) for f in (split, jax.random.split))
            np.testing.assert_array_equal(got, expected)
