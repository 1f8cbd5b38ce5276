"""`relbo compare`: paired differences between runs, and their curves."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.progress import Progress
from rich.table import Table

from relbo.lab.cli.notes import say_notes
from relbo.lab.cli.printing import console, print_table

if TYPE_CHECKING:
    from relbo.lab.compare import Comparison

EXAMPLES = """
Compare runs on the same images with the same random numbers: bounds, paired differences to the first run, cost.

With `--out`, also writes `compare.json` and `curves.png`: the bound against steps, proposals and seconds.

**Examples**

    relbo compare runs/vrs runs/rloo runs/vimco

    relbo compare runs/vrs runs/rloo --bound elbo --bound is:25 --bound rs:25 --out compared

    relbo compare runs/vrs runs/rloo --split valid --limit 500 --json
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare", help=EXAMPLES)(compare_command)


def compare_command(
    runs: list[Path] = typer.Argument(..., help="Run directories; differences are to the first."),
    bound: list[str] = typer.Option(["is:25"], help="elbo, is:K or rs:K; repeatable."),
    split: str = typer.Option("test", help="train, valid or test."),
    limit: int | None = typer.Option(None, help="Only the first so many images."),
    parameters: str = typer.Option("best", help="best (on validation) or last."),
    repeats: int = typer.Option(2, help="Independent evaluations; two or more give a Monte-Carlo error."),
    seed: int = typer.Option(0, help="Randomness of the evaluation, common to all runs."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    out: Path | None = typer.Option(None, help="Folder for compare.json and curves.png."),
) -> None:
    """Compare runs."""
    from relbo._disk import refuse_unwritable
    from relbo._options import COMMAND_LINE, check
    from relbo.lab.compare import compare_runs, num_draws, refuse_different_data
    from relbo.lab.runs import open_run
    from relbo.train.log import plain, write_json

    if len(runs) < 2:
        raise ValueError(f"compare needs two or more runs, got {len(runs)}; `relbo evaluate` takes one.")
    check(COMMAND_LINE, split=split, limit=limit, repeats=repeats, seed=seed)
    if out is not None:
        refuse_unwritable(out / "compare.json")
    opened = [open_run(run, data_dir=data_dir, which=parameters) for run in runs]
    say_notes(opened)
    refuse_different_data(opened)
    with draws_bar(num_draws(bound, len(opened[0].data.split(split)[:limit]), repeats, len(runs))) as advance:
        comparison = compare_runs(
            opened, bound, seed=seed, split=split, limit=limit, repeats=repeats, on_progress=advance
        )
    if as_json:
        print(json.dumps(plain(comparison.summary()), indent=2))
    else:
        print_comparison(comparison)
    if out is not None:
        from relbo.lab.report.plots import save_comparison

        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "compare.json", comparison.summary())
        save_comparison(comparison, out / "curves.png")
        typer.echo(f"wrote {out / 'compare.json'} and {out / 'curves.png'}", err=True)


@contextmanager
def draws_bar(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; yields what advances it."""
    terminal = console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("draws", total=total)
        yield lambda done: bar.advance(task, done)


def print_comparison(comparison: "Comparison") -> None:
    """Prints a table with one block for each bound."""
    first = comparison.labels[0]
    table = Table(
        title=f"{comparison.split} split, {comparison.num_images} images, nats; difference of the bound to {first}",
        box=box.SIMPLE,
        pad_edge=False,
    )
    for heading in ("bound", "run", "estimator"):
        table.add_column(heading)
    for heading in ("NLL", "s.e.", "m.c.", "difference", "s.e.", "m.c.", "proposals", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for bound, estimates in comparison.estimates.items():
        for position, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True)):
            estimate, difference = estimates[position], comparison.difference(bound, position)
            errors = (difference.standard_error, difference.monte_carlo_error)
            table.add_row(
                "" if position else bound,
                label,
                run.config.estimator,
                f"{-estimate.mean:.3f}",
                f"{estimate.standard_error:.3f}",
                f"{estimate.monte_carlo_error:.3f}",
                *((f"{difference.mean:+.3f}", *(f"{e:.3f}" for e in errors)) if position else ("", "", "")),
                f"{run.record['num_proposals']:,.0f}",
                f"{run.record['seconds']:.1f}",
                end_section=position == len(estimates) - 1,
            )
    out = console()
    print_table(table)
    for line in (
        f"NLL is minus the bound: lower is better. Differences are of the bound: positive is better than {first}.",
        f"s.e.: standard error over images; m.c.: Monte-Carlo error, over {comparison.repeats} repeats.",
        "All runs share images and random numbers, so differences are paired.",
    ):
        out.print(line)
