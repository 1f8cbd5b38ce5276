r"""Bernoulli units: how a logit and a noise become a value.

One network pass, `AbstractBernoulliProposal.rollout`, serves every use by the unit that it is given:

    hard        1[noise < sigmoid(logit)]           a sample, noise uniform on (0, 1)
    relaxed     sigmoid((logit + logit(noise))/tau) a binary Concrete sample
    mean        sigmoid(logit)                      a mean-field pass, noise ignored
    replay      noise                               the noise *is* the value: gives the logits at a known z
"""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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


def log_bernoulli(value: Float[Array, " d"], logits: Float[Array, " d"]) -> Float[Array, ""]:
    """Sum of log Bernoulli(value; sigmoid(logits)) over units; linear in value."""
    return jnp.sum(value * logits - jax.nn.softplus(logits))


def log_bernoulli_layers(values: tuple[Array, ...], logits: tuple[Array, ...]) -> Float[Array, ""]:
    """Sum of `log_bernoulli` over layers."""
    terms = [log_bernoulli(value, logit) for value, logit in zip(values, logits, strict=True)]
    return functools.reduce(operator.add, terms)
