"""Small operations on pytrees."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

Tree = TypeVar("Tree")


def tree_add(a: Tree, b: Tree) -> Tree:
    """The sum of two trees of one structure; None, where a gradient has no leaf, counts as nothing."""
    return jax.tree.map(
        lambda u, v: v if u is None else u if v is None else u + v, a, b, is_leaf=lambda leaf: leaf is None
    )


def tree_scale(tree: Tree, factor: int | float | Float[Array, ""]) -> Tree:
    """Every leaf times a number."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(factor, leaf.dtype), tree)


def sum_in_blocks(block: Callable[[Array], Tree], start: Tree, count: Int[Array, ""], size: int) -> Tree:
    """`start` plus `block(done)` for done = 0, size, 2 size, ... below a count that only the running program knows."""
    begin = (jnp.zeros((), jnp.int32), start)
    return jax.lax.while_loop(
        lambda carry: carry[0] < count,
        lambda carry: (carry[0] + size, jax.tree.map(jnp.add, carry[1], block(carry[0]))),
        begin,
    )[1]


def sum_over_blocks(
    block: Callable[[Array], Tree], start: Tree, position: Int[Array, "b k"], todo: Bool[Array, "b k"], size: int
) -> Tree:
    """`start` plus `block(first)` for blocks [first, first + size) that hold all positions in `todo`."""
    beyond = jnp.iinfo(position.dtype).max

    def first_from(least: Array) -> Array:
        return jnp.min(jnp.where(todo & (position >= least), position, beyond))

    return jax.lax.while_loop(
        lambda carry: carry[0] < beyond,
        lambda carry: (first_from(carry[0] + size), jax.tree.map(jnp.add, carry[1], block(carry[0]))),
        (first_from(jnp.zeros((), position.dtype)), start),
    )[1]


def flat(tree: PyTree, dtype: jnp.dtype) -> Float[Array, " n"]:
    """All numbers of one observation, or of one z, in a row."""
    return jnp.concatenate([jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(tree)])


def freeze(tree: Tree) -> Tree:
    """The same values as constants of differentiation; leaves that are not arrays stay."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def numbers_as_arrays(tree: Tree) -> Tree:
    """Settings as arguments of a compiled function: one compilation serves all their values."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float) if isinstance(leaf, int | float) else leaf, tree)


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers of a tree are finite."""
    # one sum per leaf: NaN and inf survive it
    total = sum((jnp.sum(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)), jnp.zeros((), jnp.float32))
    return jnp.isfinite(total)


def attach_gradient(value: Float[Array, ""], grads: PyTree, params: PyTree) -> Float[Array, ""]:
    r"""A number equal to `value` whose gradient in `params` is exactly `grads`.

        value + <stop(grads), params - stop(params)>

    It lets a framework that differentiates a loss, forwards or backwards, take a gradient that was obtained
    otherwise. `grads` has the structure of `params`; leaves that are None, and parameters that are not
    floating-point arrays, take no part.
    """
    value = jax.lax.stop_gradient(value)
    gradients = jax.tree.leaves(grads, is_leaf=lambda leaf: leaf is None)
    parameters = jax.tree.leaves(params, is_leaf=lambda leaf: leaf is None)
    if len(gradients) != len(parameters):
        raise ValueError(
            f"attach_gradient: grads must have the structure of params, got {len(gradients)} leaves for "
            f"{len(parameters)}."
        )
    for g, p in zip(gradients, parameters, strict=True):
        if g is not None and eqx.is_inexact_array(p):
            change = p - jax.lax.stop_gradient(p)
            value = value + jnp.sum(jax.lax.stop_gradient(g) * change).astype(value.dtype)
    return value
