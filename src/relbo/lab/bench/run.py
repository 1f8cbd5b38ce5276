"""All measurements of `relbo bench`, as one dictionary."""

import functools
import platform
import resource
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import relbo
from relbo.estimators import RLOO
from relbo.evaluate import FRESH_DRAWS
from relbo.lab.bench import contenders, waste
from relbo.lab.bench.products import forward, products, products_alone
from relbo.lab.bench.roofline import roofline
from relbo.lab.bench.steps import (
    Setting,
    Step,
    following,
    images,
    mean_evaluated,
    network,
    online,
    refresh,
    solved,
    train_step,
    vrs,
)
from relbo.lab.bench.timing import Timing, ratio, take_turns
from relbo.types import Pair

REFRESH_EPOCHS = 10
"""Epochs between two refreshes of a threshold, for the share of time that refreshing takes."""
REFRESH_DRAWS = (100, 20, 10)
IS_DRAWS, IS_IMAGES = 5_000, 40
RS_DRAWS, RS_IMAGES = 25, 100
"""What of the evaluation is timed."""


def run(
    *,
    layers: list[tuple[int, ...]],
    rounds: int,
    steps: int,
    batch_size: int = Setting().batch_size,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Measures everything.

    Args:
        layers: networks to time.
        rounds: turns that each contender gets.
        steps: steps in one turn.
        batch_size: images in a step.
        on_stage: told what is measured next.

    Returns:
        What `bench.json` holds.
    """
    on_stage("sampler waste")
    settings = Setting(batch_size=batch_size)._asdict()
    del settings["layers"]
    results: dict[str, Any] = {
        "machine": {
            "cores": _cores(),
            "processor": platform.machine(),
            "jax": jax.__version__,
            "backend": jax.default_backend(),
        },
        "settings": {"rounds": rounds, "steps": steps, **settings},
        "waste": waste.table(),
        "networks": {},
    }
    data = images()
    for widths in layers:
        name = "-".join(map(str, widths))
        setting = Setting(widths, batch_size)
        results["networks"][name] = _network(setting, data, rounds, steps, _named(on_stage, name))
    results["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return results


def _network(setting: Setting, data: Any, rounds: int, steps: int, on_stage: Callable[[str], None]) -> dict[str, Any]:
    on_stage("compiling")
    pair = network(setting, data)
    state = solved(pair, setting, data)
    step = train_step(pair, vrs(setting), data, setting.batch_size, state)
    paper = setting.as_in_the_paper()
    paper_step = train_step(pair, vrs(paper), data, setting.batch_size, state)
    plain = train_step(pair, RLOO(setting.num_proposals), data, setting.batch_size)
    followed = {name: following(pair, setting, threshold, data) for name, threshold in online(setting).items()}
    others, missing = contenders.find(setting, pair, data, state.thresholds.value)

    on_stage("steps in turns")
    runs: dict[str, Callable[[int], object]] = {
        "matrix products alone": _products_of(step, setting, steps),
        "matrix products alone, the paper's step": _products_of(paper_step, paper, steps),
        "roofline": roofline(setting),
        "relbo VRS": step.run,
        "relbo VRS, the paper's step": paper_step.run,
        "relbo RLOO": plain.run,
        **{f"relbo VRS, {name}": one.run for name, one in followed.items()},
        **others,
    }
    timings = take_turns({k: _bind(run, steps) for k, run in runs.items()}, rounds=rounds, units=steps)
    renew = {f"{n} draws": refresh(pair, setting, data, n) for n in REFRESH_DRAWS}
    refreshes = take_turns(renew, rounds=rounds)
    ours, plain_time = timings["relbo VRS"], timings["relbo RLOO"]
    report = step.run(steps)[1]

    on_stage("evaluation")
    return {
        "acceptance": float(report.extra["acceptance"]),
        "num_evaluated_per_step": mean_evaluated(report),
        "num_evaluated_per_draw": mean_evaluated(report) / float(report.extra["num_used"]) / setting.batch_size,
        "step_over_products": ratio(ours, timings["matrix products alone"]),
        "step_over_roofline": ratio(ours, timings["roofline"]),
        "step_over_rloo": ratio(ours, plain_time),
        "paper_step_over_products": ratio(
            timings["relbo VRS, the paper's step"], timings["matrix products alone, the paper's step"]
        ),
        "times_faster_than": {other: ratio(timings[other], ours) for other in others},
        "not_measured": missing,
        "refresh_share_of_time": {n: timing.median / (REFRESH_EPOCHS * ours.median) for n, timing in refreshes.items()},
        "following_share_of_time": {name: 1 - 1 / ratio(timings[f"relbo VRS, {name}"], ours) for name in followed},
        **_evaluation(pair, setting, data, rounds),
        "compile_seconds": step.compile_seconds,
        "temporary_bytes": step.temporary_bytes,
        "milliseconds_per_step": {k: _milliseconds(v) for k, v in timings.items()},
    }


def _products_of(step: Step, setting: Setting, steps: int) -> Callable[[int], object]:
    report = step.run(steps)[1]
    return products_alone(products(setting, mean_evaluated(report), float(report.extra["acceptance"])))


def _evaluation(pair: Pair, setting: Setting, data: Any, rounds: int) -> dict[str, float]:
    """Images per second of IS-5000 and RS-25, and their time over that of their forward products."""
    lanes = setting._replace(batch_size=10)  # a thousand draws at once, as the evaluation takes them
    block, per_block = products_alone(forward(lanes, 100)), 10 * 100
    found: dict[str, float] = {}
    for word, num_images, draws in (
        (f"is:{IS_DRAWS}", IS_IMAGES, IS_DRAWS),
        (f"rs:{RS_DRAWS}", RS_IMAGES, 2 * FRESH_DRAWS + RS_DRAWS),
    ):
        x, count = np.asarray(data[:num_images]), num_images * draws // per_block
        turns: dict[str, Callable[[], object]] = {
            "evaluation": functools.partial(relbo.evaluate, pair, x, [word], key=jax.random.key(0), repeats=1),
            "products": _bind(block, count),
        }
        timings = take_turns(turns, rounds=min(rounds, 3))
        name = word.replace(":", "")
        found[f"{name}_images_per_second"] = num_images / timings["evaluation"].median
        found[f"{name}_over_products"] = ratio(timings["evaluation"], timings["products"])
    return found


def _named(on_stage: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda stage: on_stage(f"{name}: {stage}")


def _bind(run: Callable[[int], object], steps: int) -> Callable[[], object]:
    return lambda: run(steps)


def _milliseconds(timing: Timing) -> dict[str, float]:
    return {field: 1e3 * value for field, value in timing._asdict().items()}


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
