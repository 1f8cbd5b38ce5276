"""The training step that is timed, and its thresholds."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo.acceptance import Soft
from relbo.estimators import RLOO, VRS
from relbo.estimators.base import AbstractEstimator
from relbo.estimators.records import Tally, VRSState
from relbo.models.sbn import sbn
from relbo.thresholds import AbstractThreshold, Quantile, QuantileState, Rate, look_up
from relbo.train.loop import TrainState, epoch_order, init_state, make_chunk
from relbo.train.optimizers import named_optimizer
from relbo.types import Pair
from relbo.view import view_of

WIDTH, NUM_DATA, NUM_ROWS = 784, 2_000, 50_000
"""Pixels and images of the benchmark, and rows that thresholds are kept for: as many as MNIST has."""
SETTLING = 10
"""Epochs after which thresholds that are followed online are taken to have settled."""
NEVER = 1 << 30
"""Steps: thresholds that are solved beforehand and stay."""


class Setting(NamedTuple):
    """What is timed."""

    layers: tuple[int, ...] = (200,)
    batch_size: int = 50
    num_samples: int = 2
    """S, accepted draws at the least."""
    num_proposals: int = 6
    """N, proposals that every row evaluates."""
    gamma: float = 0.9
    rate: float | None = None
    """Acceptance rate at which T is solved for, instead of gamma."""

    def threshold(self) -> Quantile | Rate:
        """How T is solved for, on 100 draws."""
        return Rate(self.rate, 100) if self.rate else Quantile(self.gamma, num_draws=100, every=NEVER, warmup=0)

    def as_in_the_paper(self) -> "Setting":
        """The step without a budget, S = N = 5."""
        return self._replace(num_samples=5, num_proposals=5)


class Step(NamedTuple):
    """A compiled step and what compiling took."""

    run: Callable[[int], Any]
    """Takes this many steps from the same state and waits for them."""
    compile_seconds: float
    temporary_bytes: int
    """Scratch memory of the compiled program."""
    text: str
    """The compiled program."""
    flops: float
    """Operations of one pass through every loop, by the compiler's own count."""
    bytes_accessed: float
    """Bytes read and written, likewise."""


def images(num_data: int = NUM_DATA) -> Float[Array, "n d"]:
    """Binary images of the size of MNIST: what a sigmoid belief network with random weights dreams."""
    teacher = sbn(jax.random.key(7), (50,), jnp.full(WIDTH, 0.2))
    strong = jax.tree.map(lambda leaf: 4 * leaf if leaf.ndim == 2 else leaf, teacher.model)
    return jax.jit(jax.vmap(lambda k: strong.sample(k)[0]))(jax.random.split(jax.random.key(8), num_data))


def network(setting: Setting, data: Float[Array, "n d"], num_steps: int = 300) -> Pair:
    """A network that has seen some steps of RLOO, so that its weights differ from image to image as in training."""
    pair = sbn(jax.random.key(0), setting.layers, jnp.mean(data, axis=0))
    step = train_step(pair, RLOO(Setting().num_proposals), data, Setting().batch_size)  # whatever is timed later
    state, _ = step.run(num_steps)
    return state.pair


def solved(pair: Pair, setting: Setting, data: Float[Array, "n d"]) -> VRSState:
    """Thresholds of all rows at their quantile."""
    threshold = setting.threshold()
    solve = eqx.filter_jit(lambda k, x: threshold.solve(view_of(pair, x).log_weights(k, 100), Soft()))
    blocks = [data[i : i + 100] for i in range(0, len(data), 100)]
    value = jnp.concatenate([solve(jax.random.fold_in(jax.random.key(3), i), x) for i, x in enumerate(blocks)])
    value = jnp.pad(value, (0, NUM_ROWS - len(data)), constant_values=jnp.inf)
    thresholds = QuantileState(value, jnp.zeros(NUM_ROWS, jnp.int32), jnp.zeros((), jnp.int32))
    return VRSState(thresholds, Tally.zero())


def vrs(setting: Setting) -> VRS:
    """VRS whose thresholds stay as they are."""
    threshold = Quantile(setting.gamma, num_draws=100, every=NEVER, warmup=0)
    return VRS(setting.num_samples, threshold, num_proposals=setting.num_proposals)


def online(setting: Setting) -> dict[str, AbstractThreshold]:
    """Thresholds that are followed online, by name."""
    return {"online quantile": Quantile(setting.gamma, num_draws=20, every=None), "rate": Rate(0.9)}


def following(pair: Pair, setting: Setting, threshold: AbstractThreshold, data: Float[Array, "n d"]) -> "Step":
    """The same step with thresholds that are followed online, after every row has been visited several times."""
    estimator = VRS(setting.num_samples, threshold, num_proposals=setting.num_proposals)
    return train_step(pair, estimator, data, setting.batch_size, warm=SETTLING)


def train_step(
    pair: Pair,
    estimator: AbstractEstimator,
    data: Float[Array, "n d"],
    batch_size: int,
    state: Any = None,
    *,
    warm: int = 0,
) -> Step:
    """The trainer's own program: sampler, gradient and Adam; begun after `warm` epochs."""
    optimizer = named_optimizer("adam", 1e-3)
    start = init_state(jax.random.key(1), pair, estimator, optimizer, NUM_ROWS)
    if state is not None:
        start = start._replace(estimator_state=state)
    chunk: Any = make_chunk(estimator, optimizer, lambda key, rows: rows, batch_size)
    order = epoch_order(start.key, 0, len(data))
    first = jnp.zeros((), jnp.int32)

    most = len(data) // batch_size

    def run(num_steps: int, begin: TrainState | None = None) -> Any:
        state, report = warmed if begin is None else begin, None
        for done in range(0, num_steps, most):
            count = jnp.asarray(min(most, num_steps - done), jnp.int32)
            state, report = jax.block_until_ready(chunk(state, data, order, first, count))
        return state, report

    begin = time.perf_counter()
    compiled = chunk.lower(start, data, order, first, jnp.ones((), jnp.int32)).compile()
    seconds = time.perf_counter() - begin
    memory = compiled.compiled.memory_analysis()
    warmed = run(warm * most, start)[0]
    costs = compiled.compiled.cost_analysis() or {}
    return Step(
        run,
        seconds,
        int(memory.temp_size_in_bytes),
        compiled.compiled.as_text(),
        float(costs.get("flops", np.nan)),
        float(costs.get("bytes accessed", np.nan)),
    )


def refresh(pair: Pair, setting: Setting, data: Float[Array, "n d"], num_draws: int) -> Callable[[], Any]:
    """Solves the thresholds of one batch, as a step does when they are due."""
    threshold = Quantile(setting.gamma, num_draws=num_draws, every=1, warmup=0)
    rows, due = jnp.arange(setting.batch_size), threshold.init(NUM_ROWS)
    view = view_of(pair, data[: setting.batch_size])
    solve = eqx.filter_jit(lambda key: look_up(threshold, key, view, due, rows, Soft()).t)
    return lambda: jax.block_until_ready(solve(jax.random.key(0)))


def mean_evaluated(report: Any) -> float:
    """Proposals evaluated per step, of a chunk's report."""
    return float(np.asarray(report.extra["num_evaluated"]))
