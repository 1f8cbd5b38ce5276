"""Optimisers by name: any one of Optax that takes a learning rate and needs nothing but gradients."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from relbo._check import refuse, require
from relbo._options import OPTIMIZER_SETTINGS, check, check_all
from relbo.train.adam import SETTINGS, adam
from relbo.train.errors import first_line

LEARNING_RATE = 1e-3


def named_optimizer(
    name: str, learning_rate: float | Callable[[Any], Any] = LEARNING_RATE, **settings: Any
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
    try:
        optimizer = make(learning_rate=learning_rate, **settings)
        like = {"weights": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
        # what it would do to parameters, worked out by shapes alone
        jax.eval_shape(lambda p: optimizer.update(p, optimizer.init(p), p), like)
    except Exception as error:  # whatever a user's settings make Optax raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"optax.{name} cannot be used with these settings {settings}: {reason}.") from error
    return optimizer


def _is_optimizer(name: Any) -> bool:
    make = getattr(optax, name, None) if isinstance(name, str) and name.isidentifier() else None
    return inspect.isfunction(make) and "learning_rate" in inspect.signature(make).parameters


def as_optimizer(optimizer: Any) -> optax.GradientTransformation:
    """The optimiser that a user means: one of Optax, its name, or None for Adam; names and None at 1e-3."""
    if optimizer is None or isinstance(optimizer, str):
        return named_optimizer(optimizer or "adam")
    is_one = callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))
    require(
        is_one and not isinstance(optimizer, type),
        "fit: optimizer",
        "an Optax optimiser such as optax.adam(1e-3), or its name",
        optimizer,
    )
    return optimizer
