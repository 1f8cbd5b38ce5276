"""Estimators in a step that can neither look back nor leave anything behind."""

import dataclasses
import logging
from typing import Any, TypeGuard

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo.acceptance import AbstractAcceptance
from relbo.estimators import AbstractEstimator, VRSAll
from relbo.estimators._resampled import AbstractResampledEstimator
from relbo.rejection import LogProbs
from relbo.thresholds import AbstractThreshold, Fixed, FixedState, solve_where
from relbo.types import Batch, EmptyState, Pair

LOGGER = logging.getLogger("relbo")


class Anew(AbstractThreshold[FixedState]):
    """Solves T for every row at every step, from separate draws: what a threshold is without a memory."""

    threshold: AbstractThreshold

    def init(self, num_data: int) -> FixedState:
        """Nothing is kept."""
        return FixedState(jnp.zeros((), jnp.int32))

    def lookup(
        self, key: PRNGKeyArray, pair: Pair, state: FixedState, batch: Batch, acceptance: AbstractAcceptance
    ) -> tuple[Float[Array, " b"], FixedState]:
        """T of every row, from fresh draws."""
        everywhere = jnp.ones(batch.index.shape, bool)
        unused = jnp.zeros(batch.index.shape)
        return solve_where(everywhere, unused, self.threshold, key, pair, batch, acceptance), state

    def follow(
        self,
        state: FixedState,
        batch: Batch,
        t: Float[Array, " b"],
        first: LogProbs,
        acceptance: AbstractAcceptance,
    ) -> FixedState:
        """Nothing to learn."""
        return state

    def solve(
        self, key: PRNGKeyArray, pair: Pair, x: PyTree, acceptance: AbstractAcceptance | None = None
    ) -> Float[Array, ""]:
        """T for one datapoint."""
        return self.threshold.solve(key, pair, x, acceptance)

    def from_log_weights(self, log_w: Float[Array, " n"], acceptance: AbstractAcceptance) -> Float[Array, ""]:
        """T for one datapoint, from the log weights of fresh draws."""
        return self.threshold.from_log_weights(log_w, acceptance)

    def age(self, state: FixedState, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """Always new."""
        return jnp.zeros(index.shape, jnp.int32)


def warn_of_forgetting(estimator: AbstractEstimator) -> None:
    """Logs, where thresholds cannot be kept, what that costs and what to do."""
    if _has_threshold(estimator) and not isinstance(estimator.threshold, Fixed):
        LOGGER.warning(
            "numpyro.infer.SVI has no place for thresholds, so T is solved anew for every row at every step, from "
            "extra draws. Use relbo.numpyro.SVI, which takes the same arguments and keeps them."
        )


def _has_threshold(estimator: AbstractEstimator) -> TypeGuard[AbstractResampledEstimator | VRSAll]:
    return isinstance(estimator, AbstractResampledEstimator | VRSAll)


def without_memory(
    estimator: AbstractEstimator, key: PRNGKeyArray, pair: Pair, num_data: int
) -> tuple[AbstractEstimator, Any]:
    """The estimator, and its state, for a step that can neither look back nor leave anything behind."""
    if _has_threshold(estimator):
        if not isinstance(estimator.threshold, Fixed):
            estimator = dataclasses.replace(estimator, threshold=Anew(estimator.threshold))
        return estimator, estimator.init(key, pair, num_data)
    state = estimator.init(key, pair, num_data)
    if not isinstance(state, EmptyState):
        raise ValueError(
            f"{type(estimator).__name__} remembers things between steps, for which numpyro.infer.SVI has no place. "
            "Use relbo.numpyro.SVI, which takes the same arguments."
        )
    return estimator, state
