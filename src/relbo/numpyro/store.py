"""Compiled programs that serve again: a call with the same model, guide and shapes is not traced a second time.

`resample`, `SVI.evaluate` and `EstimatorELBO.info` are single calls that a user does not wrap in `jax.jit`. Tracing and
compiling a program takes seconds, running it milliseconds. So what was compiled is kept here, under a name made of all
that decides what the trace looks like: the functions with what they close over and the globals that they mention, and
every argument that is not an array. Arrays are arguments of the compiled program. What is compiled inside of a handler
(`with handlers.scale(scale=0.1):`) is not kept.

A model that asks for the values of its data while it is traced (`int(x.max())`) cannot take them as such arguments;
they are then constants of the program, and their contents part of its name.
"""

import argparse
import functools
import hashlib
import logging
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree
from numpyro.primitives import _PYRO_STACK, Messenger

from relbo._check import collected

LOGGER = logging.getLogger("relbo")

LIMIT = 32
"""Programs that are kept; the one that was not used for longest gives way."""
LIMIT_WITH_DATA = 2
"""The same, of those that hold their data as constants: each keeps a dataset alive."""

NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises when a traced program asks for the value of an argument."""


_Kept = OrderedDict[Hashable, Callable[..., Any] | None]


class Store:
    """Compiled functions by name, the most recently used last."""

    def __init__(self, limit: int = LIMIT, limit_with_data: int = LIMIT_WITH_DATA) -> None:
        self.limit, self.limit_with_data = limit, limit_with_data
        self.kept: _Kept = OrderedDict()
        """None under the name of a program that asks for the values of its data."""
        self.kept_with_data: _Kept = OrderedDict()

    def call(self, function: Callable[..., Any], programs: tuple, data: PyTree, values: PyTree) -> Any:
        """`function(programs, data, values)`, compiled at most once for each name and each set of shapes.

        Args:
            function: a function of a module, so that it has one identity.
            programs: callables and settings, constants of the compiled program.
            data: arguments of the model; arrays, and anything else as constants.
            values: the same, for what a model never asks about: parameters, keys, settings that are numbers.
        """
        leaves = jax.tree.leaves((data, values))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(programs, data, values)  # the caller is being compiled itself
        # handlers in force change what is traced, so what they led to serves nobody else
        kept, with_data = (OrderedDict(), OrderedDict()) if _PYRO_STACK else (self.kept, self.kept_with_data)
        arrays, rest = eqx.partition((data, values), _is_array)
        constants, structure = jax.tree.flatten(rest)
        name = (function, fingerprint(programs), structure, fingerprint(constants))
        if kept.get(name, function) is not None:
            compiled = _compiled(kept, self.limit, name, lambda a: function(programs, *eqx.combine(a, rest)))
            try:
                return _raised(compiled(arrays))
            except NEEDS_VALUES:
                kept[name] = None
                LOGGER.info("the program asks for values of its data, so it is compiled for these data alone.")
        constant = (name, fingerprint([_on_host(leaf) for leaf in jax.tree.leaves(data)]))

        def with_constants(a: PyTree) -> Any:
            return function(programs, data, eqx.combine(a, rest[1]))

        return _raised(_compiled(with_data, self.limit_with_data, constant, with_constants)(arrays[1]))


STORE = Store()


def _compiled(
    kept: _Kept, limit: int, name: Hashable, function: Callable[[PyTree], Any]
) -> Callable[[PyTree], tuple[Any, dict[str, Any]]]:
    def with_refusals(arrays: PyTree) -> tuple[Any, dict[str, Any]]:
        with collected() as refused:
            result = function(arrays)
        return result, refused

    found = kept.get(name) or jax.jit(with_refusals)
    kept[name] = found
    kept.move_to_end(name)
    while len(kept) > limit:
        kept.popitem(last=False)
    return found


def _raised(outcome: tuple[Any, dict[str, Any]]) -> Any:
    # one sentence, in place of what Equinox prints when a compiled program raises
    result, refused = outcome
    for message, is_bad in refused.items():
        if is_bad:
            raise RuntimeError(message)
    return result


def fingerprint(value: Any) -> Hashable:
    """All that a trace of `value` can depend on, as something to compare.

    Containers and NumPy arrays are compared by content, all else by identity. Attributes are compared too where the
    object is a program itself, or a bag of settings, or of a class from the module of the function that mentions it.
    Only what is changed in place in other objects, such as those of other libraries, goes unseen.
    """
    return tuple(_parts(value, {}, None))


class _Same:
    """An object that equals itself only. It is kept, or another object could be given its address."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


_Seen = dict[int, tuple[int, Any]]
"""By address: the number of an object in the order of visits, and the object, which so keeps its address."""


def _parts(value: Any, seen: _Seen, module: str | None) -> Iterator[Hashable]:
    if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        yield type(value), repr(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
        yield value.shape, str(value.dtype), digest
    elif id(value) in seen:
        yield "seen", seen[id(value)][0]
    elif isinstance(value, list | tuple):
        seen[id(value)] = len(seen), value
        yield type(value), len(value)
        for item in value:
            yield from _parts(item, seen, module)
    elif isinstance(value, dict):
        seen[id(value)] = len(seen), value
        yield type(value), len(value)
        for key, item in value.items():
            yield from _parts(key, seen, module)
            yield from _parts(item, seen, module)
    elif isinstance(value, set | frozenset):
        seen[id(value)] = len(seen), value
        # no order: each item is described as if it were the first
        yield type(value), frozenset(tuple(_parts(item, dict(seen), module)) for item in value)
    elif isinstance(value, functools.partial):
        yield from _parts((functools.partial, value.func, value.args, value.keywords), seen, module)
    elif isinstance(value, types.MethodType):
        yield from _parts((types.MethodType, value.__func__, value.__self__), seen, module)
    elif isinstance(value, Messenger):
        # a model inside a handler, such as handlers.scale(model, scale=0.5)
        yield from _parts((type(value), vars(value)), seen, module)
    elif isinstance(value, types.FunctionType) and module in (None, value.__module__):
        seen[id(value)] = len(seen), value
        yield _Same(value)
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        for item in (*cells, value.__defaults__, value.__kwdefaults__, _mentioned(value)):
            yield from _parts(item, seen, value.__module__)
    else:
        yield _Same(value)
        if _shows_attributes(value, module):
            seen[id(value)] = len(seen), value
            calls = [vars(owner)["__call__"] for owner in type(value).__mro__ if "__call__" in vars(owner)]
            yield from _parts((calls, vars(value)), seen, type(value).__module__)


def _shows_attributes(value: Any, module: str | None) -> bool:
    if not hasattr(value, "__dict__") or isinstance(value, type | types.ModuleType | types.FunctionType | jax.Array):
        return False
    is_bag = isinstance(value, types.SimpleNamespace | argparse.Namespace)
    return is_bag or module in (None, type(value).__module__)


def _mentioned(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function mentions, and what it mentions of the modules among them, as `config.SCALE`."""
    names = sorted(_names(function.__code__))
    found, spaces, modules = {}, [("", function.__globals__)], set()
    for prefix, space in spaces:  # which grows on the way
        for name in names:
            if name not in space:
                continue
            value = found[prefix + name] = space[name]
            if isinstance(value, types.ModuleType) and id(value) not in modules:
                modules.add(id(value))
                spaces.append((f"{prefix}{name}.", vars(value)))
    return found


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a variable that has no value yet
        return False


def _on_host(leaf: Any) -> Any:
    return (
        np.asarray(leaf)
        if isinstance(leaf, jax.Array) and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
        else leaf
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind != "O")
