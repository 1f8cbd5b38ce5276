r"""Bernoulli units: how a logit and a noise become a value.

One network pass, `AbstractBernoulliProposal.rollout`, serves every use by the unit that it is given:

    hard        1[noise < sigmoid(logit)]           a sample, noise uniform on (0, 1)
    relaxed     sigmoid((logit - logit(noise))/tau) a binary Concrete sample, which tends to `hard` as tau falls
    mean        sigmoid(logit)                      a mean-field pass, noise ignored
    replay      noise                               the noise *is* the value: gives the logits at a known z
    shifted     sigmoid(logit) + noise              a mean-field pass, differentiable in its values
    straight    noise, with the slope of the mean   replay for the straight-through gradient
    mixed       either of two units, by layer       replay some layers and draw the others
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from relbo._hash import threefry

FACTORS = 8
"""Numbers in [1, 2] that are multiplied before a logarithm is taken: their product is at most 256."""
Unit = Callable[[Float[Array, " d"], Any], Float[Array, " d"]]
"""`(logits, noise) -> values`; the noise of a layer is whatever its unit takes, for most one number per logit."""


class Mixed(NamedTuple):
    """Noise of one layer for `mixed`."""

    replayed: Bool[Array, ""]
    """Whether this layer is replayed."""
    value: Float[Array, " d"]
    """Its value if so."""
    noise: Float[Array, " d"]
    """The other unit's noise if not."""


