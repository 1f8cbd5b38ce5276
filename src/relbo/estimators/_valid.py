"""Rows that have no draws: they are left out of the gradient, and cannot spoil it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from relbo.types import Pair


def usable_rows(x: PyTree, z: PyTree, valid: Bool[Array, " b"] | None) -> tuple[PyTree, PyTree]:
    """X and z with a valid row in place of every invalid one: 0 times an infinite derivative would be NaN."""
    if valid is None:
        return x, z
    source = jnp.where(valid, jnp.arange(valid.shape[0]), jnp.argmax(valid))
    return jax.tree.map(lambda leaf: leaf[source], (x, z))


def keep_if_any(grads: Pair, valid: Bool[Array, " b"] | None) -> Pair:
    """The gradient, or 0 if no row of the batch is valid."""
    if valid is None:
        return grads
    return jax.tree.map(lambda leaf: jnp.where(jnp.any(valid), leaf, 0), grads)


def mean_over_valid(c: Float[Array, "b k"], valid: Bool[Array, " b"]) -> Float[Array, "b k"]:
    """Coefficients of the mean over valid rows; the others weigh nothing, even where theirs are not numbers."""
    # behind barriers, or a compiler merges this division with others and rounds differently from case to case
    c, count = jax.lax.optimization_barrier((c, jnp.maximum(jnp.sum(valid), 1).astype(c.dtype)))
    return jnp.where(valid[:, None], c, 0) / count
