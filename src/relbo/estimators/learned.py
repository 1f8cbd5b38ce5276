"""Parts that estimators learn for themselves: baselines and control variates, and the Adam steps that move them."""

from collections.abc import Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo._tree import is_finite
from relbo.models.layers import Affine

Learned = TypeVar("Learned")


class Perceptron(eqx.Module):
    """A scalar function of a vector: tanh layers, then an affine map that starts at zero."""

    hidden: tuple[Affine, ...]
    output: Affine

    @classmethod
    def create(cls, key: PRNGKeyArray, size_in: int, widths: Sequence[int], dtype: jnp.dtype) -> "Perceptron":
        """Glorot hidden layers of the given widths."""
        sizes = [size_in, *widths]
        keys = jax.random.split(key, max(len(widths), 1))
        hidden = [Affine.glorot(k, a, b) for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)]
        output = Affine(jnp.zeros((sizes[-1], 1)), jnp.zeros(1))
        return jax.tree.map(lambda leaf: leaf.astype(dtype), cls(tuple(hidden), output))

    def value(self, v: Float[Array, " in"]) -> Float[Array, ""]:
        """The value at one vector."""
        for layer in self.hidden:
            v = jnp.tanh(layer.apply(v))
        return self.output.apply(v)[0]


def float_type(pair: PyTree) -> jnp.dtype:
    """The floating-point type that the arrays of the pair share."""
    leaves = [leaf for leaf in jax.tree.leaves(pair) if eqx.is_inexact_array(leaf)]
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)


def adam_step(
    optimiser: optax.GradientTransformation, gradient: Learned, learned: Learned, state: optax.OptState
) -> tuple[Learned, optax.OptState]:
    """One descent step; none where an impossible draw has made the gradient infinite, which nothing would outlive."""
    with jax.numpy_dtype_promotion("standard"):  # Optax raises a Python float to an integer step count
        updates, new_state = optimiser.update(gradient, state, learned)
    taken = eqx.apply_updates(learned, updates), new_state
    return jax.tree.map(lambda new, old: jnp.where(is_finite(gradient), new, old), taken, (learned, state))
