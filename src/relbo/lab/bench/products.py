"""The matrix products of a step, and the time that they take alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from relbo.lab.bench.steps import WIDTH, Setting
from relbo.lanes import NARROWEST


class Product(NamedTuple):
    """A matrix product (rows, inner) x (inner, columns)."""

    rows: int
    inner: int
    columns: int


def products(setting: Setting, num_evaluated: float, acceptance: float) -> list[Product]:
    """The matrix products of one step as it is, each once.

    For every proposal evaluated, p needs each layer's logits from the layer above and q those of its second layer
    and up; q's first layer is needed once for every image. The weights take one product for each layer. What was
    accepted after the first round is evaluated again, for its gradient. The draws are constants: nothing is
    differentiated in them.

    Args:
        setting: network, batch and budget.
        num_evaluated: proposals evaluated per step, by the report of the step itself.
        acceptance: share of them that are accepted.
    """
    first = setting.batch_size * setting.num_proposals
    late = num_evaluated - first
    late = late if late >= NARROWEST else 0  # less than one late round per step: a row at a time would cost far more
    again = round(acceptance * late)
    found = []
    for i, (below, above) in enumerate(_steps(setting)):
        once = first if i else setting.batch_size
        found += [Product(rows, above, below) for rows in (first, round(late), again)]
        found += [Product(below, rows, above) for rows in (first, again)]
        found += [Product(rows, below, above) for rows in (once, round(late) if i else 0, again)]
        found += [Product(above, rows, below) for rows in (once, again)]
    return [p for p in found if min(p) > 0]


def forward(setting: Setting, num_draws: int) -> list[Product]:
    """The products behind log w of so many draws for each of `setting.batch_size` images."""
    rows = setting.batch_size * num_draws
    found = []
    for i, (below, above) in enumerate(_steps(setting)):
        found += [Product(rows, above, below), Product(rows if i else setting.batch_size, below, above)]
    return found


def products_alone(shapes: list[Product]) -> Callable[[int], Any]:
    """A program that does these products and nothing else, again and again."""
    keys = jax.random.split(jax.random.key(5), 2 * len(shapes))
    left = [jax.random.normal(k, (p.rows, p.inner)) for k, p in zip(keys[::2], shapes, strict=True)]
    right = [jax.random.normal(k, (p.inner, p.columns)) for k, p in zip(keys[1::2], shapes, strict=True)]

    @jax.jit
    def loop(left: list[Array], right: list[Array], count: Array) -> Array:
        def body(_: Array, total: Array) -> Array:
            # the barriers tie the products to the loop: none can be hoisted, shared or cut short
            a, b, _ = jax.lax.optimization_barrier((left, right, total))
            results = jax.lax.optimization_barrier([u @ v for u, v in zip(a, b, strict=True)])
            return total + sum(r[0, 0] for r in results)

        return jax.lax.fori_loop(0, count, body, jnp.zeros(()))

    return lambda count: jax.block_until_ready(loop(left, right, jnp.asarray(count, jnp.int32)))


def _steps(setting: Setting) -> list[tuple[int, int]]:
    sizes = (WIDTH, *setting.layers)
    return list(zip(sizes[:-1], sizes[1:], strict=True))
