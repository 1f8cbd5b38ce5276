"""What a threshold is, and how an estimator looks its thresholds up."""

import abc
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from relbo._check import is_int, is_number, require
from relbo.acceptance import AbstractAcceptance
from relbo.types import Number, Schedule
from relbo.view import AbstractView

State = TypeVar("State")


class Reading(NamedTuple):
    """What a threshold says about the rows of a batch.

    Example:
        >>> threshold = relbo.Fixed(1.0)
        >>> reading = threshold.read(threshold.init(num_data=4), jnp.arange(2))
        >>> reading.t.tolist(), reading.due.tolist()
        ([1.0, 1.0], [False, False])
    """

    t: Float[Array, " b"]
    """T of each row, in nats."""
    due: Bool[Array, " b"]
    """Rows whose T is to be solved from fresh draws before the step."""
    age: Int[Array, " b"]
    """Steps since each row's T was renewed."""
    correction: Float[Array, " b"] | float = 0.0
    """What is added to a T that is solved for."""


class AbstractThreshold(eqx.Module, Generic[State]):
    """How T(x) is chosen, kept per datapoint and renewed.

    A step reads T, solves it from fresh draws for the rows that are due, and afterwards hands over the log weights of
    its first proposals, which are iid from q whatever happened to them. So T never depends on the draws of its own
    step.

    Example:
        >>> log_w = jax.random.normal(key, (4, 1_000))
        >>> for threshold in (relbo.Fixed(1.0), relbo.Rate(0.5), relbo.Quantile(0.9)):
        ...     assert threshold.solve(log_w, relbo.Soft()).shape == (4,)
    """

    @property
    @abc.abstractmethod
    def fresh_draws(self) -> int:
        """Draws from q behind each T that is solved for; 0 if none is ever due."""

    @abc.abstractmethod
    def init(self, num_data: int) -> State:
        """State for a dataset of `num_data` rows; if there are fresh draws, with the steps taken as `step`."""

    @abc.abstractmethod
    def read(self, state: State, index: Int[Array, " b"]) -> Reading:
        """T of the rows of a batch."""

    @abc.abstractmethod
    def update(
        self,
        state: State,
        index: Int[Array, " b"],
        t: Float[Array, " b"],
        log_w: Float[Array, "b n"],
        acceptance: AbstractAcceptance,
    ) -> State:
        """The next state, after a step that used `t` and whose first proposals had the log weights `log_w`.

        A row that ran out of proposals used T = +inf: where it had been finite it is best solved anew.
        """

    @abc.abstractmethod
    def solve(
        self, log_w: Float[Array, "b n"], acceptance: AbstractAcceptance, step: Int[Array, ""] | None = None
    ) -> Float[Array, " b"]:
        """T of each row from the log weights of n draws from q; `step` is for schedules."""


def solved(
    threshold: AbstractThreshold,
    log_w: Float[Array, "b n"],
    acceptance: AbstractAcceptance,
    step: Int[Array, ""] | None = None,
) -> Float[Array, " b"]:
    """T of each row from its draws; NaN, which the sampler refuses, where a density of one of them is."""
    t = threshold.solve(log_w, acceptance, step)
    return jnp.where(jnp.any(jnp.isnan(log_w), axis=1), jnp.nan, t)


def look_up(
    threshold: AbstractThreshold,
    key: PRNGKeyArray,
    view: AbstractView,
    state: Any,
    index: Int[Array, " b"],
    acceptance: AbstractAcceptance,
) -> Reading:
    """T of the rows of a batch, solved from fresh draws where due; nothing is drawn where nothing is due.

    Example:
        >>> threshold = relbo.Rate(0.5)
        >>> state = threshold.init(num_data=4)
        >>> reading = relbo.thresholds.look_up(threshold, key, view, state, jnp.arange(4), relbo.Soft())
        >>> bool(jnp.all(jnp.isfinite(reading.t)))
        True
    """
    reading = threshold.read(state, index)
    if threshold.fresh_draws == 0:
        return reading

    def renewed() -> Reading:
        log_w = view.log_weights(key, threshold.fresh_draws)
        t = solved(threshold, log_w, acceptance, state.step).astype(reading.t.dtype) + reading.correction
        return reading._replace(t=jnp.where(reading.due, t, reading.t), age=jnp.where(reading.due, 0, reading.age))

    return jax.lax.cond(jnp.any(reading.due), renewed, lambda: reading)


def setting_at(setting: Number | Schedule, step: Int[Array, ""] | None, what: str) -> Float[Array, ""]:
    """The value of a number, or of a schedule at a step."""
    if callable(setting):
        if step is None:
            raise ValueError(f"{what} must be a number outside training, got a schedule; give its last value instead.")
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes floats with integer steps
            return jnp.asarray(setting(step), jnp.result_type(float))
    return jnp.asarray(setting, jnp.result_type(float))


def check_share(setting: Number | Schedule, what: str) -> None:
    """Refuses what is neither a number in (0, 1) nor a schedule."""
    require(
        callable(setting) or is_number(setting, above=0, below=1), what, "a number in (0, 1), or a schedule", setting
    )


def check_counts(name: str, num_draws: int, warmup: int | None) -> None:
    """Refuses a bad `num_draws` or `warmup`."""
    require(is_int(num_draws, at_least=1), f"{name}: num_draws", "an integer >= 1", num_draws)
    require(warmup is None or is_int(warmup, at_least=0), f"{name}: warmup", "an integer >= 0", warmup)
