"""Figures of Table 1: the validation bound against proposals and against CPU seconds, a picture for each architecture.

Drawn from the collected JSON alone. A row has the same colour and line in every picture, whatever else is drawn.
"""

import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from relbo.lab.paper import output
from relbo.lab.paper.table1_rows import ARCHITECTURES
from relbo.lab.report.plots import look, short_number

PANELS = {"num_proposals": "proposals", "cpu_seconds": "CPU seconds of training"}
"""What the bound is drawn against."""


def figure_name(arch: str) -> str:
    """The file of an architecture's picture."""
    return f"table1-{arch}.png"


def drawable(results: dict[str, Any]) -> list[str]:
    """Architectures with a curve to draw."""
    found = {cell["architecture"] for cell in results["cells"] if cell["curve"]}
    return [arch for arch in ARCHITECTURES if arch in found]


def far_behind(cells: list[dict[str, Any]]) -> set[str]:
    """Rows whose curves end so low that they would press all others together.

    That is, more than four times as far below the best as the median row is.
    """
    ends = {row: max(cell["curve"][-1]["valid_bound"] for cell in cells if cell["row"] == row) for row in _rows(cells)}
    gaps = {row: max(ends.values()) - end for row, end in ends.items()}
    behind = [gap for gap in gaps.values() if gap > 0]
    return {row for row, gap in gaps.items() if gap > 4 * statistics.median(behind)} if behind else set()


def _rows(cells: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(cell["row"] for cell in cells))


def plot(results: dict[str, Any], out: Path) -> list[Path]:
    """Draws a picture for each architecture that has curves; returns the files."""
    looks = {row: look(position) for position, row in enumerate(results["rows"])}
    files = []
    for arch in drawable(results):
        chosen = [cell for cell in results["cells"] if cell["architecture"] == arch and cell["curve"]]
        low = far_behind(chosen)
        figure, panels = output.new_figure(10.5, 4.2, num_panels=len(PANELS), sharey=True)
        for axes, field in zip(panels, PANELS, strict=True):
            _draw(axes, chosen, field, looks, low)
        kind = results["valid_bound"].upper().replace(":", "-")
        panels[0].set_ylabel(f"validation bound, {kind} (nats)", fontsize=9)
        drawn = [row for row in looks if row in _rows(chosen)]
        handles = [
            Line2D([], [], color=looks[row][0], linestyle=looks[row][1], label=f"{row} (below)" if row in low else row)
            for row in drawn
        ]
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
        figure.suptitle("-".join(str(width) for width in chosen[0]["layers"]), fontsize=10)
        files.append(output.save(figure, out / figure_name(arch)))
    return files


def _draw(axes: Axes, chosen: list[dict[str, Any]], field: str, looks: dict[str, Any], low: set[str]) -> None:
    ends = []
    for cell in chosen:
        points = [(point[field], point["valid_bound"]) for point in cell["curve"]]
        colour, style = looks[cell["row"]]
        is_first = cell["seed"] == 0
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=colour,
            linestyle=style,
            linewidth=1.6 if is_first else 0.8,
            alpha=1.0 if is_first else 0.6,
            marker="o" if len(points) < 3 else "",
            markersize=4,
        )
        if cell["row"] not in low:
            ends += [y for _, y in points[len(points) // 4 :]]
    bottom, top = min(ends), max(ends)
    margin = 0.05 * (top - bottom) or 1.0
    axes.set_ylim(bottom - margin, top + margin)  # the first quarter may fall out: else it hides all the rest
    axes.set_xlim(left=0)
    axes.set_xlabel(PANELS[field], fontsize=9)
    axes.xaxis.set_major_formatter(FuncFormatter(short_number))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
