"""`relbo demo`: three estimators on the embedded digits, for the same number of proposals."""

import sys
import time
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from relbo._disk import command, refuse_unwritable
from relbo.lab.cli.compare_command import print_comparison
from relbo.lab.cli.printing import print_table

EXAMPLES = """
Train VRS, RLOO and VIMCO on the embedded digits for the same number of proposals, and print their bounds. Then train a
network whose posterior can be enumerated, and print how close draws from q and from r are to it. Write a report.

It takes about a minute. Run again with the same `--out`, it resumes: finished runs are used as they are.

**Examples**

    relbo demo

    relbo demo --out out/demo
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo", help=EXAMPLES)(demo_command)


def demo_command(
    out: Path = typer.Option(Path("out/demo"), help="Folder to write to; that of an earlier demo is resumed."),
) -> None:
    """Run the demonstration."""
    start = time.perf_counter()

    def say(stage: str) -> None:
        typer.echo(f"[{time.perf_counter() - start:5.1f} s] {stage}", err=True)

    refuse_unwritable(out / "demo.json")
    say("starting" if not (out / "demo.json").exists() else f"resuming the demo in {out}")
    from relbo.lab import demo as experiment

    try:
        found = experiment.run(out, on_stage=say, progress=sys.stderr.isatty())
    except experiment.Interrupted as interrupted:
        typer.echo(f"Stopped, saved. Go on with: {command('demo', '--out', out)}", err=True)
        sys.exit(interrupted.exit_code)
    say("done")
    print_comparison(found.comparison)
    typer.echo(
        f"RS with the thresholds of vrs for all. vrs also drew {found.threshold_draws:,} proposals for its thresholds."
    )
    print_closeness(found.closeness)
    typer.echo(f"Report: {found.report.resolve()}")


def print_closeness(found: list[dict[str, Any]]) -> None:
    """What rejection is for: draws, how close they are to the posterior and what they cost."""
    title = "distance of draws to the exact posterior of a network of 10 units; lower is better"
    shown = Table(title=title, box=box.SIMPLE, pad_edge=False)
    shown.add_column("draws from", no_wrap=True)
    for heading in ("proposals per draw", "total variation", "KL, nats", "total variation, IR", "KL, IR"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in found:
        cost = row["proposals"]
        values = [row[name][d] for name in ("rejection", "resampling") for d in ("total_variation", "kl_nats")]
        shown.add_row("q" if cost == 1 else f"r at {1 / cost:g}", f"{cost}", *(f"{value:.3f}" for value in values))
    print_table(shown)
    typer.echo("IR: importance resampling, one of as many proposals chosen by its weight. All by enumeration.")
