"""Small operations on pytrees."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

Tree = TypeVar("Tree")
FEW = 64
"""Weights per row up to which a product with the identity is cheaper than computing them again."""


def tree_add(a: Tree, b: Tree) -> Tree:
    """The sum of two trees of one structure; None, where a gradient has no leaf, counts as nothing."""
    return jax.tree.map(
        lambda u, v: v if u is None else u if v is None else u + v, a, b, is_leaf=lambda leaf: leaf is None
    )


def tree_scale(tree: Tree, factor: int | float | Float[Array, ""]) -> Tree:
    """Every leaf times a number."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(factor, leaf.dtype), tree)


class Begun(NamedTuple):
    """A sum that has begun."""

    total: Any
    counts: Bool[Array, ""]
    """Whether it is any good; else the sum begins at 0."""

    def value(self) -> Any:
        """The sum so far, by a pass over it."""
        return jax.tree.map(lambda leaf: jnp.where(self.counts, leaf, 0), self.total)


def sum_in_blocks(block: Callable[[Array], Any], start: Begun, count: Int[Array, ""], size: int) -> Any:
    """`start` plus `block(done)` for done = 0, size, 2 size, ... below a count that only the running program knows.

    Where nothing is to be added the sum is handed on as it is, without a pass over it.
    """

    def add(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        done, total = carry
        new = jax.lax.cond(count > 0, block, lambda _: jax.tree.map(jnp.zeros_like, total), done)
        counts = start.counts | (done > 0)
        return done + size, jax.tree.map(lambda u, v: jnp.where(counts, u, 0) + v, total, new)

    def goes_on(carry: tuple[Array, Any]) -> Bool[Array, ""]:
        return (carry[0] < count) | (~start.counts & (carry[0] == 0))

    return jax.lax.while_loop(goes_on, add, (jnp.zeros((), jnp.int32), start.total))[1]


def computed_once(c: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """The same numbers, by a product with the identity, behind which XLA does not look.

    Weights of draws multiply hundreds of numbers each, in every layer. XLA would compute them anew, divisions and all,
    for every one of these: a ninth of a step of 200-200-200.
    """
    size = c.shape[1]
    return jnp.dot(c, jnp.eye(size, dtype=c.dtype), precision="highest") if 1 < size <= FEW else c


def held(tree: Tree, rarely: Bool[Array, ""]) -> Tree:
    """The same numbers, behind a loop into which XLA does not look; what it is entered for changes nothing either.

    A compiler for CPUs writes a program into everything that uses its outputs: a draw was made anew, transposed and a
    number at a time, by the accept test, the weights and each of the checks. Unlike a product with the identity the
    loop takes infinities. It cannot be differentiated backwards.
    """

    def body(carry: tuple[Array, Tree]) -> tuple[Array, Tree]:
        return ~carry[0], jax.tree.map(lambda leaf: jnp.where(carry[0], leaf, jnp.zeros_like(leaf)), carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], body, (rarely, tree))[1]


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


def numbers_traced(tree: Tree) -> Tree:
    """Settings whose floating-point numbers are arguments of a compiled function, of weak type as they were.

    Zeros stay constants, and switch off what they multiply: a floor of 0 costs nothing. So do the settings of classes
    of a user's own, which may ask them in Python, as by `if self.decay > 0.5:`.
    """
    is_number = lambda leaf: isinstance(leaf, float | np.floating) and leaf != 0  # noqa: E731
    is_others = lambda node: isinstance(node, eqx.Module) and not type(node).__module__.startswith("relbo.")  # noqa: E731
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_number(leaf) else leaf, tree, is_leaf=is_others)


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers of a tree are finite."""

    # NaN and inf survive a sum, and products with ones add up in a fraction of the time of XLA's reductions
    def total(leaf: Array) -> Array:
        while leaf.ndim > 0:
            leaf = leaf @ jnp.ones(leaf.shape[-1], leaf.dtype)
        return leaf.astype(jnp.float32)

    sums = [total(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.isfinite(sum(sums, jnp.zeros((), jnp.float32)))


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
