"""`relbo report`: one self-contained HTML page about one or several runs."""

from pathlib import Path

import typer

from relbo.lab.cli.compare_command import draws_bar
from relbo.lab.cli.notes import say_notes

EXAMPLES = """
Write one HTML page about runs: bounds with errors, curves, acceptance, samples, reconstructions, configuration.

The page holds everything itself: it opens without a network, on a phone too.

**Examples**

    relbo report runs/vrs --out report.html

    relbo report runs/vrs runs/rloo runs/vimco --out report.html

    relbo report runs/vrs runs/rloo --bound elbo --bound is:25 --bound rs:25 --limit 1000 --out report.html
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report", help=EXAMPLES)(report_command)


def report_command(
    runs: list[Path] = typer.Argument(..., help="Run directories, trained on the same data."),
    out: Path = typer.Option(..., help="HTML file to write; an earlier one is replaced."),
    title: str = typer.Option("relbo report", help="Heading of the page."),
    bound: list[str] = typer.Option(["elbo", "is:25"], help="elbo, is:K or rs:K; repeatable."),
    split: str = typer.Option("test", help="train, valid or test."),
    limit: int | None = typer.Option(None, help="Evaluate only the first so many images."),
    parameters: str = typer.Option("best", help="best (on validation) or last."),
    repeats: int = typer.Option(2, help="Independent evaluations; two or more give a Monte-Carlo error."),
    seed: int = typer.Option(0, help="Randomness of evaluation, samples and reconstructions."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
) -> None:
    """Write a report."""
    from relbo._disk import refuse_unwritable
    from relbo._options import COMMAND_LINE, check
    from relbo.lab.compare import compare_runs, num_draws, refuse_different_data
    from relbo.lab.report import write_report
    from relbo.lab.runs import open_run

    if out.is_dir():
        raise ValueError(f"--out must be the file to write, got the folder {out}; try --out {out / 'report.html'}.")
    refuse_unwritable(out)
    check(COMMAND_LINE, split=split, limit=limit, repeats=repeats, seed=seed)
    opened = [open_run(run, data_dir=data_dir, which=parameters) for run in runs]
    say_notes(opened)
    refuse_different_data(opened)
    with draws_bar(num_draws(bound, len(opened[0].data.split(split)[:limit]), repeats, len(runs))) as advance:
        comparison = compare_runs(
            opened, bound, seed=seed, split=split, limit=limit, repeats=repeats, on_progress=advance
        )
    write_report(comparison, out, title=title, seed=seed)
    typer.echo(f"wrote {out}")
