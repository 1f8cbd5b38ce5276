r"""The path family: a method is a scalar for each datapoint whose gradient is the estimate.

A file supplies `draw`, which makes everything that is constant under differentiation (noise, and signals computed
from it), and `surrogate`, which is differentiated in the pair. The value of the surrogate means nothing; the bound is
reported in Info.
"""

import abc
from typing import Any, Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo.estimators.base import AbstractEstimator, State, check_rows, mean_over_valid, without_impossible
from relbo.streams import Streams, split_streams
from relbo.types import AnyPair, Batch, Info
from relbo.view import AbstractView, freeze, view_for


class AbstractPathEstimator(AbstractEstimator[State], Generic[State]):
    """An estimator that supplies `draw` and `surrogate`.

    Example:
        >>> issubclass(relbo.DReG, relbo.AbstractPathEstimator)
        True
    """

    @abc.abstractmethod
    def draw(self, streams: Streams, view: Any, state: State, batch: Batch) -> tuple[PyTree, State]:
        """Everything random of this step, (b, K, ...), as constants of differentiation."""

    @abc.abstractmethod
    def surrogate(self, view: Any, draws: PyTree) -> tuple[Float[Array, " b"], Info]:
        """A number for each datapoint; the gradient of its mean over valid rows is the estimate.

        Rows whose bound is -inf are left out of the mean; what multiplies log p or log q there must be finite all the
        same, since 0 times it is a part of the gradient.
        """

    def estimate(self, key: PRNGKeyArray, pair: AnyPair, state: State, batch: Batch) -> tuple[Any, State, Info]:
        """One estimate of the ascent gradient of the mean bound over the valid rows of the batch."""
        view: AbstractView = view_for(self, pair, batch)
        check_rows(state, batch)
        draws, state = self.draw(split_streams(key), view, state, batch)
        draws = freeze(draws)

        def total(p: AnyPair) -> tuple[Array, Info]:
            values, info = self.surrogate(view.at(p), draws)
            info = without_impossible(info, jnp.isneginf(info.bound))
            return jnp.sum(mean_over_valid(values[:, None], info.valid)), info

        grads, info = eqx.filter_grad(total, has_aux=True)(pair)
        return grads, state, info
