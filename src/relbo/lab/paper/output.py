"""What every experiment does with its results: a directory, a JSON file, pictures in one style."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relbo._disk import replacing, write_text

INK, BLUE, ORANGE, GREY = "#222222", "#1f5fa8", "#d1620a", "#8a8a8a"
"""Colours of all pictures; blue and orange differ in lightness too."""


def in_float64() -> Any:
    """A context in which JAX computes in float64; exact figures deserve all their digits."""
    return jax.enable_x64(True)  # noqa: FBT003


def output_directory(path: Path) -> Path:
    """Creates the directory, or says in one line why it cannot hold results; call it before the computation."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out must be a directory, got the file {path}. Choose another name.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be a directory that can be created, got {path}: {error.strerror}.") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"--out must be a writable directory, got {path}. Change its permissions or choose another.")
    return path


def write_json(path: Path, results: Mapping[str, Any]) -> Path:
    """Writes strict JSON: NaN and infinity are refused, as other readers would refuse them."""
    write_text(path, json.dumps(results, indent=2, allow_nan=False) + "\n")
    return path


def new_figure(width: float, height: float, num_panels: int = 1, **axes_settings: Any) -> tuple[Figure, list[Axes]]:
    """A row of panels, `width` by `height` inches in all, drawn by Agg without touching pyplot's global state."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=140)
    panels = figure.subplots(1, num_panels, squeeze=False, **axes_settings)[0]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, color=GREY)
    return figure, list(panels)


def save(figure: Figure, path: Path) -> Path:
    """Writes a PNG without a time stamp, so that the same results give the same file."""
    with replacing(path) as stream:
        figure.savefig(stream, format=path.suffix.lstrip("."), metadata={"Software": None})
    return path
