"""How commands print: every character as it is, and no line cut or broken where nobody looks at a window."""

import io
import sys

from rich.console import Console
from rich.table import Table

PIPE = 400
"""Characters of a line where there is no terminal; a pipe has no edge to wrap at."""
WORD = 10
"""Characters up to which words of a table stay whole in any terminal."""


def console(*, stderr: bool = False) -> Console:
    """A console to which `[red]` and `:key:` are words like others: they may stand in the names of files.

    Args:
        stderr: whether it is that of messages.
    """
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    made.width = made.width if made.is_terminal else PIPE
    return made


def print_table(table: Table) -> None:
    """Prints a table of which nothing is cut.

    Where numbers and short words have no room beside each other the terminal breaks the lines: ugly, but all is there.
    """
    out = console()
    for column in table.columns:
        column.overflow = "fold"
        column.max_width = None if column.no_wrap else WORD
    least = out.measure(table, options=out.options.update(max_width=PIPE)).minimum
    for column in table.columns:
        column.max_width = None
    out.width = max(out.width, least)
    out.print(table)


def spell_what_the_terminal_lacks() -> None:
    """Lets a question mark stand for what the encoding of the output has no sign for; else printing would fail."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
