r"""The path family: a method is a scalar for each datapoint whose gradient is the estimate.

A file supplies `draw`, which makes everything that is constant under differentiation (noise, and signals computed
from it), and `surrogate`, which is differentiated in `pair`. The value of the surrogate means nothing; the bound is
reported in Info.
"""

import abc
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo.estimators._score import check_num_samples
from relbo.estimators._valid import mean_over_valid
from relbo.estimators.base import AbstractDrawingEstimator, check_batch
from relbo.models.base import AbstractBatchReparameterizedProposal, AbstractProposal
from relbo.rejection import draw_grid
from relbo.types import Batch, EmptyState, Info, Pair, Streams, split_streams

State = TypeVar("State")
Frozen = TypeVar("Frozen")


class AbstractSurrogateEstimator(AbstractDrawingEstimator[State], Generic[State]):
    """An estimator that supplies `start`, `draw` and `surrogate`."""

    num_samples: AbstractVar[int]
    """K >= 1, draws per datapoint."""

    @abc.abstractmethod
    def surrogate(
        self, pair: Pair, draws: PyTree, state: State, batch: Batch
    ) -> tuple[Float[Array, " b"], State, Info]:
        """A number for each datapoint; the gradient of its mean over valid rows is the estimate."""

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    def estimate(self, key: PRNGKeyArray, pair: Pair, state: State, batch: Batch) -> tuple[Pair, State, Info]:
        """One estimate of the ascent gradient of the mean bound over the valid rows of the batch."""
        check_batch(batch, state)
        draws, state = self.draw(split_streams(key), pair, state, batch)
        draws = freeze(draws)

        def total(p: Pair) -> tuple[Array, tuple[State, Info]]:
            values, next_state, info = self.surrogate(p, draws, state, batch)
            return jnp.sum(mean_over_valid(values[:, None], info.valid)), (next_state, info)

        grads, (state, info) = eqx.filter_grad(total, has_aux=True)(pair)
        return grads, state, info


class AbstractNoiseEstimator(AbstractSurrogateEstimator[EmptyState]):
    """A path estimator that remembers nothing and draws K independent noises per datapoint from the proposal."""

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> EmptyState:
        """Nothing is remembered."""
        return EmptyState.of(num_data)

    def draw(self, streams: Streams, pair: Pair, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K noises, (b, K, ...)."""
        return draw_noise(streams.propose, pair.proposal, batch.x, self.num_samples), state


def draw_noise(key: PRNGKeyArray, proposal: AbstractProposal, x: PyTree, num_samples: int) -> PyTree:
    """K noises per datapoint; on the same key they make the very z that `draw_iid` draws."""
    if isinstance(proposal, AbstractBatchReparameterizedProposal):
        return proposal.noise_batch(key, x, num_samples)
    num_rows = jax.tree.leaves(x)[0].shape[0]
    return draw_grid(key, lambda k, _: proposal.noise(k), x, num_rows, num_samples)  # type: ignore[attr-defined]


def transform_noise(proposal: Any, noise: PyTree, x: PyTree) -> PyTree:
    """The draws that `draw_noise` stands for, (b, K, ...), differentiable in the proposal."""
    if isinstance(proposal, AbstractBatchReparameterizedProposal):
        return proposal.transform_batch(noise, x)
    return each(lambda x, noise: proposal.transform(noise, x), x, noise)


def freeze(tree: Frozen) -> Frozen:
    """The same values as constants of differentiation; leaves that are not arrays stay."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def each(function: Callable[..., Any], x: PyTree, *draws: PyTree) -> Any:
    """`function(x, *draws)` of one datapoint and one draw, for all b datapoints and their K draws."""
    return jax.vmap(lambda x, *row: jax.vmap(lambda *one: function(x, *one))(*row))(x, *draws)
