"""Estimators on the accepted draws alone, and their gradient from what the accept test computed.

The first round of proposals is evaluated once: the compiler sees the same log densities in the sampler and here. Those
that were rejected have weight 0. Draws accepted in later rounds are few; they are evaluated again in blocks, as many as
there are.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo.acceptance import Always
from relbo.estimators._resampled import AbstractResampledEstimator, VRSState
from relbo.estimators._score import PullBack, log_densities
from relbo.rejection import Accepted
from relbo.rejection_batch import is_batched
from relbo.thresholds import Fixed
from relbo.types import Batch, Coefficients, Draws, Info, Pair, Streams

BLOCKS = 8
"""Late draws are taken in blocks of this part of all draws: about what is late at an acceptance rate of 0.9."""


class AbstractAcceptedEstimator(AbstractResampledEstimator):
    """An estimator on the accepted draws alone; a file supplies `adjust`."""

    @abc.abstractmethod
    def adjust(self, weights: Coefficients) -> Coefficients:
        """Its coefficients, from those of the resampled ELBO."""

    def draw(self, streams: Streams, pair: Pair, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """S accepted draws for each row."""
        return self.accept(streams, pair, state, batch)

    def score(self, pair: Pair, batch: Batch, draws: Draws) -> tuple[tuple[Array, Array], PullBack]:
        """Log densities of the draws; those of the accept test, which are not redone, where the model allows it.

        Without rejection nothing is shared, so that the result is that of RLOO bit for bit.
        """
        never_rejects = isinstance(self.acceptance, Always) or self.threshold == Fixed(math.inf)
        if never_rejects or not pair.model.always_finite or is_batched(pair):
            return super().score(pair, batch, draws)
        return reuse(pair, batch.x, draws.extra[-1])

    def coefficients(
        self, log_p: Float[Array, "b k"], log_q: Float[Array, "b k"], draws: Draws, state: VRSState, batch: Batch
    ) -> tuple[Coefficients, VRSState, Info]:
        """The weights c^p and c^q of the accepted draws."""
        weights, info = self.resampled(log_p, log_q, draws)
        return self.adjust(weights), state, info


def reuse(pair: Pair, x: PyTree, accepted: Accepted) -> tuple[tuple[Array, Array], PullBack]:
    """Log densities of the accepted draws, and the map from weights of them to the gradient."""
    assert accepted.log_probs is not None and accepted.position is not None
    position = accepted.position
    num_rows, num_samples = position.shape
    first_z = jax.lax.stop_gradient(accepted.first_z)
    first, pull_first = eqx.filter_vjp(lambda p: log_densities(p, x, first_z), pair)
    # the values of this pass, not the sampler's: without rejection they are rounded as in an estimator without it
    first = jax.lax.optimization_barrier(first)
    place = jnp.minimum(position, num_samples - 1)
    log_p, log_q = (
        jnp.where(position < num_samples, jnp.take_along_axis(early, place, axis=1), late)
        for early, late in zip(first, accepted.log_probs, strict=True)
    )
    width = -(-position.size // BLOCKS)

    def pull_back(weights: tuple[Array, Array]) -> Pair:
        fills = position[:, :, None] == jnp.arange(num_samples, dtype=position.dtype)[None, None]
        of_first = tuple(jnp.sum(jnp.where(fills, w[:, :, None], 0), axis=1) for w in weights)
        (grads,) = pull_first(jax.lax.optimization_barrier(of_first))  # rounded as without rejection

        late = (position >= num_samples).reshape(-1)
        count = jnp.sum(late, dtype=jnp.int32)
        order = jnp.pad(jnp.argsort(~late, stable=True).astype(jnp.int32), (0, width))

        def block(carry: tuple[Array, Pair]) -> tuple[Array, Pair]:
            start, total = carry
            place = jax.lax.dynamic_slice(order, (start,), (width,))
            row, slot = place // num_samples, place % num_samples
            is_late = start + jnp.arange(width, dtype=jnp.int32) < count
            own_x = jax.tree.map(lambda leaf: leaf[row], x)
            own_z = jax.tree.map(lambda leaf: leaf[row, slot][:, None], jax.lax.stop_gradient(accepted.z))
            own_weights = tuple(jnp.where(is_late, w[row, slot], 0)[:, None] for w in weights)
            _, pull = eqx.filter_vjp(lambda p: log_densities(p, own_x, own_z), pair)
            return start + width, jax.tree.map(jnp.add, total, pull(own_weights)[0])

        zero = jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(lambda carry: carry[0] < count, block, (zero, grads))[1]

    return (log_p, log_q), pull_back
