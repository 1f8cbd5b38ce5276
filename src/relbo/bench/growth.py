"""How the time of a step grows with batch, S, layers and rejection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relbo.bench.steps import Setting, Step, images, network, solved, train_step, vrs
from relbo.bench.timing import take_turns

CURVES: dict[str, list[Setting]] = {
    "batch size": [Setting(batch_size=b) for b in (25, 50, 100, 200)],
    "S": [Setting(num_samples=s) for s in (2, 5, 10, 20)],
    "layers": [Setting(layers=(200,) * n) for n in (1, 2, 3, 4)],
    "proposals per draw": [Setting(gamma=g) for g in (0.9, 0.5, 0.2, 0.05)],
}


def run(*, rounds: int, steps: int, on_stage: Callable[[str], None] = lambda stage: None) -> dict[str, Any]:
    """Times the points of every curve in turns and fits time ~ size^exponent by least squares on logarithms."""
    data = images()
    curves = {}
    for name, settings in CURVES.items():
        on_stage(f"{name}: compiling")
        timed: dict[str, Step] = {}
        sizes = []
        for setting in settings:
            pair = network(setting, data)
            step = train_step(pair, vrs(setting), data, setting.batch_size, solved(pair, setting, data))
            count = min(steps, len(data) // setting.batch_size)
            drawn = float(step.run(count)[1].num_proposals) / (count * setting.batch_size * setting.num_samples)
            size = {
                "batch size": setting.batch_size,
                "S": setting.num_samples,
                "layers": len(setting.layers),
                "proposals per draw": drawn,
            }[name]
            sizes.append(float(size))
            timed[str(size)] = step
        on_stage(f"{name}: steps in turns")
        count = min(steps, len(data) // max(s.batch_size for s in settings))
        timings = take_turns({k: _bind(s, count) for k, s in timed.items()}, rounds=rounds, units=count)
        milliseconds = [1e3 * t.median for t in timings.values()]
        exponent = float(np.polyfit(np.log(sizes), np.log(milliseconds), 1)[0])
        curves[name] = {"sizes": sizes, "milliseconds": milliseconds, "exponent": exponent}
    return {"around": "200 units, batch 50, S = 5, gamma 0.9", "rounds": rounds, "steps": steps, "curves": curves}


def _bind(step: Step, count: int) -> Callable[[], object]:
    return lambda: step.run(count)


def plot(found: dict[str, Any], path: Path) -> Path:
    """One panel for each curve, both axes logarithmic."""
    from matplotlib.figure import Figure

    curves = found["curves"]
    figure = Figure(figsize=(3.2 * len(curves), 3), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
        sizes, times = np.array(curve["sizes"]), np.array(curve["milliseconds"])
        axes.loglog(sizes, times, "o-")
        axes.set_title(f"exponent {curve['exponent']:.2f}")
        axes.set_xlabel(name)
        axes.set_ylabel("ms per step")
        axes.set_xticks(sizes, [f"{s:.3g}" for s in sizes])
        axes.minorticks_off()
    figure.savefig(path, dpi=120)
    return path
