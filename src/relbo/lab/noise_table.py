r"""Gradient noise of many estimators at one point, for an equal number of proposals per datapoint.

All estimators see the same parameters, the same batch and the same keys. Those that remember something (baselines,
controls, thresholds) first take `num_warmup` steps on random batches and one on the measured batch, the parameters
held fixed: an untrained baseline says nothing about its method. Thresholds are set at that last step, from separate
draws, which count as no proposals.

Each estimator gets the number of draws that spends the budget of N proposals: K = N for most, N / (L + 1) antithetic
sets for ARM and DisARM on L layers, N Z_R accepted draws for those with rejection, Z_R being measured in the warm-up.
Those with rejection appear a second time, with the budget itself (S = 2, all N proposals for every row).
What rounding leaves, or chance for those with rejection, is scaled out: with v the variance of an estimate and n its
mean number of proposals,

    variance at N proposals   v n / N,        signal-to-noise ratio   |mean| / sqrt(v n / N).

Passes that are no draws from q (relaxed units, mean fields, dreams, the backward pass) are not counted; they are in the
seconds. Each estimator is timed at one compiled estimate on the whole batch, as a step of training takes it, and its
ratio is also given for the time that the fastest one needs.

The squared mean of m estimates is too large by v / m in expectation, which is subtracted; standard errors come from
`NUM_GROUPS` independent groups of estimates.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

import relbo
from relbo._check import is_int, require, root_key
from relbo.devices import map_blocks
from relbo.estimators import REGISTRY, AbstractEstimator, AbstractVRS
from relbo.lab.config import RunConfig, build_estimator
from relbo.lab.noise_meters import AbstractMeter, Gradient
from relbo.lab.noise_rank import ranked, recommend
from relbo.lab.paper import output
from relbo.variance import GradientNoise, Noise, moments_of, noise_of

BUDGET = "-budget"
"""After the name of an estimator with rejection: S = 2 and all N proposals of the budget for every row."""
NUM_GROUPS = 10
"""Independent groups of estimates, behind the standard errors."""
FEWEST_PER_GROUP = 4
NUM_TIMINGS = 15
"""Estimates that are timed."""
CHUNK_BYTES = 128 * 2**20
"""About what the gradients and activations of the estimates that are computed together may take."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the noise is measured."""

    num_proposals: int = 10
    """N, the budget for each datapoint."""
    num_estimates: int = 500
    num_warmup: int = 500
    batch_size: int = 50
    threshold: str = "quantile:0.9"
    """For estimators with rejection, as in `RunConfig`; so are the next two."""
    acceptance: str = "soft:1.0"
    num_draws: int | None = None
    seed: int = 0

    def check(self, num_data: int) -> None:
        """Refuses what cannot be measured."""
        fewest = NUM_GROUPS * FEWEST_PER_GROUP
        require(is_int(self.num_proposals, at_least=2), "proposals", "an integer >= 2", self.num_proposals)
        require(is_int(self.num_estimates, at_least=fewest), "estimates", f"an integer >= {fewest}", self.num_estimates)
        require(is_int(self.num_warmup, at_least=2), "warmup", "an integer >= 2", self.num_warmup)
        require(
            is_int(self.batch_size, at_least=1) and self.batch_size <= num_data,
            "batch_size",
            f"an integer from 1 to the {num_data} training datapoints",
            self.batch_size,
        )
        root_key(self.seed)


def run(
    meter: AbstractMeter,
    names: Sequence[str] = (),
    settings: Settings | None = None,
    *,
    on_stage: Callable[[str], None] = lambda name: None,
    mesh: Mesh | None = None,
) -> dict[str, Any]:
    """Measures estimators at the parameters of a pair or of a NumPyro program.

    Args:
        meter: `PairMeter(pair, data)` or `ProgramMeter(model, guide, params, args)`.
        names: estimators by name; by default all that it can serve.
        settings: how to measure.
        on_stage: told each name before it is measured.
        mesh: devices that share the estimates.

    Returns:
        A dictionary ready for JSON, from which `plot` draws: a row for each estimator, ranked, and the recommendation.
    """
    settings = Settings() if settings is None else settings
    settings.check(meter.num_data)
    names = list(dict.fromkeys(names)) or usable(meter)
    for name in names:  # all are built before any is measured: a mistake is found at once
        meter.check(build(name, settings.num_proposals, settings))
    moves = meter.moves(settings.batch_size, settings.seed)
    rows = []
    for name in names:
        on_stage(name)
        row = measure(name, meter, settings, mesh)
        follows = build(name, settings.num_proposals, settings).follows_support
        rows.append({**row, "unbiased": row["unbiased"] and (follows or not moves)})
    rows = ranked(rows)
    return {
        "relbo_version": relbo.__version__,
        "settings": dataclasses.asdict(settings),
        "support_moves": moves,
        "estimators": rows,
        "recommendation": recommend(rows, settings.num_proposals),
    }


