r"""Adam, with two divisions per parameter less than Optax's.

    m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2,    p <- p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

A small network spends a sixth of its step here, and a division by a number that is the same for all parameters costs as
much as any other: they are multiplied by its reciprocal instead. The state is that of `optax.adam`, and the updates are
the same but for rounding.

Reference:
    Kingma and Ba (2015), "Adam: a method for stochastic optimization", Algorithm 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from relbo.types import Number, Schedule

SETTINGS = frozenset({"b1", "b2", "eps"})
"""What of Optax's settings `adam` takes beside the learning rate."""


def adam(
    learning_rate: Number | Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam.

    Args:
        learning_rate: a number or a schedule.
        b1: decay of the mean of gradients.
        b2: decay of the mean of their squares.
        eps: added to the root.

    Returns:
        An optimiser of Optax.
    """

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = optax.safe_increment(state.count)

        def correction(decay: float) -> jax.Array:
            wide = jnp.result_type(float)
            return 1 / (1 - jnp.asarray(decay, wide) ** count.astype(wide))

        of_mean, of_square = correction(b1), correction(b2)
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)

        def step(m: jax.Array, v: jax.Array) -> jax.Array:
            return m * of_mean.astype(m.dtype) / (jnp.sqrt(v * of_square.astype(v.dtype)) + eps)

        return jax.tree.map(step, mean, square), optax.ScaleByAdamState(count, mean, square)

    scale = optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)
    return optax.chain(scale, optax.scale_by_learning_rate(learning_rate))
