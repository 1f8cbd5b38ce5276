"""Optimisers by name: any one of Optax that takes a learning rate and needs nothing but gradients."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax

from relbo._check import refuse, require
from relbo._options import OPTIMIZER_SETTINGS, check, check_all
from relbo.train.adam import SETTINGS, adam
from relbo.train.errors import first_line
from relbo.types import Schedule

LEARNING_RATE = 1e-3


class _Named(eqx.Module):
    """An optimiser made anew in every program from what it is made of: its learning rate is an argument then.

    Optax's own objects are functions that hide their numbers, which JAX takes for other programs.
    """

    make: Callable[..., optax.GradientTransformation]
    learning_rate: Any
    """An array, or a schedule."""
    settings: dict[str, Any]

    def init(self, params: Any) -> Any:
        """The state before the first step."""
        return self.make(learning_rate=self.learning_rate, **self.settings).init(params)

    def update(self, grads: Any, state: Any, params: Any = None) -> Any:
        """Updates, and the next state."""
        return self.make(learning_rate=self.learning_rate, **self.settings).update(grads, state, params)


def named_optimizer(
    name: str, learning_rate: float | Schedule = LEARNING_RATE, **settings: Any
) -> optax.GradientTransformation:
    """An optimiser of Optax.

    Args:
        name: such as "adam".
        learning_rate: a number or a schedule.
        **settings: its other arguments.

    Raises:
        ValueError: Optax has no such optimiser, or it does not take these settings, or it needs more than gradients.
    """
    if not _is_optimizer(name):
        refuse("optimizer", "the name of an Optax optimiser such as adam", name, filter(_is_optimizer, dir(optax)))
    make = getattr(optax, name)
    if not callable(learning_rate):
        check(lr=learning_rate)
    check_all(OPTIMIZER_SETTINGS, settings, "optimizer setting ")
    if name == "adam" and settings.keys() <= SETTINGS:
        make = adam  # the same, faster
    rate: Any = learning_rate if callable(learning_rate) else jnp.asarray(float(learning_rate))
    named = _Named(make, rate, settings)
    optimizer = optax.GradientTransformation(named.init, named.update)
    try:
        like = {"weights": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
        # what it would do to parameters, worked out by shapes alone
        eqx.filter_eval_shape(lambda o, p: o.update(p, o.init(p), p), optimizer, like)
    except Exception as error:  # whatever a user's settings make Optax raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"optax.{name} cannot be used with these settings {settings}: {reason}.") from error
    return optimizer


def _is_optimizer(name: Any) -> bool:
    make = getattr(optax, name, None) if isinstance(name, str) and name.isidentifier() else None
    return inspect.isfunction(make) and "learning_rate" in inspect.signature(make).parameters


def as_optimizer(optimizer: Any, lr: Any = None) -> optax.GradientTransformation:
    """The optimiser that a user means: one of Optax, its name, or None for Adam; names and None at `lr` or 1e-3."""
    if optimizer is None or isinstance(optimizer, str):
        if lr is not None and not callable(lr):
            check("fit: ", lr=lr)
        return named_optimizer(optimizer or "adam", LEARNING_RATE if lr is None else lr)
    if lr is not None:
        refuse("fit: lr", "left out where optimizer is an object, which has its own, and not a name", lr)
    is_one = callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))
    require(
        is_one and not isinstance(optimizer, type),
        "fit: optimizer",
        "an Optax optimiser such as optax.adam(1e-3), or its name",
        optimizer,
    )
    return optimizer