def usable(meter: AbstractMeter) -> list[str]:
    """The estimators of the registry that it can serve; those with rejection also with a budget."""
    names = [name for name, cls in REGISTRY.items() if meter.serves(cls)]
    with_budget = [name + BUDGET for name in names if issubclass(REGISTRY[name], AbstractVRS)]
    return [*names, *with_budget]


def build(name: str, num_samples: int, settings: Settings) -> AbstractEstimator:
    """An estimator by name whose thresholds are first set right after the warm-up, and then kept."""
    has_budget = name.endswith(BUDGET)
    config = RunConfig(
        estimator=name.removesuffix(BUDGET),
        num_samples=2 if has_budget else num_samples,
        num_proposals=settings.num_proposals if has_budget else None,
        threshold=settings.threshold,
        acceptance=settings.acceptance,
        num_draws=settings.num_draws,
        refresh_epochs=float(settings.num_warmup),
    )
    return build_estimator(config, steps_per_epoch=1)


def measure(name: str, meter: AbstractMeter, settings: Settings, mesh: Mesh | None = None) -> dict[str, Any]:
    """The noise of one estimator, after its warm-up, and how long an estimate takes."""
    estimator = build(name, settings.num_proposals, settings)
    ready = meter.warm_up(estimator, settings.num_warmup, settings.batch_size, settings.seed)
    # what a draw costs is known now; no state depends on the number of draws
    num_samples = round(settings.num_proposals**2 / ready.num_proposals)
    if num_samples != settings.num_proposals and not name.endswith(BUDGET):
        estimator = build(name, max(num_samples, fewest_samples(name, settings)), settings)

    one, operands = meter.gradient(estimator, ready)
    per_group, chunk = grouping(settings, meter.num_parameters, meter.numbers_per_row)
    key = jax.random.split(root_key(settings.seed), 4)[3]
    groups = noise_in_groups(_Group(one, operands, per_group, chunk), key, mesh)
    return {
        "estimator": name,
        "class": type(estimator).__name__,
        "bound": estimator.bound.label,
        "unbiased": estimator.unbiased,
        "num_samples": estimator.num_samples,  # type: ignore[attr-defined]
        "num_proposals_scaled_to": settings.num_proposals,
        "mean_num_proposals": float(jnp.mean(groups.num_proposals)),
        "seconds": seconds_of(one, key, operands),
        "num_estimates": per_group * NUM_GROUPS,
        "num_warmup": ready.num_steps,
        "theta": summary(groups.theta, groups, per_group, settings.num_proposals),
        "phi": summary(groups.phi, groups, per_group, settings.num_proposals),
    }


class _Group(NamedTuple):
    one: Gradient
    operands: Any
    per_group: int
    chunk: int


def noise_in_groups(settings: _Group, key: Array, mesh: Mesh | None = None) -> GradientNoise:
    """The noise in each of `NUM_GROUPS` groups of estimates, by one compiled program, on all devices."""
    groups = list(map_blocks(_noise_of_group, mesh, settings, iter(jax.random.split(key, NUM_GROUPS))))
    return jax.tree.map(lambda *parts: np.stack(parts), *groups)


def _noise_of_group(settings: _Group, key: Array) -> GradientNoise:
    def value(k: Array) -> tuple[Any, Array]:
        theta, phi, spent = settings.one(k, settings.operands)
        return (theta, phi), spent

    found = moments_of(value, key, num_estimates=settings.per_group, chunk=settings.chunk)
    spent = found.num_proposals
    return GradientNoise(
        noise_of(found.mean[0], found.variance[0], spent), noise_of(found.mean[1], found.variance[1], spent), spent
    )


