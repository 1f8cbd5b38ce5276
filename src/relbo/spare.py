"""Whole columns of draws of which only some places are asked for, and what stands at the others.

A z that was rejected may have an infinite derivative, and 0 times that is NaN. So whoever differentiates whole columns
puts a draw that has a weight, and so a derivative, at every place that is not asked for, as a constant.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from relbo.lanes import distinct


class Partly(NamedTuple):
    """Noise of whole columns of which only some places are asked for."""

    noise: PyTree
    is_own: Bool[Array, "b k"]
    """The places that are asked for."""
    spare: PyTree
    """(b, ...), what stands at the others."""

    def fill(self, z: PyTree) -> PyTree:
        """The draws that the noise makes, with the spare ones at the places that nobody asked for."""
        return _chosen(self.is_own, z, jax.tree.map(lambda one: one[:, None], self.spare))


def one_weighed(
    draw: Callable[[Int[Array, " k"]], PyTree],
    position: Int[Array, "b k"],
    weighed: Bool[Array, "b k"],
    is_needed: Bool[Array, ""],
    width: int,
) -> PyTree:
    """One draw of each row that has a weight, (b, ...), as a constant; where a row has none, that of another.

    Args:
        draw: from positions to whole columns of draws.
        position: where the places stand in their rows' streams.
        weighed: the places that have a weight.
        is_needed: whether anybody wants to know; nothing is drawn if not.
        width: columns that are drawn at once.
    """
    row, has_one = jnp.arange(position.shape[0], dtype=jnp.int32), jnp.any(weighed, axis=1)
    own = position[row, jnp.argmax(weighed, axis=1)]
    wanted, count = distinct(own[:, None], has_one[:, None])

    def visit(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        done, found = carry
        place = done + jnp.arange(width, dtype=jnp.int32)
        column = wanted[jnp.where(place < count, place, 0)]
        is_here = own[:, None] == column[None]
        z, slot = draw(column), jnp.argmax(is_here, axis=1)
        return done + width, _chosen(jnp.any(is_here, axis=1), jax.tree.map(lambda v: v[row, slot], z), found)

    shapes = jax.eval_shape(draw, wanted[:1])
    begin = jnp.zeros((), jnp.int32), jax.tree.map(lambda v: jnp.zeros((v.shape[0], *v.shape[2:]), v.dtype), shapes)
    _, found = jax.lax.while_loop(lambda carry: is_needed & (carry[0] < count), visit, begin)
    donor = jnp.where(has_one, row, jnp.argmax(has_one).astype(jnp.int32))
    return jax.lax.stop_gradient(jax.tree.map(lambda v: v[donor], found))


def _chosen(mask: Bool[Array, "*s"], this: PyTree, other: PyTree) -> PyTree:
    """Leaf by leaf, by a mask of their first axes."""
    return jax.tree.map(
        lambda u, v: jnp.where(mask.reshape(mask.shape + (1,) * (u.ndim - mask.ndim)), u, v), this, other
    )
