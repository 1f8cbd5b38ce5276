r"""The score-function family: every black-box method is two vectors of coefficients.

    gradient = sum_k c^p_k grad_theta log p(x, z_k) + c^q_k grad_phi log q(z_k | x)

A file of this family says which z to draw and which coefficients they get; this base does one forward pass and one
backward pass for all of them.
"""

import abc
from collections.abc import Callable
from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar, AbstractVar
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo._check import is_int, one_number_each, require
from relbo.estimators._valid import keep_if_any, mean_over_valid, usable_rows
from relbo.estimators.base import AbstractDrawingEstimator, AbstractEstimator, check_batch
from relbo.models.base import AbstractBatchModel, AbstractBatchProposal, AbstractProposal
from relbo.rejection import draw_grid
from relbo.types import Batch, Coefficients, Draws, EmptyState, Info, Pair, Streams, split_streams

State = TypeVar("State")
PullBack = Callable[[tuple[Array, Array]], Pair]
"""From weights of grad log p and grad log q, (b, K) each, to the gradient."""


class AbstractScoreEstimator(AbstractDrawingEstimator[State], Generic[State]):
    """An estimator that supplies `start`, `draw` (which returns `Draws`) and `coefficients`."""

    @abc.abstractmethod
    def coefficients(
        self, log_p: Float[Array, "b k"], log_q: Float[Array, "b k"], draws: Draws, state: State, batch: Batch
    ) -> tuple[Coefficients, State, Info]:
        """The weights c^p and c^q of the draws, given their log densities."""

    def estimate(self, key: PRNGKeyArray, pair: Pair, state: State, batch: Batch) -> tuple[Pair, State, Info]:
        """One estimate of the ascent gradient of the mean bound over the valid rows of the batch."""
        check_batch(batch, state)
        draws, state = self.draw(split_streams(key), pair, state, batch)
        (log_p, log_q), pull_back = self.score(pair, batch, draws)
        # the barriers keep the compiler from rounding the same sums differently in different estimators
        log_p, log_q = jax.lax.optimization_barrier((log_p, log_q))
        weights, state, info = self.coefficients(log_p, log_q, draws, state, batch)
        weights = jax.lax.optimization_barrier(tuple(mean_over_valid(c, info.valid) for c in weights))
        return keep_if_any(pull_back(weights), draws.valid), state, info

    def score(self, pair: Pair, batch: Batch, draws: Draws) -> tuple[tuple[Array, Array], PullBack]:
        """Log densities of the draws, and the map from weights of them to the gradient."""
        x, z = usable_rows(batch.x, jax.lax.stop_gradient(draws.z), draws.valid)
        x, z = jax.lax.optimization_barrier((x, z))  # the same program whatever made the draws, so the same rounding
        values, pull_back = eqx.filter_vjp(lambda p: log_densities(p, x, z), pair)
        return values, lambda weights: pull_back(weights)[0]


class AbstractIndependentEstimator(AbstractScoreEstimator[State], Generic[State]):
    """A score estimator whose draws are K independent proposals; supplies `draw`."""

    num_samples: AbstractVar[int]
    """K, draws from q per datapoint."""
    fewest_samples: AbstractClassVar[int]
    """The least K for which the estimator is defined."""

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, self.fewest_samples)

    def draw(self, streams: Streams, pair: Pair, state: State, batch: Batch) -> tuple[Draws, State]:
        """K draws from q."""
        return draw_iid(streams.propose, pair.proposal, batch.x, self.num_samples), state


class AbstractWeightEstimator(AbstractIndependentEstimator[EmptyState]):
    """A score estimator that remembers nothing and looks only at log w = log p - log q; a file supplies `weigh`."""

    @abc.abstractmethod
    def weigh(self, log_w: Float[Array, "b k"]) -> tuple[Coefficients, Float[Array, " b"]]:
        """The weights c^p and c^q of the draws, and the estimate of the bound."""

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> EmptyState:
        """Nothing is remembered."""
        return EmptyState.of(num_data)

    def coefficients(
        self, log_p: Float[Array, "b k"], log_q: Float[Array, "b k"], draws: Draws, state: EmptyState, batch: Batch
    ) -> tuple[Coefficients, EmptyState, Info]:
        """The weights c^p and c^q of the draws, given their log densities."""
        weights, bound = self.weigh(jax.lax.optimization_barrier(log_p - log_q))
        return weights, state, plain_info(bound, self.num_samples)


def check_num_samples(estimator: AbstractEstimator, num_samples: int, at_least: int) -> None:
    """Refuses a number of draws for which the estimator is not defined."""
    require(
        is_int(num_samples, at_least=at_least),
        f"{type(estimator).__name__}: num_samples",
        f"an integer >= {at_least}",
        num_samples,
    )


def log_densities(pair: Pair, x: PyTree, z: PyTree) -> tuple[Float[Array, "b k"], Float[Array, "b k"]]:
    """Log p(x, z) and log q(z | x) of K draws for each of b datapoints."""
    if isinstance(pair.model, AbstractBatchModel) and isinstance(pair.proposal, AbstractBatchProposal):
        return pair.model.log_joint_batch(x, z), pair.proposal.log_prob_batch(z, x)

    def one(x: PyTree, z: PyTree) -> tuple[Array, Array]:
        log_p, log_q = pair.model.log_joint(x, z), pair.proposal.log_prob(z, x)
        one_number_each(log_p, log_q)
        return log_p, log_q

    return jax.vmap(lambda x, zs: jax.vmap(lambda z: one(x, z))(zs))(x, z)


def draw_iid(key: PRNGKeyArray, proposal: AbstractProposal, x: PyTree, num_samples: int) -> Draws:
    """K independent draws from q for each datapoint."""
    if isinstance(proposal, AbstractBatchProposal):
        return Draws(proposal.sample_batch(key, x, num_samples))
    num_rows = jax.tree.leaves(x)[0].shape[0]
    return Draws(draw_grid(key, proposal.sample, x, num_rows, num_samples))


def plain_info(bound: Float[Array, " b"], num_samples: int) -> Info:
    """Info of an estimator that uses every one of its `num_samples` proposals."""
    return Info(
        bound=bound,
        valid=jnp.ones(bound.shape, bool),
        num_proposals=jnp.full(bound.shape, num_samples, jnp.int32),
    )


def leave_one_out(values: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """(v_k - mean v) / (K - 1), which is (v_k - mean of the others) / K: an unbiased covariance with what it weighs."""
    # a mean that is fused with what comes before or after it may be rounded differently in another estimator
    values = jax.lax.optimization_barrier(values)
    mean = jax.lax.optimization_barrier(jnp.mean(values, axis=-1, keepdims=True))
    return (values - mean) / (values.shape[-1] - 1)
