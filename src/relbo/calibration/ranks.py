"""Ranks of what a model drew among what was drawn for it."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from relbo._check import is_number, require
from relbo._tree import flat

MOST_NUMBERS = 50
"""Numbers of z that are ranked one by one; of larger z, that many fixed random sums."""
LANES = 100_000
"""Statistics that are computed at once."""

Statistic = Callable[[PyTree, PyTree], Array]
"""(x, z) -> a number."""


def named_rates(rates: Any) -> dict[str, float]:
    """Rates by the name of their source; two that would have one name are one mistake."""
    is_sequence = isinstance(rates, Sequence | np.ndarray) and not isinstance(rates, str) and np.ndim(rates) == 1
    require(is_sequence, "rates", "a sequence of acceptance rates, such as [0.5, 0.1]", rates)
    named: dict[str, float] = {}
    for rate in rates:
        require(is_number(rate, above=0, below=1), "each of rates", "a number in (0, 1)", rate)
        require(f"r at {rate:g}" not in named, "rates", "distinct in their first six digits", list(rates))
        named[f"r at {rate:g}"] = rate
    return named


def without_nan(values: np.ndarray, names: Sequence[str], source: str) -> None:
    """Refuses statistics that are NaN somewhere, which have no rank."""
    for name, is_nan in zip(names, np.isnan(values).any(axis=(0, 1)), strict=True):
        require(not is_nan, f"statistic {name!r}", f"a number at all draws from the model and from {source}", np.nan)


def numbers_of(z: PyTree) -> dict[str, Statistic]:
    """Statistics that look at each number of a z of this shape, or at random sums of them where they are many."""
    leaves = jax.tree_util.tree_leaves_with_path(z)
    names = [
        "z" + jax.tree_util.keystr(path) + ("".join(f"[{i}]" for i in index) if index else "")
        for path, leaf in leaves
        for index in np.ndindex(*jnp.shape(leaf))
    ]
    if len(names) <= MOST_NUMBERS:
        return {name: _weighed(row) for name, row in zip(names, np.eye(len(names)), strict=True)}
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (MOST_NUMBERS, len(names)))
    return {f"random sum {i}": _weighed(row) for i, row in enumerate(signs)}


def _weighed(weights: np.ndarray) -> Statistic:
    # a sum over the numbers of z
    def statistic(x: PyTree, z: PyTree) -> Array:
        numbers = flat(z, jnp.result_type(float))
        return jnp.sum(numbers * jnp.asarray(weights, numbers.dtype))

    return statistic


def among(rng: np.random.Generator, truth: PyTree, draws: PyTree) -> tuple[PyTree, np.ndarray]:
    """Puts what the model drew at a random place among the draws.

    Whatever rounding does to equal z at different places, a right source then has uniform ranks.

    Args:
        rng: randomness.
        truth: (n, ...) what the model drew.
        draws: (n, L, ...) what was drawn for it.

    Returns:
        (n, L + 1, ...) all of them, and the place of the truth in each row.
    """
    num_rows, num_samples = jax.tree.leaves(draws)[0].shape[:2]
    place, rows = rng.integers(0, num_samples + 1, num_rows), np.arange(num_rows)

    def one(first: Any, others: Any) -> np.ndarray:
        whole = np.concatenate([np.asarray(first)[:, None], np.asarray(others)], axis=1)
        whole[rows, 0], whole[rows, place] = whole[rows, place], whole[rows, 0]
        return whole

    return jax.tree.map(one, truth, draws), place


def evaluate_statistics(statistics: Sequence[Statistic], x: PyTree, z: PyTree) -> np.ndarray:
    """(n, L + 1, statistics) values of every statistic, a block of rows at a time."""
    num_rows, num_places = jax.tree.leaves(z)[0].shape[:2]
    size = max(1, min(num_rows, LANES // num_places))

    @eqx.filter_jit
    def block(x: PyTree, z: PyTree) -> Float[Array, "n l s"]:
        def one(x: PyTree, z: PyTree) -> Array:
            return jnp.stack([jnp.asarray(s(x, z), jnp.result_type(float)) for s in statistics])

        return jax.vmap(lambda x, zs: jax.vmap(lambda z: one(x, z))(zs))(x, z)

    parts = []
    for start in range(0, num_rows, size):
        rows = np.minimum(np.arange(start, start + size), num_rows - 1)  # one compilation: the last block repeats a row
        found = block(*jax.tree.map(lambda v, rows=rows: jnp.asarray(v[rows]), (x, z)))
        parts.append(np.asarray(found)[: num_rows - start])
    return np.concatenate(parts)


def ranks_at(rng: np.random.Generator, values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(n, statistics) how many of the other values are below that at `place`; ties are broken at random.

    With ties counted as a number that is uniform between none and all of them the rank is uniform on 0..L for discrete
    statistics too.
    """
    own = np.take_along_axis(values, place[:, None, None], axis=1)
    below, equal = np.sum(values < own, axis=1), np.sum(values == own, axis=1) - 1
    return below + rng.integers(0, equal + 1)