def seconds_of(one: Gradient, key: Array, operands: Any) -> float:
    """How long one estimate takes, compiled, by itself: the median of some."""
    step = eqx.filter_jit(one)
    jax.block_until_ready(step(key, operands))
    times = []
    for k in jax.random.split(key, NUM_TIMINGS):
        start = time.perf_counter()
        jax.block_until_ready(step(k, operands))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def fewest_samples(name: str, settings: Settings) -> int:
    """The least number of draws that the estimator is defined for: 1 or 2."""
    try:
        build(name, 1, settings)
    except ValueError:
        return 2
    return 1


def grouping(settings: Settings, num_parameters: int, numbers_per_row: int) -> tuple[int, int]:
    """Estimates in each group, and how many of them are computed together: equal chunks within the memory allowed."""
    one = 4 * (num_parameters + settings.batch_size * settings.num_proposals * 2 * numbers_per_row)
    wanted = math.ceil(settings.num_estimates / NUM_GROUPS)
    num_chunks = math.ceil(wanted / max(CHUNK_BYTES // one, 2))
    chunk = max(math.ceil(wanted / num_chunks), 2)
    return num_chunks * chunk, chunk


def summary(noise: Noise, groups: GradientNoise, per_group: int, budget: int) -> dict[str, float | None]:
    """Variance and signal-to-noise ratio at the budget, with standard errors.

    A ratio of 0 says that no signal was found; its standard error is the ratio that one standard error of the squared
    mean would make. Without any variance there is no ratio: None.
    """
    variance = np.asarray(noise.total_variance, float)
    scale = float(np.mean(groups.num_proposals)) / budget
    if variance.mean() == 0:
        return {
            "variance": 0.0,
            "variance_standard_error": 0.0,
            "signal_to_noise": None,
            "signal_to_noise_standard_error": None,
        }
    signal = np.square(np.asarray(noise.signal_to_noise, float)) * variance - variance / per_group
    ratio = math.sqrt(max(signal.mean() / (variance.mean() * scale), 0.0))
    error = standard_error(signal) / (variance.mean() * scale)
    return {
        "variance": variance.mean() * scale,
        "variance_standard_error": standard_error(variance) * scale,
        "signal_to_noise": ratio,
        "signal_to_noise_standard_error": error / (2 * ratio) if ratio > 0 else math.sqrt(error),
    }


def standard_error(values: np.ndarray) -> float:
    """Of the mean of independent values."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def plot(results: dict[str, Any], path: Path) -> Path:
    """Draws variance and signal-to-noise of theta and phi: a line for each estimator; what is 0 is not drawn."""
    rows = results["estimators"]
    height = np.arange(len(rows))[::-1]
    figure, panels = output.new_figure(10.5, 1.1 + 0.24 * len(rows), 4, sharey=True)
    figures = [(part, figure_) for figure_ in ("variance", "signal_to_noise") for part in ("theta", "phi")]
    symbols = {"theta": r"$\theta$", "phi": r"$\phi$"}
    words = {"variance": "variance, {}", "signal_to_noise": "signal / noise, {}"}
    for axes, (part, name) in zip(panels, figures, strict=True):
        for color, unbiased in ((output.BLUE, True), (output.ORANGE, False)):
            chosen = [
                (y, row[part][name], row[part][f"{name}_standard_error"])
                for y, row in zip(height, rows, strict=True)
                if row["unbiased"] == unbiased and (row[part][name] or 0) > 0
            ]
            if chosen:
                y, value, error = zip(*chosen, strict=True)
                label = "unbiased" if unbiased else "biased for its bound"
                axes.errorbar(
                    value, y, xerr=error, fmt="o" if unbiased else "s", markersize=4, color=color, label=label
                )
        axes.set_xscale("log")
        decades = np.subtract(*np.log10(axes.get_xlim()[::-1]))
        axes.xaxis.set_major_locator(
            LogLocator(subs=(1,) if decades > 2 else (1, 2, 5))
            if decades > 0.7
            else MaxNLocator(3, steps=[1, 2, 5, 10])
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(words[name].format(symbols[part]), fontsize=8)
        axes.grid(axis="y", color=output.GREY, alpha=0.25, linewidth=0.6)
    panels[0].set_yticks(height, [row["estimator"] for row in rows])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    return output.save(figure, path)
