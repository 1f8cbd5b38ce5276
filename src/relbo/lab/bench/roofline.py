"""The least that a step must do: products, one exponential per logit, random bits, Adam's traffic; nothing else.

The data flow is that of RLOO without its sums: bits become units, units logits, logits their exponentials, which are
pulled back to the weights, which Adam moves. There is no log-likelihood and no accept test, and no thresholds.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from relbo._hash import threefry
from relbo.lab.bench.steps import WIDTH, Setting
from relbo.train.adam import adam


def roofline(setting: Setting) -> Callable[[int], Any]:
    """A program that takes such steps, many in one compiled loop."""
    sizes = (WIDTH, *setting.layers)
    rows = setting.batch_size * setting.num_proposals
    keys = jax.random.split(jax.random.key(6), 2 * len(sizes))
    steps = list(zip(sizes[:-1], sizes[1:], strict=True))
    down = [0.05 * jax.random.normal(k, (below, above)) for k, (below, above) in zip(keys, steps, strict=False)]
    up = [
        0.05 * jax.random.normal(k, (above, below))
        for k, (below, above) in zip(keys[len(sizes) :], steps, strict=False)
    ]
    x = jax.random.bernoulli(keys[-1], 0.2, (setting.batch_size, WIDTH)).astype(jnp.float32)
    optimizer = adam(1e-3)
    start = (down, up), optimizer.init((down, up))

    def units(i: Array, size: int) -> Float[Array, "n d"]:
        counter = jnp.arange(rows * size // 2, dtype=jnp.uint32)
        words = threefry(jnp.stack([i.astype(jnp.uint32), jnp.uint32(size)]), counter, counter)
        return (jnp.concatenate(words) >> jnp.uint32(31)).astype(jnp.float32).reshape(rows, size)

    def exponentials(logits: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return jnp.exp(-jnp.abs(logits))

    @jax.jit
    def loop(state: Any, x: Array, count: Array) -> Any:
        def body(i: Array, state: Any) -> Any:
            (down, up), moments = state
            h = [units(i + layer, size) for layer, size in enumerate(setting.layers)]
            of_p = [exponentials(above @ weight.T).T @ above for above, weight in zip(h, down, strict=True)]
            of_q = [exponentials(below @ weight.T).T @ below for below, weight in zip([x, *h[:-1]], up, strict=True)]
            updates, moments = optimizer.update((of_p, of_q), moments)
            return optax.apply_updates((down, up), updates), moments

        return jax.lax.fori_loop(0, count, body, state)

    return lambda count: jax.block_until_ready(loop(start, x, jnp.asarray(count, jnp.int32)))
