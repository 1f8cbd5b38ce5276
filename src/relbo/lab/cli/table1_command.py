"""`relbo reproduce table1`: the paper's table of methods, all by one trainer."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table


def table1_command(
    out: Annotated[
        Path, typer.Option("--out", help="Directory of the cells and the table; an earlier one is resumed.")
    ],
    preset: Annotated[str, typer.Option(help="smoke (minutes, digits), budget (--minutes a cell) or paper.")] = "smoke",
    only: Annotated[list[str], typer.Option(help="Row to run, repeatable; all if not given.")] = [],  # noqa: B006
    arch: Annotated[
        list[str], typer.Option(help="Architecture to run: 200, 200-200 or 200-200-200; repeatable; all if not given.")
    ] = [],  # noqa: B006
    minutes: Annotated[float | None, typer.Option(help="budget: minutes of training for each cell; 5.")] = None,
    data: Annotated[str | None, typer.Option(help="Other data than the preset's, by name or path.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data files are; else RELBO_DATA, else the user cache.")
    ] = None,
    is_5000: Annotated[bool, typer.Option("--is-5000", help="Also evaluate IS-5000; paper does anyway.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Table 1: all methods on sigmoid belief networks of one, two and three layers, beside the published numbers.

    Each cell is a run directory `OUT/ROW/ARCHITECTURE`. Stop it with Ctrl-C and give the same command to go on:
    finished cells stay as they are, others go on from their last checkpoint. Writes `table1.json` and `table1.md`.

    **Examples**

    - `relbo reproduce table1 --preset smoke --out out/table1`

    - `relbo reproduce table1 --preset budget --minutes 10 --only vrs-0.9 --only rloo-6 --arch 200 --out out/budget`

    - `relbo reproduce table1 --preset paper --only vimco-50 --arch 200-200-200 --out out/paper`
    """
    from relbo._disk import write_text
    from relbo.lab.paper import output
    from relbo.lab.paper import table1 as experiment
    from relbo.lab.paper.table1_page import markdown
    from relbo.train.errors import Interrupted, TrainingError
    from relbo.train.log import write_json

    chosen = preset_of(preset, data=data, minutes=minutes, is_5000=is_5000)
    cells = experiment.cells(out, chosen, only, arch)
    experiment.collect(out, chosen)  # refuses cells of other settings anywhere in the table before any is trained
    output.output_directory(out)
    start = time.perf_counter()

    def say(stage: str) -> None:
        if not quiet:
            typer.echo(f"[{time.perf_counter() - start:6.1f} s] {stage}", err=True)

    try:
        failures = experiment.run(cells, data_dir=data_dir, on_stage=say, progress=sys.stderr.isatty() and not quiet)
    except (Interrupted, KeyboardInterrupt) as stop:
        typer.echo("Stopped, saved. Give the same command again to go on.", err=True)
        sys.exit(getattr(stop, "exit_code", 130))
    results = experiment.collect(out, chosen)
    write_json(out / "table1.json", results)
    write_text(out / "table1.md", markdown(results, chosen.bounds))
    print_sheets(results, chosen.bounds, only_found=bool(only or arch))
    typer.echo(f"wrote {out / 'table1.json'} and {out / 'table1.md'}", err=True)
    if failures:
        label, reason = next(iter(failures.items()))
        raise TrainingError(f"{len(failures)} of {len(cells)} cells failed, the first being {label}: {reason}")


def preset_of(name: str, *, data: str | None, minutes: float | None, is_5000: bool) -> Any:
    """The preset with what the command line changes of it."""
    from relbo.lab.paper.table1 import LONG, PRESETS

    if name not in PRESETS:
        raise ValueError(f"--preset must be one of {', '.join(PRESETS)}; got {name!r}.")
    preset = PRESETS[name]
    if minutes is not None:
        if name != "budget":
            raise ValueError(f"--minutes is for --preset budget, got it with {name}, which counts epochs.")
        if not 0 < minutes < float("inf"):
            raise ValueError(f"--minutes must be a number > 0, got {minutes}.")
        preset = dataclasses.replace(preset, max_seconds=60 * minutes)
    if data is not None:
        preset = dataclasses.replace(preset, common=dataclasses.replace(preset.common, data=data))
    if is_5000 and LONG not in preset.bounds:
        preset = dataclasses.replace(preset, bounds=(*preset.bounds, LONG))
    return preset


def print_sheets(results: dict[str, Any], bounds: tuple[str, ...], *, only_found: bool) -> None:
    """Prints the tables of all architectures, and how to read them."""
    from relbo.lab.paper.table1_page import READING, footnotes, sheets

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 220  # a pipe has no edge to wrap at
    for sheet in sheets(results, bounds, only_found=only_found):
        table = Table(title=sheet.title, box=box.SIMPLE, pad_edge=False)
        for position, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="left" if position < 3 else "right", overflow="fold")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    for line in (results["note"], *READING, *footnotes()):
        console.print(line, soft_wrap=True)
