"""Estimators in a step that can neither look back nor leave anything behind."""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import jax
from jaxtyping import PRNGKeyArray

from relbo.estimators import AbstractEstimator, AbstractVRS, VRSAll, VRSState
from relbo.numpyro.visits import AtEachVisit
from relbo.thresholds import Fixed, OnceSettled, SettledState
from relbo.train.errors import runtime_message
from relbo.train.starving import WORTH_A_WARNING, edge_message, starving_message
from relbo.types import AnyPair, EmptyState

LOGGER = logging.getLogger("relbo")


class Notes:
    """Warnings that are logged once. It has slots, so that what was said is no part of a loss's fingerprint."""

    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said: set[str] = set()

    def say(self, note: str | None) -> None:
        """Logs a note that is new."""
        if note is not None and note not in self.said:
            LOGGER.warning(note)
            self.said.add(note)


def forgetting(estimator: AbstractEstimator) -> str | None:
    """What it costs, and what to do, where thresholds cannot be kept; None where there is nothing to keep."""
    if not _has_threshold(estimator) or (isinstance(estimator.threshold, Fixed) and estimator.threshold.warmup == 0):
        return None
    return (
        "numpyro.infer.SVI has no place for thresholds, so T is solved anew for every row at every step, from "
        "extra draws, and a warm-up cannot be counted. Use relbo.numpyro.SVI, which takes the same arguments and "
        "keeps them."
    )


def warn_of_starving(state: Any) -> None:
    """Logs, at the end of a run, what went otherwise than meant: rows that ran out, edges, nothing rejected."""
    if not isinstance(state, VRSState) or isinstance(state.tally.num_steps, jax.core.Tracer):
        return
    share = float(state.tally.num_exhausted) / max(int(state.tally.num_steps), 1)
    if share > WORTH_A_WARNING:
        LOGGER.warning(starving_message(share))
    if state.edge is not None and bool(state.edge):
        LOGGER.warning(edge_message())
    waits = state.thresholds
    if isinstance(waits, SettledState) and not bool(waits.rejects):
        LOGGER.warning(
            f"rejection has not begun in {int(waits.step)} steps: it waits until the ELBO rises by less than rejection "
            "may gain. Train longer, or give warmup=, the number of steps without rejection."
        )


@contextmanager
def one_sentence() -> Iterator[None]:
    """Raises what the compiled program refuses as one sentence, without the trace of the callback that brought it."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "EquinoxRuntimeError: " not in str(error):
            raise
        raise RuntimeError(runtime_message(error)) from None


def _has_threshold(estimator: AbstractEstimator) -> TypeGuard[AbstractVRS | VRSAll]:
    return isinstance(estimator, AbstractVRS | VRSAll)


def without_memory(
    estimator: AbstractEstimator, key: PRNGKeyArray, pair: AnyPair, num_data: int
) -> tuple[AbstractEstimator, Any]:
    """The estimator, and its state, for a step that can neither look back nor leave anything behind."""
    if _has_threshold(estimator):
        threshold = estimator.threshold
        if isinstance(threshold, OnceSettled):
            threshold = threshold.threshold
        if any(callable(getattr(threshold, field.name)) for field in dataclasses.fields(threshold)):
            raise ValueError(
                "a threshold with a schedule needs steps that are counted, for which numpyro.infer.SVI has no place. "
                "Use relbo.numpyro.SVI, which takes the same arguments."
            )
        kept = dataclasses.replace(threshold, warmup=0) if isinstance(threshold, Fixed) else AtEachVisit(threshold)
        estimator = dataclasses.replace(estimator, threshold=kept)
        return estimator, estimator.init(key, pair, num_data)
    state = estimator.init(key, pair, num_data)
    if not isinstance(state, EmptyState):
        raise ValueError(
            f"{type(estimator).__name__} remembers things between steps, for which numpyro.infer.SVI has no place. "
            "Use relbo.numpyro.SVI, which takes the same arguments."
        )
    return estimator, state
