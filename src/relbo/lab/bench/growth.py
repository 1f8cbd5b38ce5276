"""How the time of a step grows with batch, S, layers and rejection.

Two least-squares fits of each curve: time ~ size^exponent on logarithms, which says how far from linear it is as a
whole, and time = fixed + per_unit size with relative errors, which says why.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relbo._disk import replacing
from relbo.lab.bench.steps import Setting, Step, images, network, solved, train_step, vrs
from relbo.lab.bench.timing import take_turns

CURVES: dict[str, list[Setting]] = {
    "batch size": [Setting(batch_size=b) for b in (25, 50, 100, 200)],
    "S": [Setting(num_samples=s) for s in (2, 5, 10, 20)],
    "layers": [Setting(layers=(200,) * n) for n in (1, 2, 3, 4)],
    "proposals per draw": [Setting(gamma=g) for g in (0.9, 0.5, 0.2, 0.05)],
}


def run(*, rounds: int, steps: int, on_stage: Callable[[str], None] = lambda stage: None) -> dict[str, Any]:
    """Times the points of every curve in turns, and fits them."""
    data = images()
    curves = {}
    for name, settings in CURVES.items():
        on_stage(f"{name}: compiling")
        timed: dict[str, Step] = {}
        sizes, spent = [], []
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
            spent.append(drawn)
            timed[str(size)] = step
        on_stage(f"{name}: steps in turns")
        count = min(steps, len(data) // max(s.batch_size for s in settings))
        timings = take_turns({k: _bind(s, count) for k, s in timed.items()}, rounds=rounds, units=count)
        milliseconds = [1e3 * t.median for t in timings.values()]
        curves[name] = {
            "sizes": sizes,
            "proposals_per_draw": spent,
            "milliseconds": milliseconds,
            **fits(np.array(sizes), np.array(milliseconds)),
        }
    return {"around": "200 units, batch 50, S = 5, gamma 0.9", "rounds": rounds, "steps": steps, "curves": curves}


def fits(sizes: np.ndarray, times: np.ndarray) -> dict[str, float]:
    """The exponent of a power law, and fixed and proportional part of a straight line."""
    exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    per_unit, fixed = np.polyfit(sizes, times, 1, w=1 / times)
    return {"exponent": float(exponent), "fixed": float(fixed), "per_unit": float(per_unit)}


def _bind(step: Step, count: int) -> Callable[[], object]:
    return lambda: step.run(count)


def plot(found: dict[str, Any], path: Path) -> Path:
    """One panel for each curve, both axes logarithmic, with the straight line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    curves = found["curves"]
    figure = Figure(figsize=(3.2 * len(curves), 3), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
        sizes, times = np.array(curve["sizes"]), np.array(curve["milliseconds"])
        grid = np.geomspace(sizes[0], sizes[-1])
        axes.loglog(sizes, times, "o", label="measured")
        label = f"{curve['fixed']:.2g} + {curve['per_unit']:.2g} n"
        axes.loglog(grid, curve["fixed"] + curve["per_unit"] * grid, "-", linewidth=1, label=label)
        axes.legend(fontsize=8, frameon=False)
        axes.set_title(f"exponent {curve['exponent']:.2f}")
        axes.set_xlabel(name)
        axes.set_ylabel("ms per step")
        axes.set_xticks(sizes, [f"{s:.3g}" for s in sizes])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
    return path
