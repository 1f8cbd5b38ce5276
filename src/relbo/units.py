r"""Bernoulli units: how a logit and a noise become a value.

One network pass, `AbstractBernoulliProposal.rollout`, serves every use by the unit that it is given:

    hard        1[noise < sigmoid(logit)]           a sample, noise uniform on (0, 1)
    relaxed     sigmoid((logit + logit(noise))/tau) a binary Concrete sample
    mean        sigmoid(logit)                      a mean-field pass, noise ignored
    replay      noise                               the noise *is* the value: gives the logits at a known z
"""

import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, PRNGKeyArray

Unit = Callable[[Float[Array, " d"], Float[Array, " d"]], Float[Array, " d"]]
"""`(logits, noise) -> values`."""


def hard(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """A Bernoulli sample, 0 or 1; no gradient flows through it."""
    return (noise < jax.nn.sigmoid(logits)).astype(logits.dtype)


def mean(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The mean of the unit; the noise is not used."""
    return jax.nn.sigmoid(logits)


def replay(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The given value; the logits are not used."""
    return noise


def relaxed(temperature: Float[Array, ""] | float) -> Unit:
    """A binary Concrete unit at the given temperature (Maddison et al. 2017)."""

    def unit(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
        return jax.nn.sigmoid((logits + jnp.log(noise) - jnp.log1p(-noise)) / temperature)

    return unit


@jax.custom_jvp
def softplus(a: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """log(1 + e^a) in half the time of `jax.nn.softplus`, which also cares for NaN and both infinities."""
    return jnp.maximum(a, 0) + jnp.log1p(jnp.exp(-jnp.abs(a)))


@softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]


def log_bernoulli(value: Float[Array, " d"], logits: Float[Array, " d"]) -> Float[Array, ""]:
    """Sum of log Bernoulli(value; sigmoid(logits)) over units; linear in value."""
    return jnp.sum(value * logits - softplus(logits))


def log_bernoulli_layers(values: tuple[Array, ...], logits: tuple[Array, ...]) -> Float[Array, ""]:
    """Sum of `log_bernoulli` over layers."""
    terms = [log_bernoulli(value, logit) for value, logit in zip(values, logits, strict=True)]
    return functools.reduce(operator.add, terms)


def uniform_noise(key: PRNGKeyArray, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, "..."]:
    """Uniform numbers strictly inside (0, 1).

    In float32 they are odd multiples of 2^-24 from the raw generator, which yields two words for each hash;
    `jax.random.uniform` throws one of them away, and random bits are what a small network spends most of its time on.
    """
    if dtype != jnp.float32 or str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny)
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    bits = threefry_2x32(jax.random.key_data(key), count)
    return ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)
