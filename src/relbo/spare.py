"""Whole columns of draws of which only some places are asked for, and what stands at the others.

A z that was rejected may have an infinite derivative, and 0 times that is NaN. So whoever differentiates whole columns
puts a draw that has a weight, and so a derivative, at every place that is not asked for, as a constant.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Shaped


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


def one_weighed(z: PyTree[Shaped[Array, "b k ..."]], weighed: Bool[Array, "b k"]) -> PyTree:
    """One draw of each row that has a weight, (b, ...), as a constant; where a row has none, that of another."""
    has_one = jnp.any(weighed, axis=1)
    row = jnp.where(has_one, jnp.arange(weighed.shape[0]), jnp.argmax(has_one))
    place = jnp.argmax(weighed, axis=1)[row]
    return jax.lax.stop_gradient(jax.tree.map(lambda v: v[row, place], z))


def _chosen(mask: Bool[Array, "*s"], this: PyTree, other: PyTree) -> PyTree:
    """Leaf by leaf, by a mask of their first axes."""
    return jax.tree.map(
        lambda u, v: jnp.where(mask.reshape(mask.shape + (1,) * (u.ndim - mask.ndim)), u, v), this, other
    )
