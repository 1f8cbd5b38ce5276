"""The contract of every estimator.

An estimator turns a batch into the ascent gradient of a bound. It is a frozen module whose fields are its settings;
all it remembers lives in the state that it is handed and hands back. Nothing else knows what kind it is: the
trainer, the command line and the tests see `init`, `estimate` and the class variables.
"""

import abc
from typing import Generic, TypeVar

import equinox as eqx
from equinox import AbstractClassVar
from jaxtyping import PRNGKeyArray, PyTree

from relbo._check import batch_size, rows_in_range
from relbo.models.base import AbstractProposal
from relbo.types import Batch, Bound, EmptyState, Info, Pair, Streams

State = TypeVar("State")


class AbstractEstimator(eqx.Module, Generic[State]):
    """Gradient estimator of a lower bound on log p(x)."""

    bound: AbstractClassVar[Bound]
    """The bound that is ascended."""
    unbiased: AbstractClassVar[bool]
    """Whether the expected estimate is the exact gradient of that bound, for theta and for phi."""
    requires: AbstractClassVar[type[AbstractProposal]]
    """What the proposal must be able to do; checked in `init`."""
    paper: AbstractClassVar[str]
    """Where the estimator comes from."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> State:
        """State before the first step, for a dataset of `num_data` rows."""

    @abc.abstractmethod
    def estimate(self, key: PRNGKeyArray, pair: Pair, state: State, batch: Batch) -> tuple[Pair, State, Info]:
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


class AbstractDrawingEstimator(AbstractEstimator[State], Generic[State]):
    """What both families share: a file supplies `start` and `draw`."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> State:
        """State before the first step."""

    @abc.abstractmethod
    def draw(self, streams: Streams, pair: Pair, state: State, batch: Batch) -> tuple[PyTree, State]:
        """Everything random of this step, (b, K, ...), as constants of differentiation."""

    def init(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> State:
        """State before the first step, for a dataset of `num_data` rows."""
        check_requirement(self, pair)
        return self.start(key, pair, num_data)


def check_requirement(estimator: AbstractEstimator, pair: Pair) -> None:
    """Refuses a proposal that cannot do what the estimator needs."""
    if not isinstance(pair.proposal, estimator.requires):
        raise ValueError(
            f"{type(estimator).__name__} needs a proposal of type {estimator.requires.__name__}, got "
            f"{type(pair.proposal).__name__}. Derive the proposal from it, or choose an estimator that needs less "
            "(`relbo list` shows what each needs)."
        )


def check_batch(batch: Batch, state: PyTree) -> None:
    """Refuses a batch whose parts disagree, or whose rows lie outside the dataset where only their number is kept."""
    batch_size(batch.x, batch.index)
    if isinstance(state, EmptyState) and state.num_data is not None:
        rows_in_range(batch.index, state.num_data)
