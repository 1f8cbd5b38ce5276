"""How commands print: every character as it is, and no line cut or broken where nobody looks at a window."""

import io
import sys

from rich.console import Console

PIPE = 400
"""Characters of a line where there is no terminal; a pipe has no edge to wrap at."""


def console(*, stderr: bool = False, at_least: int = 0) -> Console:
    """A console to which `[red]` and `:key:` are words like others: they may stand in the names of files.

    Args:
        stderr: whether it is that of messages.
        at_least: width of a table whose numbers would else be cut; a narrower terminal breaks its lines.
    """
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    made.width = max(made.width, at_least) if made.is_terminal else PIPE
    return made


def spell_what_the_terminal_lacks() -> None:
    """Lets a question mark stand for what the encoding of the output has no sign for; else printing would fail."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
