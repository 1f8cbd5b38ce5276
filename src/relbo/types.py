"""The few structures that every part of relbo passes around."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from relbo._check import is_int, require
from relbo.models.base import AbstractBatchPair, AbstractModel, AbstractProposal

Number: TypeAlias = float | int | Float[Array, ""]
"""A setting that may be traced: `jax.vmap` over it gives a whole curve in one compilation."""
Schedule: TypeAlias = Callable[[Any], Any]
"""Step -> number, such as Optax's schedules."""


class Batch(NamedTuple):
    """Datapoints and where they stand in the dataset.

    Example:
        >>> relbo.Batch(x, index=jnp.arange(4)).x.shape
        (4, 4)
    """

    x: PyTree[Shaped[Array, "b ..."]]
    """Observations; every leaf has the batch as its first axis."""
    index: Int[Array, " b"]  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    """Row of each observation in the dataset, in [0, num_data); where a trainer has split it into shards, the place in
    the part of the estimator's state that it hands over."""


class Pair(eqx.Module):
    """What is trained: a model p(x, z) with parameters theta and a proposal q(z | x) with parameters phi.

    Example:
        >>> same = relbo.Pair(pair.model, pair.proposal)
        >>> bool(same.model.log_joint(x[0], same.proposal.sample(key, x[0])) < 0)
        True
    """

    model: AbstractModel
    proposal: AbstractProposal


AnyPair: TypeAlias = Pair | AbstractBatchPair
"""A pair written for one x and one z, or one that runs for all rows of a batch together."""


class LogProbs(NamedTuple):
    """Log densities of draws, in nats.

    Example:
        >>> view.log_densities(view.draw(key, 3)).log_q.shape
        (4, 3)
    """

    log_p: Float[Array, "*s"]
    """Log p(x, z)."""
    log_q: Float[Array, "*s"]
    """Log q(z | x)."""


class Weights(NamedTuple):
    """Weights of grad log p and grad log q in a score-function gradient, one for each draw.

    Example:
        >>> log_probs, pull_back = view.scored(view.draw(key, 3))
        >>> gradient = pull_back(relbo.Weights(model=jnp.full((4, 3), 1 / 3), proposal=jnp.zeros((4, 3))))
    """

    model: Float[Array, "b k"]
    """c^p_k, multiplies grad_theta log p(x, z_k)."""
    proposal: Float[Array, "b k"]
    """c^q_k, multiplies grad_phi log q(z_k | x)."""


class Draws(NamedTuple):
    """Latent draws of one step with their log densities, and the way from weights of them to a gradient.

    Example:
        >>> draws = relbo.estimators.independent_draws(relbo.Streams(key, key, key), view, 3)
        >>> draws.log_w.shape, bool(draws.used.all())
        ((4, 3), True)
    """

    z: PyTree[Shaped[Array, "b k ..."]]
    """Up to k draws for each datapoint."""
    log_p: Float[Array, "b k"]
    log_q: Float[Array, "b k"]
    used: Bool[Array, "b k"]
    """Which of the k places hold a draw that counts. The others may hold anything, and get no weight."""
    pull_back: Callable[[Weights], Any]
    """From weights, 0 where a draw is not used, to the gradient of sum_k c^p_k log p + c^q_k log q in the pair."""
    extra: Any = None
    """The estimator's own structure."""

    @property
    def log_w(self) -> Float[Array, "b k"]:
        """Log p - log q."""
        return self.log_p - self.log_q


class Info(NamedTuple):
    """What a step tells about itself; dropping it changes nothing.

    Example:
        >>> info = relbo.estimators.plain_info(jnp.array([-3.0, -2.0]), num_samples=5)
        >>> info.valid.tolist()
        [True, True]
    """

    bound: Float[Array, " b"]
    """Estimate of the bound in nats; where `valid` is false -inf for a row with impossible draws, else NaN."""
    valid: Bool[Array, " b"]
    """Rows that contributed to the gradient."""
    num_proposals: Int[Array, " b"]
    """Draws from q that each row paid for."""
    extra: Any = ()
    """The estimator's own NamedTuple, of fixed structure."""


class EmptyState(NamedTuple):
    """State of an estimator that remembers nothing but the size of the dataset.

    Example:
        >>> int(relbo.EmptyState.of(10).num_data)
        10
    """

    num_data: Int[Array, ""]

    @classmethod
    def of(cls, num_data: int) -> "EmptyState":
        """For a dataset of `num_data` rows."""
        require(is_int(num_data, at_least=1), "num_data", "an integer >= 1", num_data)
        return cls(jnp.asarray(num_data, jnp.int32))
