"""The contract of every estimator.

An estimator turns a batch into the ascent gradient of a bound. It is a frozen module whose fields are its settings;
all it remembers lives in the state that it is handed and hands back. Nothing else knows what kind it is: the
trainer, the command line and the tests see `init`, `estimate`, `bound` and the class variables.
"""

import abc
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractClassVar
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from relbo._check import is_int, require, rows_in_range
from relbo.bounds import AbstractBound
from relbo.types import AnyPair, Batch, EmptyState, Info
from relbo.view import Needs, check_needs

State = TypeVar("State")


class AbstractEstimator(eqx.Module, Generic[State]):
    """Gradient estimator of a lower bound on log p(x).

    Example:
        >>> issubclass(relbo.VRS, relbo.AbstractEstimator), relbo.VRS.unbiased, relbo.RWS.unbiased
        (True, True, False)
    """

    unbiased: AbstractClassVar[bool]
    """Whether the expected estimate is the exact gradient of that bound, for theta and for phi."""
    needs: AbstractClassVar[Needs]
    """What the proposal must be able to do."""
    paper: AbstractClassVar[str]
    """Where the estimator comes from."""

    @property
    def follows_support(self) -> bool:
        """Whether the estimate is right also where the support of q depends on phi."""
        return False

    @property
    @abc.abstractmethod
    def bound(self) -> AbstractBound:
        """The bound that is ascended."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> State:
        """State before the first step, for a dataset of `num_data` rows."""

    @abc.abstractmethod
    def estimate(self, key: PRNGKeyArray, pair: AnyPair, state: State, batch: Batch) -> tuple[Any, State, Info]:
        """One estimate.

        Args:
            key: randomness of this step.
            pair: model and proposal.
            state: what `init` or the previous step returned.
            batch: datapoints and their rows.

        Returns:
            The *ascent* gradient of the mean bound over the batch, shaped like `pair` (None for what is not a
            floating-point array); the next state; and an `Info`.
        """


def remember_nothing(self: AbstractEstimator, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> EmptyState:
    """`init` of an estimator that remembers nothing but the size of the dataset.

    Example:
        >>> int(relbo.estimators.remember_nothing(relbo.RLOO(4), key, pair, 100).num_data)
        100
    """
    check_needs(self, pair)
    return EmptyState.of(num_data)


def check_rows(state: Any, batch: Batch) -> None:
    """Refuses rows outside the dataset where the state knows nothing but its size."""
    if isinstance(state, EmptyState):
        rows_in_range(batch.index, state.num_data)


def check_num_samples(estimator: AbstractEstimator, num_samples: int, at_least: int) -> None:
    """Refuses a number of draws for which the estimator is not defined.

    Example:
        >>> relbo.estimators.check_num_samples(relbo.RLOO(4), 4, at_least=2)
    """
    require(
        is_int(num_samples, at_least=at_least),
        f"{type(estimator).__name__}: num_samples",
        f"an integer >= {at_least}",
        num_samples,
    )


def plain_info(bound: Float[Array, " b"], num_samples: int) -> Info:
    """Info of an estimator that uses every one of its `num_samples` proposals.

    Example:
        >>> info = relbo.estimators.plain_info(jnp.array([-3.0, -2.0]), num_samples=5)
        >>> info.num_proposals.tolist()
        [5, 5]
    """
    return Info(
        bound=bound,
        valid=jnp.ones(bound.shape, bool),
        num_proposals=jnp.full(bound.shape, num_samples, jnp.int32),
    )


def without_impossible(info: Info, lost: Bool[Array, " b"]) -> Info:
    """Rows whose estimate is infinite because a draw is impossible, log p = -inf, are not valid; their bound is -inf.

    NaN is something else: a row whose log p or log q is NaN stays valid, so that whoever trains sees the fault.
    """
    return info._replace(bound=jnp.where(lost, -jnp.inf, info.bound), valid=info.valid & ~lost)


def normalised(log_w: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """Weights w / sum w of the draws of each row, 0 where all of them are impossible."""
    return jnp.where(jnp.all(jnp.isneginf(log_w), axis=-1, keepdims=True), 0, jax.nn.softmax(log_w, axis=-1))


def mean_over_valid(c: Float[Array, "b k"], valid: Bool[Array, " b"]) -> Float[Array, "b k"]:
    """Weights of the mean over valid rows; the others weigh nothing, even where theirs are not numbers."""
    return jnp.where(valid[:, None], c, 0) / jnp.maximum(jnp.sum(valid), 1).astype(c.dtype)
