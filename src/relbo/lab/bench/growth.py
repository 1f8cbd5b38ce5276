"""How the time of a step grows with batch, S, N, layers and rejection.

Two least-squares fits of each curve: time ~ size^exponent on logarithms, which says how far from linear it is as a
whole, and time = fixed + per_unit size with relative errors, which says why.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relbo._disk import replacing
from relbo.lab.bench.steps import Setting, Step, images, mean_evaluated, network, solved, train_step, vrs
from relbo.lab.bench.timing import take_turns

CURVES: dict[str, list[Setting]] = {
    "batch size": [Setting(batch_size=b) for b in (25, 50, 100, 200, 500)],
    "S": [Setting(num_samples=s) for s in (2, 3, 4, 5, 6)],
    "N": [Setting(num_proposals=n) for n in (2, 6, 12, 25, 50)],
    "layers": [Setting(layers=(200,) * n) for n in (1, 2, 3, 4)],
    "1 / acceptance": [Setting(rate=rate) for rate in (0.9, 0.5, 0.2, 0.1)],
    "1 / acceptance, N = 200": [Setting(rate=rate, num_proposals=200) for rate in (0.9, 0.1, 0.03, 0.01)],
}


def run(
    *,
    rounds: int,
    steps: int,
    names: Sequence[str] = tuple(CURVES),
    on_stage: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Times the points of some curves in turns, and fits them."""
    data = images()
    curves, pairs = {}, {}
    for name in names:
        settings = CURVES[name]
        on_stage(f"{name}: compiling")
        timed: dict[str, Step] = {}
        sizes, spent = [], []
        for setting in settings:
            if setting.layers not in pairs:
                pairs[setting.layers] = network(setting, data)
            pair = pairs[setting.layers]
            step = train_step(pair, vrs(setting), data, setting.batch_size, solved(pair, setting, data))
            count = min(steps, len(data) // setting.batch_size)
            report = step.run(count)[1]
            size = {
                "batch size": setting.batch_size,
                "S": setting.num_samples,
                "N": setting.num_proposals,
                "layers": len(setting.layers),
            }.get(name, 1 / float(report.extra["acceptance"]))
            sizes.append(float(size))
            spent.append(mean_evaluated(report) / setting.batch_size)
            timed[str(size)] = step
        on_stage(f"{name}: steps in turns")
        count = min(steps, len(data) // max(s.batch_size for s in settings))
        timings = take_turns({k: _bind(s, count) for k, s in timed.items()}, rounds=rounds, units=count)
        milliseconds = [1e3 * t.median for t in timings.values()]
        curves[name] = {
            "sizes": sizes,
            "proposals_per_row": spent,
            "milliseconds": milliseconds,
            **fits(np.array(sizes), np.array(milliseconds)),
        }
    around = "200 units, batch 50, S = 2, N = 6, gamma 0.9"
    return {"around": around, "rounds": rounds, "steps": steps, "curves": curves}


def fits(sizes: np.ndarray, times: np.ndarray) -> dict[str, float]:
    """The exponent of a power law, and fixed and proportional part of a straight line."""
    exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    per_unit, fixed = np.polyfit(sizes, times, 1, w=1 / times)
    return {"exponent": float(exponent), "fixed": float(fixed), "per_unit": float(per_unit)}


def _bind(step: Step, count: int) -> Callable[[], object]:
    return lambda: step.run(count)


def plot(found: dict[str, Any], path: Path) -> Path:
    """One panel for each curve, three to a line, both axes logarithmic, with the straight line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    curves = found["curves"]
    columns = min(len(curves), 3)
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.8 * rows), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axes in panels[len(curves) :]:
        axes.remove()
    for axes, (name, curve) in zip(panels, curves.items(), strict=False):
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
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
    return path
