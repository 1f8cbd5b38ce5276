"""Curves of runs, as SVG for a page and as PNG for a file.

In the page's SVG everything but the data is drawn in the text's colour (`currentColor`), so that a plot reads in the
light and in the dark scheme alike; text stays text.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from relbo._disk import replacing
from relbo.lab.compare import Comparison, comparable_curve, curve, labels_of
from relbo.lab.report.html import Html, render, tag
from relbo.lab.runs import Run

AXES = {"step": "steps", "num_proposals": "proposals", "seconds": "seconds of training"}
"""What bounds are drawn against: field of the records, and what it is called."""
COLOURS = ("#2f7fc1", "#e07b1a", "#2a9d6e", "#b558b5", "#d1495b", "#8a8a2f", "#00a0b0", "#9a6b4f")
"""Of middle brightness: 3:1 or nearly so against white and against the dark page."""
STYLES = ("-", "--", "-.", ":")
"""So that runs can be told apart without colours."""
DASHES = {"-": "none", "--": "7 3", "-.": "8 3 2 3", ":": "2 3"}
"""The same in SVG."""
INK = "#010203"
"""Stands for the text's colour until the SVG is finished."""


def short_number(value: float, position: int | None = None) -> str:
    """A tick label: 150k for 150,000, but 0.6 and not 600m, which reads as minutes on an axis of seconds."""
    return EngFormatter(sep="")(value) if abs(value) >= 1_000 else f"{value:g}"


def look(position: int) -> tuple[str, Any]:
    """Colour and line style of the run at a position; the first 32 differ."""
    turn, place = divmod(position, len(COLOURS))
    return COLOURS[place], STYLES[(place + turn) % len(STYLES)]


def draw(axes: Axes, runs: Sequence[Run], x: str, y: str) -> bool:
    """Draws one line for each run that has the two fields; says whether any has."""
    tails = []
    for position, run in enumerate(runs):
        xs, ys = curve(run, x, y)
        if len(xs) == 0:
            continue
        colour, style = look(position)
        axes.plot(xs, ys, color=colour, linestyle=style, marker="o" if len(xs) < 3 else "")
        tails.append(ys[len(ys) // 10 :])
    if not tails:
        return False
    if y in ("bound", "valid_bound"):
        low, high = min(tail.min() for tail in tails), max(tail.max() for tail in tails)
        margin = 0.08 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)  # the first tenth may fall out: else it hides all the rest
    axes.set_xlabel(AXES.get(x, x))
    axes.xaxis.set_major_formatter(FuncFormatter(short_number))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return True


def settings(ink: str) -> Any:
    """Matplotlib's settings for a plot in one ink on a transparent ground."""
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {
        **{name: ink for name in inked},
        "font.size": 11,
        "lines.linewidth": 1.7,
        "legend.frameon": False,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "relbo",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
        "axes.formatter.useoffset": False,
    }


def panel(runs: Sequence[Run], x: str, y: str, *, what: str, name: str) -> Html | None:
    """One plot as a `<figure>` with inline SVG; None where no run has the data.

    Args:
        runs: one line for each.
        x: field of the records on the horizontal axis.
        y: field on the vertical axis.
        what: what the vertical axis shows, with its unit.
        name: what sets the plot's ids apart from those of other plots on the page.
    """
    labels = labels_of(runs)
    with matplotlib.rc_context(settings(INK)):
        figure = Figure(figsize=(4.4, 3.1), layout="constrained")
        axes = figure.add_subplot()
        if not draw(axes, runs, x, y):
            return None
        caption = what.partition(",")[0]
        axes.set_ylabel(f"{caption} (nats)" if what.endswith("(nats)") and "," in what else what)
        buffer = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", metadata=metadata)
    against = AXES.get(x, x)
    description = f"{what} against {against}. {_last_values(runs, labels, x, y)}"
    return tag(
        "figure", _inline(buffer.getvalue(), name, description), tag("figcaption", f"{caption} against {against}")
    )


def _last_values(runs: Sequence[Run], labels: Sequence[str], x: str, y: str) -> str:
    ends = []
    for run, label in zip(runs, labels, strict=True):
        xs, ys = curve(run, x, y)
        if len(xs):
            ends.append(f"{label}: from {ys[0]:.4g} to {ys[-1]:.4g} at {xs[-1]:.4g}")
    return "; ".join(ends) + "."


def _inline(svg: str, name: str, description: str) -> Html:
    # from a file of its own to a part of the page: no prologue, ids of its own, size left to the style sheet
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = svg.replace(INK, "currentColor")
    view_box = re.search(r'viewBox="([^"]+)"', svg)
    assert view_box is not None, "matplotlib writes a viewBox"
    body = svg[svg.index(">") + 1 :]
    opening = tag("svg", role="img", viewBox=view_box[1], aria_label=description).removesuffix("</svg>")
    return Html(opening + body)


def legend(runs: Sequence[Run], field: str) -> Html:
    """Which line is which run, once for all plots of a field that some runs may lack."""
    items = []
    for position, (run, label) in enumerate(zip(runs, labels_of(runs), strict=True)):
        if len(curve(run, "step", field)[0]) == 0:
            continue
        colour, style = look(position)
        stroke = tag(
            "line",
            x1=0,
            y1=5,
            x2=30,
            y2=5,
            stroke=colour,
            stroke_width=3,
            stroke_dasharray=DASHES[style],
        )
        key = tag("svg", stroke, viewBox="0 0 30 10", class_="key", aria_hidden="true")
        items.append(tag("li", key, " ", label))
    return tag("ul", render(*items), class_="legend")


def save_comparison(comparison: Comparison, path: Path) -> None:
    """Writes a PNG of three panels: the bound against steps, proposals and seconds."""
    runs, labels = comparison.runs, comparison.labels
    y, what = comparable_curve(runs)
    with matplotlib.rc_context({**settings("black"), "savefig.facecolor": "white"}):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for axes, x in zip(panels, AXES, strict=True):
            draw(axes, runs, x, y)
        panels[0].set_ylabel(what)
        handles = [Line2D([], [], color=look(i)[0], linestyle=look(i)[1]) for i in range(len(runs))]
        box = figure.legend(handles, [f" {label}" for label in labels], loc="outside lower center", ncols=4)
        for text in box.get_texts():
            text.set_parse_math(False)  # a run may be called $x$
        with replacing(path) as stream:
            figure.savefig(stream, format="png", dpi=130)
