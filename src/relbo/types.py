"""The few structures that every part of relbo passes around."""

import enum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from relbo._check import is_int, require
from relbo.models.base import AbstractModel, AbstractProposal


class Bound(enum.Enum):
    """Which lower bound on log p(x) an estimator ascends."""

    ELBO = "ELBO"
    IWAE = "IWAE"
    R_ELBO = "R-ELBO"


class Batch(NamedTuple):
    """Datapoints and where they stand in the dataset."""

    x: PyTree[Shaped[Array, "b ..."]]
    """Observations; every leaf has the batch as its first axis."""
    index: Int[Array, " b"]  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    """Row of each observation in the dataset, in [0, num_data)."""


class Pair(eqx.Module):
    """What is trained: a model p(x, z) with parameters theta and a proposal q(z | x) with parameters phi."""

    model: AbstractModel
    proposal: AbstractProposal


class Draws(NamedTuple):
    """Latent draws of one step, with whatever their estimator needs to weigh them."""

    z: PyTree[Shaped[Array, "b k ..."]]
    """K draws for each datapoint."""
    extra: Any = ()
    """The estimator's own structure."""
    valid: Bool[Array, " b"] | None = None
    """Rows whose draws are real; None if all are. The others are not looked at, and must be invalid in `Info`."""


class Coefficients(NamedTuple):
    """Weights of grad log p and grad log q in a score-function gradient, one for each draw."""

    model: Float[Array, "b k"]
    """c^p_k, multiplies grad_theta log p(x, z_k)."""
    proposal: Float[Array, "b k"]
    """c^q_k, multiplies grad_phi log q(z_k | x)."""


class Info(NamedTuple):
    """What a step tells about itself; dropping it changes nothing."""

    bound: Float[Array, " b"]
    """Estimate of the bound in nats, NaN where `valid` is false."""
    valid: Bool[Array, " b"]
    """Rows that contributed to the gradient."""
    num_proposals: Int[Array, " b"]
    """Draws from q that each row paid for."""
    extra: Any = ()
    """The estimator's own NamedTuple, of fixed structure."""


class EmptyState(NamedTuple):
    """State of an estimator that remembers nothing but the size of the dataset."""

    num_data: Int[Array, ""] | None = None

    @classmethod
    def of(cls, num_data: int) -> "EmptyState":
        """For a dataset of `num_data` rows."""
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        return cls(jnp.asarray(num_data, jnp.int32))


class Streams(NamedTuple):
    """One key for each purpose, so that estimators on the same key share their proposals."""

    propose: PRNGKeyArray
    accept: PRNGKeyArray
    other: PRNGKeyArray


def split_streams(key: PRNGKeyArray) -> Streams:
    """Splits the key of a step into its named streams."""
    return Streams(*jax.random.split(key, 3))
