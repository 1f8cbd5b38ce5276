"""Sampler waste: proposals evaluated for each one that is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from relbo.acceptance import Soft
from relbo.models.base import AbstractModel, AbstractProposal
from relbo.rejection import draw_accepted
from relbo.streams import split_streams
from relbo.types import Pair
from relbo.view import view_of

RATES: dict[str, tuple[float, ...]] = {
    "0.9": (0.9,),
    "0.5": (0.5,),
    "0.1": (0.1,),
    "0.01": (0.01,),
    "0.9 beside 0.01": (0.9, 0.01),
}
"""Acceptance rates of the rows of a batch, taken in turn."""


class KnownRate(AbstractModel):
    """A model whose acceptance rate at T = 0 is x, whatever z is."""

    def log_joint(self, x: Float[Array, ""], z: Float[Array, ""]) -> Float[Array, ""]:
        """The log odds of x."""
        return jnp.log(x) - jnp.log1p(-x)

    def sample(self, key: PRNGKeyArray) -> tuple[Array, Array]:
        """Not a distribution over x."""
        raise NotImplementedError("KnownRate is only for counting proposals")


class Anything(AbstractProposal):
    """A uniform number."""

    def sample(self, key: PRNGKeyArray, x: Float[Array, ""]) -> Float[Array, ""]:
        """Draws it."""
        return jax.random.uniform(key, (), x.dtype)

    def log_prob(self, z: Float[Array, ""], x: Float[Array, ""]) -> Float[Array, ""]:
        """Density 1."""
        return jnp.zeros_like(x)


@functools.partial(jax.jit, static_argnames="num_samples")
def count(key: PRNGKeyArray, x: Float[Array, " b"], num_samples: int) -> tuple[Array, Array]:
    """Proposals evaluated for a batch with these acceptance rates, and those that were needed."""
    pair = Pair(KnownRate(), Anything())
    accepted = draw_accepted(
        view_of(pair, x), split_streams(key), jnp.zeros_like(x), Soft(), num_samples=num_samples, max_rounds=100_000
    )
    return accepted.num_evaluated, jnp.sum(accepted.num_proposals)


def measure(rates: tuple[float, ...], *, batch_size: int = 50, num_samples: int = 5, num_batches: int = 40) -> float:
    """Proposals evaluated, divided by those up to each row's S-th acceptance, over many batches."""
    x = jnp.asarray(np.resize(rates, batch_size), jnp.result_type(float))
    counts = np.array([count(key, x, num_samples) for key in jax.random.split(jax.random.key(0), num_batches)], float)
    return float(counts[:, 0].sum() / counts[:, 1].sum())


def table(**settings: int) -> dict[str, float]:
    """Waste at each of `RATES`."""
    return {name: measure(rates, **settings) for name, rates in RATES.items()}
