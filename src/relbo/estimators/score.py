r"""The score-function family: every black-box method is two vectors of weights.

    gradient = sum_k c^p_k grad_theta log p(x, z_k) + c^q_k grad_phi log q(z_k | x)

A file of this family says which z to draw and which weights they get; this base does one forward pass and one
backward pass for all of them.
"""

import abc
from typing import Any, Generic

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo.estimators.base import AbstractEstimator, State, check_rows, mean_over_valid, without_impossible
from relbo.streams import Streams, split_streams
from relbo.types import AnyPair, Batch, Draws, Info, Weights
from relbo.view import AbstractView, view_for


class AbstractScoreEstimator(AbstractEstimator[State], Generic[State]):
    """An estimator that supplies `draw` and `weigh`.

    Example:
        >>> draws = relbo.estimators.independent_draws(relbo.Streams(key, key, key), view, 4)
        >>> weights, _, _ = relbo.RLOO(4).weigh(draws, relbo.EmptyState.of(4), batch)
        >>> bool(jnp.allclose(jnp.sum(weights.proposal, axis=1), 0, atol=1e-5))  # a baseline for nothing
        True
    """

    @abc.abstractmethod
    def draw(self, streams: Streams, view: AbstractView, state: State, batch: Batch) -> tuple[Draws, State]:
        """Draws of this step, with their log densities."""

    @abc.abstractmethod
    def weigh(self, draws: Draws, state: State, batch: Batch) -> tuple[Weights, State, Info]:
        """The weights c^p and c^q of the draws, 0 for those that do not count."""

    def estimate(self, key: PRNGKeyArray, pair: AnyPair, state: State, batch: Batch) -> tuple[Any, State, Info]:
        """One estimate of the ascent gradient of the mean bound over the valid rows of the batch."""
        view = view_for(self, pair, batch)
        check_rows(state, batch)
        draws, state = self.draw(split_streams(key), view, state, batch)
        weights, state, info = self.weigh(draws, state, batch)
        is_finite = jnp.all(jnp.isfinite(jnp.stack(weights)), axis=(0, 2)) & jnp.isfinite(info.bound)
        # the least of them is NaN where one is
        info = without_impossible(info, info.valid & ~is_finite & jnp.isneginf(jnp.min(draws.log_p, axis=1)))
        mean = Weights(*[mean_over_valid(c, info.valid) for c in weights])
        return draws.pull_back(mean), state, info


def independent_draws(streams: Streams, view: AbstractView, num_samples: int) -> Draws:
    """K independent draws from q for each datapoint, all of them used.

    Example:
        >>> draws = relbo.estimators.independent_draws(relbo.Streams(key, key, key), view, 3)
        >>> draws.log_p.shape
        (4, 3)
    """
    z = view.draw(streams.propose, num_samples)
    (log_p, log_q), pull_back = view.scored(z)
    return Draws(z, log_p, log_q, jnp.ones(log_p.shape, bool), pull_back)


def draw_from_q(self: Any, streams: Streams, view: AbstractView, state: State, batch: Batch) -> tuple[Draws, State]:
    """`draw` of an estimator that takes `num_samples` independent draws from q.

    Example:
        >>> state = relbo.EmptyState.of(4)
        >>> draws, state = relbo.estimators.draw_from_q(relbo.RLOO(5), relbo.Streams(key, key, key), view, state, batch)
        >>> draws.log_w.shape
        (4, 5)
    """
    return independent_draws(streams, view, self.num_samples), state


def leave_one_out(values: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """(v_k - mean v) / (K - 1), which is (v_k - mean of the others) / K: an unbiased covariance with what it weighs.

    Example:
        >>> relbo.estimators.leave_one_out(jnp.array([[1.0, 2.0, 6.0]])).tolist()
        [[-1.0, -0.5, 1.5]]
    """
    return (values - jnp.mean(values, axis=-1, keepdims=True)) / (values.shape[-1] - 1)
