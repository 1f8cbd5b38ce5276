"""The training step, and the time of its matrix products alone."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from relbo.acceptance import Soft
from relbo.estimators import RLOO, VRS
from relbo.estimators.base import AbstractEstimator
from relbo.estimators.records import Tally, VRSState
from relbo.lanes import BLOCKS
from relbo.models.sbn import sbn
from relbo.thresholds import Quantile, QuantileState, look_up
from relbo.train.loop import TrainState, epoch_order, init_state, make_chunk
from relbo.types import Pair
from relbo.view import view_of

WIDTH, NUM_DATA = 784, 2_000
NEVER = 1 << 30
"""Steps: thresholds that are solved beforehand and stay."""


class Setting(NamedTuple):
    """What is timed."""

    layers: tuple[int, ...] = (200,)
    batch_size: int = 50
    num_samples: int = 5
    gamma: float = 0.9


class Step(NamedTuple):
    """A compiled step and what compiling took."""

    run: Callable[[int], Any]
    """Takes this many steps from the same state and waits for them."""
    compile_seconds: float
    temporary_bytes: int
    """Scratch memory of the compiled program."""


def images(num_data: int = NUM_DATA) -> Float[Array, "n d"]:
    """Binary images of the size of MNIST: what a sigmoid belief network with random weights dreams."""
    teacher = sbn(jax.random.key(7), (50,), jnp.full(WIDTH, 0.2))
    strong = jax.tree.map(lambda leaf: 4 * leaf if leaf.ndim == 2 else leaf, teacher.model)
    return jax.jit(jax.vmap(lambda k: strong.sample(k)[0]))(jax.random.split(jax.random.key(8), num_data))


def network(setting: Setting, data: Float[Array, "n d"], num_steps: int = 300) -> Pair:
    """A network that has seen some steps of RLOO, so that its weights differ from image to image as in training."""
    pair = sbn(jax.random.key(0), setting.layers, jnp.mean(data, axis=0))
    step = train_step(pair, RLOO(setting.num_samples), data, setting.batch_size)
    state, _ = step.run(num_steps)
    return state.pair


def solved(pair: Pair, setting: Setting, data: Float[Array, "n d"]) -> VRSState:
    """Thresholds of all rows at their quantile."""
    threshold = Quantile(setting.gamma, num_draws=100, every=NEVER, warmup=0)
    solve = eqx.filter_jit(lambda k, x: threshold.solve(view_of(pair, x).log_weights(k, 100), Soft()))
    blocks = [data[i : i + 100] for i in range(0, len(data), 100)]
    value = jnp.concatenate([solve(jax.random.fold_in(jax.random.key(3), i), x) for i, x in enumerate(blocks)])
    thresholds = QuantileState(value, jnp.zeros(len(data), jnp.int32), jnp.zeros((), jnp.int32))
    return VRSState(thresholds, Tally.zero())


def vrs(setting: Setting) -> VRS:
    """VRS whose thresholds stay as they are."""
    return VRS(setting.num_samples, Quantile(setting.gamma, num_draws=100, every=NEVER, warmup=0))


def train_step(
    pair: Pair, estimator: AbstractEstimator, data: Float[Array, "n d"], batch_size: int, state: Any = None
) -> Step:
    """The trainer's own program: sampler, gradient and Adam."""
    optimizer = optax.adam(1e-3)
    start = init_state(jax.random.key(1), pair, estimator, optimizer, len(data))
    if state is not None:
        start = start._replace(estimator_state=state)
    chunk: Any = make_chunk(estimator, optimizer, lambda key, rows: rows, batch_size)
    order = epoch_order(start.key, 0, len(data))
    first = jnp.zeros((), jnp.int32)

    def run(num_steps: int, start: TrainState = start) -> Any:
        count = jnp.asarray(num_steps % (len(data) // batch_size) or len(data) // batch_size, jnp.int32)
        state, report = start, None
        for _ in range(-(-num_steps // (len(data) // batch_size))):
            state, report = jax.block_until_ready(chunk(state, data, order, first, count))
        return state, report

    begin = time.perf_counter()
    compiled = chunk.lower(start, data, order, first, jnp.ones((), jnp.int32)).compile()
    seconds = time.perf_counter() - begin
    memory = compiled.compiled.memory_analysis()
    return Step(run, seconds, int(memory.temp_size_in_bytes))


class Product(NamedTuple):
    """A matrix product (rows, inner) x (inner, columns)."""

    rows: int
    inner: int
    columns: int


def products(setting: Setting, num_evaluated: float, *, shared: bool = True) -> list[Product]:
    """The matrix products of one step.

    For every proposal evaluated, p needs each layer's logits from the layer above and q those of its second layer
    and up; q's first layer is needed once for every image. The weights take one product for each layer and pass. What
    the gradient evaluates again is one block of late draws if the accept test's evaluation is shared, all accepted
    draws if it is not. The draws are constants: nothing is differentiated in them.
    """
    sizes = (WIDTH, *setting.layers)
    accepted = setting.batch_size * setting.num_samples
    again = -(-accepted // BLOCKS) if shared else accepted
    weighed = (accepted, again) if shared else (accepted,)
    found = []
    for i, (below, above) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        found += [Product(rows, above, below) for rows in (round(num_evaluated), again)]
        found += [Product(above, rows, below) for rows in weighed]
        first, *others = (round(num_evaluated), again) if i else (setting.batch_size, again if shared else 0)
        found += [Product(rows, below, above) for rows in (first, *others) if rows]
        found += [Product(below, rows, above) for rows in (weighed if i else (setting.batch_size, *weighed[1:]))]
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


def refresh(pair: Pair, setting: Setting, data: Float[Array, "n d"], num_draws: int) -> Callable[[], Any]:
    """Solves the thresholds of one batch, as a step does when they are due."""
    threshold = Quantile(setting.gamma, num_draws=num_draws, every=1, warmup=0)
    rows, due = jnp.arange(setting.batch_size), threshold.init(len(data))
    view = view_of(pair, data[: setting.batch_size])
    solve = eqx.filter_jit(lambda key: look_up(threshold, key, view, due, rows, Soft()).t)
    return lambda: jax.block_until_ready(solve(jax.random.key(0)))


def mean_evaluated(report: Any) -> float:
    """Proposals evaluated per step, of a chunk's report."""
    return float(np.asarray(report.extra["num_evaluated"]))
