"""Random streams: every row of a batch owns an endless stream of proposals.

The j-th proposal of row i uses a hash of (i, j), so it is the same whoever asks for it and whenever. Proposals and
acceptances have separate keys: estimators on the same key share their proposals.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, Shaped, UInt32

from relbo._hash import threefry

AT_ONCE = 1_000
"""Draws that are evaluated at once: few enough to stay in cache, many enough to fill the matrix products."""
Result = TypeVar("Result")


class Streams(NamedTuple):
    """One key for each purpose.

    Example:
        >>> relbo.Streams(*jax.random.split(key, 3)).propose.shape
        ()
    """

    propose: PRNGKeyArray
    """Draws from q."""
    accept: PRNGKeyArray
    """Accept tests."""
    other: PRNGKeyArray
    """Whatever else an estimator draws, such as what is behind thresholds."""


def split(key: PRNGKeyArray, num: int = 2) -> Key[Array, " n"]:
    """`jax.random.split`, for the default generator with the rounds of the hash written out (`relbo._hash`)."""
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.split(key, num)
    counter = jnp.arange(num, dtype=jnp.uint32)
    words = threefry(jax.random.key_data(key), jnp.zeros_like(counter), counter)
    return jax.random.wrap_key_data(jnp.stack(words, axis=-1), impl=jax.random.key_impl(key))


def split_streams(key: PRNGKeyArray) -> Streams:
    """Splits the key of a step into its named streams."""
    return Streams(*split(key, 3))


def row_keys(key: PRNGKeyArray, num_rows: int) -> Shaped[Array, "n ..."]:
    """A key for each row."""
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(num_rows))


def stream_words(
    key: PRNGKeyArray, row: Int[Array, "*s"], position: Int[Array, "*s"]
) -> tuple[UInt32[Array, "*s"], UInt32[Array, "*s"]]:
    """Two random words for each place in the rows' streams, a hash of (row, position)."""
    root = jax.random.key_data(key).reshape(-1)[:2]
    return threefry(root, row.astype(jnp.uint32), position.astype(jnp.uint32))


def stream_keys(key: PRNGKeyArray, row: Int[Array, "*s"], position: Int[Array, "*s"]) -> Key[Array, "*s"]:
    """The key of each place in the rows' streams."""
    words = stream_words(key, row, position)
    size = jax.random.key_data(key).shape[-1] // 2  # other generators than the default have longer keys
    data = jnp.stack(words * size, axis=-1)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def grid(num_rows: int, num_draws: int) -> tuple[Int[Array, "b k"], Int[Array, "b k"]]:
    """Row and position of the first `num_draws` places of every row's stream."""
    rows, positions = jnp.indices((num_rows, num_draws), jnp.int32)
    return rows, positions


def places(num_draws: int) -> Int[Array, " k"]:
    """The first positions of a stream."""
    return jnp.arange(num_draws, dtype=jnp.int32)


def in_blocks(function: Callable[[Int[Array, " k"]], Result], num_rows: int, num_draws: int) -> Result:
    """`function(positions)`, a tree of (b, k), of the first positions of b rows' streams, `AT_ONCE` draws at a time.

    A row at a time would be as good for the matrix products. But then a loop takes x out of its rows, which XLA does
    once for every logit: that took twice as long as the products.
    """
    width = min(max(AT_ONCE // num_rows, 1), num_draws)
    parts = jax.lax.map(lambda i: function(i * width + places(width)), places(-(-num_draws // width)))
    return jax.tree.map(lambda v: jnp.moveaxis(v, 0, 1).reshape(num_rows, -1)[:, :num_draws], parts)


def log_uniform(word: UInt32[Array, "*s"], dtype: jnp.dtype) -> Float[Array, "*s"]:
    """Log U of a random word, U uniform on (0, 1)."""
    # from 32 bits: a 24-bit uniform is 0 once in 2^23 and would then accept anything
    return jnp.log(word.astype(dtype) + jnp.asarray(0.5, dtype)) - jnp.asarray(32 * 0.6931471805599453, dtype)
