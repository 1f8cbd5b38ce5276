"""What a threshold is, and what those that solve for T from fresh draws share."""

import abc
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._check import one_number_each
from relbo.acceptance import AbstractAcceptance, log_odds_of
from relbo.rejection import LogProbs, row_keys
from relbo.rejection_batch import fresh_log_weights_batch, is_batched
from relbo.types import Batch, Pair

State = TypeVar("State")


class AbstractThreshold(eqx.Module, Generic[State]):
    """How T(x) is chosen, kept per datapoint and renewed."""

    @abc.abstractmethod
    def init(self, num_data: int) -> State:
        """State for a dataset of `num_data` rows."""

    @abc.abstractmethod
    def lookup(
        self, key: PRNGKeyArray, pair: Pair, state: State, batch: Batch, acceptance: AbstractAcceptance
    ) -> tuple[Float[Array, " b"], State]:
        """T for the rows of a batch, refreshed from separate draws where due."""

    @abc.abstractmethod
    def follow(
        self,
        state: State,
        batch: Batch,
        t: Float[Array, " b"],
        first: LogProbs,
        acceptance: AbstractAcceptance,
    ) -> State:
        """Learns from the first S proposals of each row, after the step has used `t`."""

    @abc.abstractmethod
    def solve(
        self, key: PRNGKeyArray, pair: Pair, x: PyTree, acceptance: AbstractAcceptance | None = None
    ) -> Float[Array, ""]:
        """T for one datapoint outside the training set, from fresh draws."""

    @abc.abstractmethod
    def from_log_weights(self, log_w: Float[Array, " n"], acceptance: AbstractAcceptance) -> Float[Array, ""]:
        """T for one datapoint, from the log weights of n fresh draws."""

    @abc.abstractmethod
    def age(self, state: State, index: Int[Array, " b"]) -> Int[Array, " b"]:
        """Steps since each row's T was last renewed."""


def fresh_log_weights(key: PRNGKeyArray, pair: Pair, x: PyTree, num_draws: int) -> Float[Array, " n"]:
    """Log w = log p - log q of `num_draws` draws from q for one x; -inf where log p is."""
    condition = pair.proposal.condition(x)

    def one(k: PRNGKeyArray) -> Array:
        z, log_q = pair.proposal.sample_and_log_prob_given(k, condition)
        log_p = pair.model.log_joint(x, z)
        one_number_each(log_p, log_q)
        return log_odds_of(log_p, log_q, jnp.zeros(()))

    return jax.lax.stop_gradient(jax.vmap(one)(row_keys(key, num_draws)))


def solve_where(
    due: Array,
    otherwise: Float[Array, " b"],
    threshold: Any,  # Quantile or Rate: what has num_draws
    key: PRNGKeyArray,
    pair: Pair,
    batch: Batch,
    acceptance: AbstractAcceptance,
) -> Float[Array, " b"]:
    """`threshold.solve` for the rows that are due, behind one `lax.cond` for the batch."""

    def solve_all() -> Array:
        if is_batched(pair):
            log_w = fresh_log_weights_batch(key, pair, batch.x, threshold.num_draws)
            solved = jax.vmap(lambda f: threshold.from_log_weights(f, acceptance))(log_w)
        else:
            keys = row_keys(key, due.shape[0])
            solved = jax.vmap(lambda k, x: threshold.solve(k, pair, x, acceptance))(keys, batch.x)
        return jnp.where(due, solved.astype(otherwise.dtype), otherwise)

    return jax.lax.cond(jnp.any(due), solve_all, lambda: otherwise)
