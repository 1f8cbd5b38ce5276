"""What a command says about the runs that it opens, beside its result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from relbo.lab.runs import Run


def say_notes(runs: "Sequence[Run]") -> None:
    """Prints the notes of runs on standard error, a line for each."""
    for run in runs:
        for note in run.notes:
            typer.echo(f"relbo: note: {run.path}: {note}", err=True)