def hard(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """A Bernoulli sample, 0 or 1; no gradient flows through it."""
    return (noise < jax.nn.sigmoid(logits)).astype(logits.dtype)


def mean(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The mean of the unit; the noise is not used."""
    return jax.nn.sigmoid(logits)


def replay(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The given value; the logits are not used."""
    return noise


def shifted(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The mean plus the noise: at noise 0 a mean-field pass that can be differentiated in each layer's value."""
    return jax.nn.sigmoid(logits) + noise


def straight(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The given value, with the derivative of the mean in the logits (Bengio et al. 2013)."""
    slope = jax.nn.sigmoid(logits)
    return noise + slope - jax.lax.stop_gradient(slope)


def relaxed(temperature: Float[Array, ""] | float) -> Unit:
    """A binary Concrete unit at the given temperature (Maddison et al. 2017)."""

    def unit(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
        return jax.nn.sigmoid(logistic(logits, noise) / temperature)

    return unit


@jax.custom_jvp
def softplus_and_sigmoid(a: Float[Array, "*s"]) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
    """log(1 + e^a) and its slope from one exponential, which is what either of them costs."""
    e = jnp.exp(-jnp.abs(a))
    return jnp.maximum(a, 0) + jnp.log1p(e), jnp.where(a >= 0, jnp.ones_like(e), e) / (1 + e)


@softplus_and_sigmoid.defjvp
def _softplus_and_sigmoid_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple, tuple]:
    value, slope = softplus_and_sigmoid(primals[0])
    return (value, slope), (slope * tangents[0], slope * (1 - slope) * tangents[0])


def softplus(a: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """log(1 + e^a) in half the time of `jax.nn.softplus`, which also cares for NaN and both infinities."""
    return softplus_and_sigmoid(a)[0]


def mixed(other: Unit) -> Unit:
    """A unit that replays the layers marked in their `Mixed` noise and leaves the others to `other`."""

    def unit(logits: Float[Array, " d"], noise: Mixed) -> Float[Array, " d"]:
        return jnp.where(noise.replayed, noise.value, other(logits, noise.noise))

    return unit


def logistic(logits: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """A logistic variable, logit - logit(noise); it is positive where `hard` gives 1 on the same noise."""
    # many uniform generators return 0 now and then; half a grid step keeps the logarithm finite
    noise = jnp.maximum(noise, jnp.finfo(noise.dtype).eps / 2)
    return logits - jnp.log(noise) + jnp.log1p(-noise)


def logistic_given(
    logits: Float[Array, " d"], value: Float[Array, " d"], noise: Float[Array, " d"]
) -> Float[Array, " d"]:
    """The variable of `logistic` given the bit that it makes, differentiable in the logits, from uniform noise v.

    The noise behind a 1 is v p, that behind a 0 is 1 - v (1 - p), with p = sigmoid(logit). Put into
    logit - logit(noise), p drops out: for a 1 it is softplus(logit + log(1 - v)) - log v, for a 0 its mirror image.
    """
    noise = jnp.clip(noise, jnp.finfo(noise.dtype).eps / 2, 1 - jnp.finfo(noise.dtype).eps / 2)
    sign = 2 * value - 1
    return sign * (softplus(sign * logits + jnp.log1p(-noise)) - jnp.log(noise))


def noise_given(logits: Float[Array, " d"], value: Float[Array, " d"], noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The v with which `logistic_given` makes the same variable as `logistic` from `noise`; uniform given the value."""
    return jnp.where(value > 0, noise / jax.nn.sigmoid(logits), (1 - noise) / jax.nn.sigmoid(-logits))


@jax.custom_jvp
def log_bernoulli(value: Float[Array, " d"], logits: Float[Array, " d"]) -> Float[Array, ""]:
    """Sum of log Bernoulli(value; sigmoid(logits)) over units; linear in value.

    It is sum_d v_d l_d - max(l_d, 0) - log(1 + e^-|l_d|). Each factor 1 + e^-|l| lies in [1, 2], so the logarithm of
    a product of `FACTORS` of them replaces as many logarithms; and a product with ones adds a row up faster than
    XLA's reductions do on a CPU.
    """
    e = jnp.exp(-jnp.abs(logits))
    linear = value * logits - jnp.maximum(logits, 0)
    size = e.size // FACTORS
    if size == 0 or jnp.finfo(e.dtype).bits < 32:  # in half precision 1 + e would lose e
        return jnp.sum(linear - jnp.log1p(e))
    slices = [slice(i * size, (i + 1) * size) for i in range(FACTORS)]
    # one pass over the logits, which writes one number for eight of them
    product = functools.reduce(operator.mul, [1 + e[part] for part in slices])
    terms = functools.reduce(operator.add, [linear[part] for part in slices]) - jnp.log(product)
    rest = slice(FACTORS * size, None)
    return jnp.dot(terms, jnp.ones_like(terms), precision="highest") + jnp.sum(linear[rest] - jnp.log1p(e[rest]))


@log_bernoulli.defjvp
def _log_bernoulli_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (value, logits), (d_value, d_logits) = primals, tangents
    slope = value - softplus_and_sigmoid(logits)[1]
    return log_bernoulli(value, logits), jnp.sum(d_value * logits + slope * d_logits)


@jax.custom_jvp
def log_bernoulli_affine(
    value: Float[Array, " d"], weight: Float[Array, "h d"], bias: Float[Array, " d"], v: Float[Array, " h"]
) -> Float[Array, ""]:
    """`log_bernoulli` of units whose logits are v W + b, with a gradient in W that moves less memory.

    Over many draws with weights c_k the gradient is sum_k c_k v_k s_k', s being value - sigmoid(logits). A compiler
    follows the order in which the tangent is written: v (dW s) makes it (c v)' s, which weighs the small matrix and
    takes the large one as it lies, where (v dW) s makes it a transposed copy of c s.
    """
    return log_bernoulli(value, v @ weight + bias)


def _log_bernoulli_affine_jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    value, weight, bias, v = primals
    logits = v @ weight + bias
    slope = value - softplus_and_sigmoid(logits)[1]
    by_argument = (
        lambda d: d @ logits,
        lambda d: v @ (d @ slope),
        lambda d: d @ slope,
        lambda d: d @ (weight @ slope),
    )
    # what is constant costs nothing
    terms = [of(d) for of, d in zip(by_argument, tangents, strict=True) if not isinstance(d, SymbolicZero)]
    return log_bernoulli(value, logits), functools.reduce(operator.add, terms)


log_bernoulli_affine.defjvp(_log_bernoulli_affine_jvp, symbolic_zeros=True)


def log_bernoulli_layers(values: tuple[Array, ...], logits: tuple[Array, ...]) -> Float[Array, ""]:
    """Sum of `log_bernoulli` over layers."""
    terms = [log_bernoulli(value, logit) for value, logit in zip(values, logits, strict=True)]
    return functools.reduce(operator.add, terms)


def uniform_noise(key: PRNGKeyArray, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, "..."]:
    """Uniform numbers strictly inside (0, 1).

    In float32 they are odd multiples of 2^-24, from both words of each hash; `jax.random.uniform` throws one of them
    away, and random bits are what a small network spends much of its time on.
    """
    if dtype != jnp.float32 or str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny)
    size = math.prod(shape)
    half = jnp.arange((size + 1) // 2, dtype=jnp.uint32)
    bits = jnp.concatenate(threefry(jax.random.key_data(key), half, half + jnp.uint32(half.size)))[:size].reshape(shape)
    return ((bits >> jnp.uint32(9)).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)
