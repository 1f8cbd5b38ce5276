"""Refusals in one sentence: what was expected, what was got, what to do."""

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

Checked = TypeVar("Checked")
_collected: ContextVar[dict[str, Array] | None] = ContextVar("collected", default=None)


def require(condition: bool, what: str, expected: str, got: Any) -> None:  # noqa: FBT001
    """Raises `ValueError` naming the setting, what it must be and what it was."""
    if not condition:
        refuse(what, expected, got)


def refuse(what: str, expected: str, got: Any, known: Iterable[str] = ()) -> NoReturn:
    """Raises that `ValueError`, with the one of the `known` words that was perhaps meant."""
    raise ValueError(f"{what} must be {expected}, got {shortened(got)}{did_you_mean(got, known)}")


def did_you_mean(word: Any, known: Iterable[str], rest: str = "") -> str:
    """How a message about an unknown word ends: with the known one that is most like it, if any is, and its `rest`."""
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=1) if isinstance(word, str) and word not in known else []
    return f"; did you mean {close[0] + rest!r}?" if close else "."


def shortened(value: Any) -> str:
    """How a value looks in a message: one line, not longer than some 300 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 300 else f"{text[:280]} ... ({len(text)} characters)"


def is_int(value: Any, *, at_least: int) -> bool:
    """Whether `value` is a plain integer no smaller than `at_least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= at_least)


def is_real(value: Any) -> bool:
    """Whether `value` is one real number other than NaN."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and not math.isnan(value)


def is_number(value: Any, *, above: float | int = -math.inf, below: float | int = math.inf) -> bool:
    """Whether `value` is a number strictly between the limits, or an array of them; traced values pass."""
    if isinstance(value, jax.core.Tracer):
        return True
    if isinstance(value, jax.Array | np.ndarray):
        return jnp.issubdtype(value.dtype, jnp.floating) and bool(np.all((above < value) & (value < below)))
    return is_real(value) and bool(above < value < below)


def root_key(seed: int) -> PRNGKeyArray:
    """The key that a seed stands for."""
    require(is_int(seed, at_least=0) and seed < 2**32, "seed", "an integer from 0 to 2^32 - 1", seed)
    return jax.random.key(seed)


def checked_key(key: Any, what: str) -> None:
    """Refuses what is not one random key."""
    is_key = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()
    is_old = isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.shape == (2,)
    require(is_key or is_old, what, "a random key such as jax.random.key(0)", key)


def checked_pair(pair: Any, what: str) -> None:
    """Refuses what is not a model with a proposal."""
    from relbo.models.base import AbstractBatchPair
    from relbo.types import Pair

    expected = "a relbo.Pair(model, proposal), such as relbo.sbn makes"
    require(isinstance(pair, Pair | AbstractBatchPair), what, expected, pair)


def checked_estimator(estimator: Any, what: str) -> None:
    """Refuses what is not an estimator's instance, such as its class or its name."""
    from relbo.estimators.base import AbstractEstimator

    require(isinstance(estimator, AbstractEstimator), what, "an estimator such as relbo.VRS(5)", estimator)


def num_datapoints(x: PyTree, what: str) -> int:
    """The common first axis of all leaves of x, which must not be empty."""
    from relbo.data.row_files import RowFiles

    leaves = jax.tree.leaves(x)
    for leaf in leaves:
        is_array = isinstance(leaf, jax.Array | np.ndarray | RowFiles)
        # a key is an array too, of a type that `isdtype` does not know
        is_array = is_array and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        is_array = is_array and jnp.isdtype(leaf.dtype, ("bool", "numeric"))
        require(is_array, what, "an array of numbers, or a tree of such arrays", leaf)
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    ok = len(sizes) == 1 and sizes != {()} and sizes != {(0,)}
    require(ok, what, "arrays with the same number of datapoints, at least one, first", sorted(sizes))
    return next(iter(sizes))[0]


def checked_x(pair: Any, x: PyTree, what: str) -> None:
    """Refuses datapoints that the model of a pair does not take, see `AbstractModel.check_x`."""
    from relbo.data.row_files import RowFiles
    from relbo.types import Pair

    # rows on disk were gone through when they were written
    if isinstance(pair, Pair) and not any(isinstance(leaf, RowFiles) for leaf in jax.tree.leaves(x)):
        wrong = pair.model.check_x(jax.tree.map(np.asarray, x))
        if wrong is not None:
            raise ValueError(f"{what} must {wrong}.")


def batch_size(x: PyTree, index: Array) -> int:
    """The common first axis of a batch, or a `ValueError` that shows what disagrees."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    if np.ndim(index) != 1:
        raise ValueError(f"batch.index must have shape (b,), got {np.shape(index)}.")
    size = np.shape(index)[0]
    if not shapes or any(len(shape) == 0 or shape[0] != size for shape in shapes):
        raise ValueError(
            f"every leaf of batch.x must have the batch as its first axis, of length {size} like "
            f"batch.index; got leaves of shapes {shapes}."
        )
    return size


def one_number_each(log_p: Array, log_q: Array) -> None:
    """Refuses densities of one x and one z that are not one number each."""
    if np.shape(log_p) != () or np.shape(log_q) != ():
        raise ValueError(
            "model.log_joint(x, z) and proposal.log_prob(z, x) must return one number for one x and one z, got "
            f"shapes {np.shape(log_p)} and {np.shape(log_q)}. Sum over the parts of z and x inside them."
        )


def rows_in_range(index: Array, num_data: int | Array) -> None:
    """Refuses rows outside the dataset; only a concrete index can be checked here."""
    if isinstance(index, jax.core.Tracer) or isinstance(num_data, jax.core.Tracer):
        return
    # as numpy arrays: JAX would trace even constants inside a function that is being compiled
    rows, num_data = np.asarray(index), int(np.asarray(num_data))
    low, high = int(np.min(rows, initial=0)), int(np.max(rows, initial=0))
    if low < 0 or high >= num_data:
        raise ValueError(
            f"batch.index must lie in [0, {num_data}), the num_data given to init; got values from {low} to "
            f"{high}. Pass the size of the whole dataset to init, or row numbers that start at 0."
        )


def checked_rows(index: Int[Array, " b"], num_data: int | Int[Array, ""]) -> Int[Array, " b"]:
    """Refuses rows outside [0, num_data): a `ValueError` for concrete rows, a runtime error for traced ones."""
    rows_in_range(index, num_data)
    if not isinstance(index, jax.core.Tracer) and not isinstance(num_data, jax.core.Tracer):
        return index
    limit = num_data if isinstance(num_data, int) else "num_data"
    return refuse_if(
        index,
        jnp.any((index < 0) | (index >= jnp.asarray(num_data, index.dtype))),
        f"batch.index must lie in [0, {limit}), the num_data given to init; got a row outside of it.",
    )


def is_every_row(index: Array, num_data: int) -> bool:
    """Whether a batch is known, while it is traced, to be the whole dataset in order."""
    if isinstance(index, jax.core.Tracer) or index.shape != (num_data,):
        return False
    return bool(np.array_equal(np.asarray(index), np.arange(num_data)))


def refuse_if(value: Checked, condition: Bool[Array, ""], message: str) -> Checked:
    """`value`, with an error at run time where the condition holds; inside `collected`, the caller's to raise."""
    found = _collected.get()
    if found is None:
        return eqx.error_if(value, condition, message)
    found[message] = found[message] | condition if message in found else condition
    return value


@contextmanager
def collected() -> Iterator[dict[str, Array]]:
    """Gathers the conditions of `refuse_if`, by message, instead of raising from inside the compiled program.

    An error that is raised inside a program calls back to the host, and a program that does so cannot be kept in
    JAX's persistent compilation cache.
    """
    found: dict[str, Array] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)
