"""`relbo demo`: three estimators on the embedded digits, for the same number of proposals."""

import sys
import time
from pathlib import Path

import typer

from relbo.lab.cli.compare_command import print_comparison

EXAMPLES = """
Train VRS, RLOO and VIMCO on the embedded digits for the same number of proposals, print their bounds, write a report.

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

    say("starting" if not (out / "demo.json").exists() else f"resuming the demo in {out}")
    from relbo.lab import demo as experiment

    try:
        found = experiment.run(out, on_stage=say, progress=sys.stderr.isatty())
    except experiment.Interrupted as interrupted:
        typer.echo(f"Stopped, saved. Go on with: relbo demo --out {out}", err=True)
        sys.exit(interrupted.exit_code)
    say("done")
    print_comparison(found.comparison)
    typer.echo(
        f"RS with the thresholds of vrs for all. vrs also drew {found.threshold_draws:,} proposals for its first "
        "thresholds."
    )
    typer.echo(f"Report: {found.report.resolve()}")
