"""All measurements of `relbo bench`, as one dictionary."""

import platform
import resource
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import relbo
from relbo.estimators import RLOO
from relbo.lab.bench import contenders, waste
from relbo.lab.bench.steps import (
    Setting,
    images,
    mean_evaluated,
    network,
    products,
    products_alone,
    refresh,
    solved,
    train_step,
    vrs,
)
from relbo.lab.bench.timing import Timing, ratio, take_turns

REFRESH_EPOCHS = 10
"""Epochs between two refreshes of a threshold, for the share of time that refreshing takes."""


def run(
    *,
    layers: list[tuple[int, ...]],
    rounds: int,
    steps: int,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Measures everything.

    Args:
        layers: networks to time.
        rounds: turns that each contender gets.
        steps: steps in one turn.
        on_stage: told what is measured next.

    Returns:
        What `bench.json` holds.
    """
    on_stage("sampler waste")
    results: dict[str, Any] = {
        "machine": {
            "cores": _cores(),
            "processor": platform.machine(),
            "jax": jax.__version__,
            "backend": jax.default_backend(),
        },
        "settings": {"rounds": rounds, "steps": steps, "batch_size": Setting().batch_size, "num_samples": 5},
        "waste": waste.table(),
        "networks": {},
    }
    data = images()
    for widths in layers:
        name = "-".join(map(str, widths))
        results["networks"][name] = _network(Setting(widths), data, rounds, steps, on_stage, name)
    results["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return results


def _network(
    setting: Setting, data: Any, rounds: int, steps: int, on_stage: Callable[[str], None], name: str
) -> dict[str, Any]:
    on_stage(f"{name}: compiling")
    pair = network(setting, data)
    state = solved(pair, setting, data)
    step = train_step(pair, vrs(setting), data, setting.batch_size, state)
    plain = train_step(pair, RLOO(setting.num_samples), data, setting.batch_size)
    report = step.run(steps)[1]
    evaluated = mean_evaluated(report)
    alone = products_alone(products(setting, evaluated))
    unshared = products_alone(products(setting, evaluated, shared=False))
    others, missing = contenders.find(setting, pair, data, state.thresholds.value)
    solve, solve_few = (refresh(pair, setting, data, n) for n in (100, 10))

    on_stage(f"{name}: steps in turns")
    runs: dict[str, Callable[[int], object]] = {
        "matrix products alone": alone,
        "matrix products if nothing were shared": unshared,
        "relbo VRS": step.run,
        "relbo RLOO": plain.run,
        **others,
    }
    timings = take_turns({k: _bind(run, steps) for k, run in runs.items()}, rounds=rounds, units=steps)
    refreshes = take_turns({"100": solve, "10": solve_few}, rounds=rounds)
    ours = timings["relbo VRS"]

    on_stage(f"{name}: evaluation")
    few = np.asarray(data[:4])
    relbo.evaluate(pair, few, ["is:5000"], key=jax.random.key(0), repeats=1)
    start = time.perf_counter()
    relbo.evaluate(pair, np.asarray(data[:40]), ["is:5000"], key=jax.random.key(0), repeats=1)
    seconds = time.perf_counter() - start
    return {
        "acceptance": float(report.extra["acceptance"]),
        "num_evaluated_per_draw": evaluated / (setting.batch_size * setting.num_samples),
        "step_over_products": ratio(ours, timings["matrix products alone"]),
        "step_over_unshared_products": ratio(ours, timings["matrix products if nothing were shared"]),
        "times_faster_than": {other: ratio(timings[other], ours) for other in others},
        "not_measured": missing,
        "refresh_share_of_time": {
            f"{n} draws": timing.median / (REFRESH_EPOCHS * ours.median) for n, timing in refreshes.items()
        },
        "is5000_images_per_second": 40 / seconds,
        "compile_seconds": step.compile_seconds,
        "temporary_bytes": step.temporary_bytes,
        "milliseconds_per_step": {k: _milliseconds(v) for k, v in timings.items()},
    }


def _bind(run: Callable[[int], object], steps: int) -> Callable[[], object]:
    return lambda: run(steps)


def _milliseconds(timing: Timing) -> dict[str, float]:
    return {field: 1e3 * value for field, value in timing._asdict().items()}


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
