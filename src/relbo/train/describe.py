"""Estimators as plain JSON: the name of a class of relbo's and its fields, nested where a field is such an object.

    {"class": "VRS", "fields": {"num_samples": 5, "threshold": {"class": "Fixed", "fields": {"value": 3.0}}, ...}}

What JSON has no word for is a dictionary that says what it is: `float` (infinities, NaN), `tuple`, `array`. Only public
classes of `relbo` are ever rebuilt: a description is data, never a program.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Indescribable(TypeError):
    """There is no description of an object: it is not of relbo's own classes, numbers and words."""


def describe(value: Any) -> Any:
    """The description of an object, ready for JSON.

    Args:
        value: an estimator, threshold or acceptance of relbo's; or a number, string, None, array or tuple of these.

    Raises:
        Indescribable: for anything else, such as a schedule or a class of the user's.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, tuple):
        return {"tuple": [describe(item) for item in value]}
    if isinstance(value, jax.Array | np.ndarray | np.generic) and jnp.isdtype(value.dtype, ("bool", "numeric")):
        return {"array": describe_numbers(np.asarray(value).tolist()), "dtype": str(value.dtype)}
    if public_class(type(value).__name__) is type(value):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"class": type(value).__name__, "fields": fields}
    raise Indescribable(
        f"only numbers, strings, arrays and objects of relbo's classes have a description, got {value}."
    )


def described(value: Any) -> tuple[Any, str]:
    """The description of an object, None if it has none, and a text of one line that tells it from others."""
    try:
        description = describe(value)
    except Indescribable:
        return None, eqx.tree_pformat(value, width=1 << 30, short_arrays=False)
    return description, spell(description)


def describe_numbers(value: Any) -> Any:
    """Numbers in nested lists."""
    return [describe_numbers(item) for item in value] if isinstance(value, list) else describe(value)


def rebuild(description: Any) -> Any:
    """What `describe` described.

    Args:
        description: its result, possibly read back from JSON.

    Raises:
        ValueError: for a class that relbo does not have, or fields that it does not take.
    """
    if isinstance(description, list):
        return [rebuild(item) for item in description]
    if not isinstance(description, dict):
        return description
    if "float" in description:
        return float(description["float"])
    if "tuple" in description:
        return tuple(rebuild(description["tuple"]))
    if "array" in description:
        return jnp.asarray(np.asarray(rebuild(description["array"]), description["dtype"]))
    name = description.get("class")
    cls = public_class(name)
    if cls is None:
        raise ValueError(f"a description must name a public class of relbo, got {name!r}.")
    fields = {field: rebuild(value) for field, value in description["fields"].items()}
    try:
        return cls(**fields)
    except TypeError as error:
        raise ValueError(f"relbo.{name} does not take the fields of its description: {error}.") from error


def spell(description: Any) -> str:
    """A description as one line to read, defaults included: `VRS(num_samples=5, threshold=Fixed(value=3.0), ...)`."""
    if isinstance(description, list):
        return "[" + ", ".join(map(spell, description)) + "]"
    if not isinstance(description, dict):
        return repr(description)
    if "class" in description:
        fields = ", ".join(f"{name}={spell(value)}" for name, value in description["fields"].items())
        return f"{description['class']}({fields})"
    return spell(next(iter(description.values())))


def public_class(name: Any) -> type[Any] | None:
    """The module class that relbo exports under a name."""
    import relbo

    found = getattr(relbo, name, None) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, eqx.Module) else None
