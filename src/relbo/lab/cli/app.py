"""The `relbo` program: its commands, and what a failure looks like.

A mistake of the user's (a wrong value, a missing file, an unwritable path) is one line on standard error and exit
code 2. `--debug`, anywhere on the line, shows the traceback instead. A signal ends the program with 128 + its number.
"""

import contextlib
import importlib
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import typer

from relbo.lab.cli.devices import leave
from relbo.lab.cli.printing import console, spell_what_the_terminal_lacks
from relbo.train.errors import TrainingError, runtime_message

COMMANDS = (
    "demo",
    "train",
    "evaluate",
    "sample",
    "compare",
    "report",
    "list",
    "variance",
    "calibrate",
    "data",
    "reproduce",
    "bench",
)
"""Each has a module NAME_command with `register(app)`."""

USER_ERRORS = (ValueError, OSError, ImportError, TrainingError, eqx.EquinoxRuntimeError)
"""What a user can cause and mend; anything else is a bug of ours."""
NARROWEST = 72
"""Columns below which Typer's boxes cut the names of options; plain text does not."""
LONGEST = 1_000
"""Characters of a message; a word of the user's may be longer than any screen."""
USAGE_ERRORS: Any = typer.BadParameter.__mro__[2]
"""What the parser of the command line raises."""


def build_app() -> typer.Typer:
    """The program with all its commands."""
    is_wide = (width := console().width) >= NARROWEST
    app = typer.Typer(
        name="relbo",
        help="Variational inference that buys posterior accuracy with compute.",
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown" if is_wide else None,
        context_settings={"help_option_names": ["-h", "--help"], **({} if is_wide else {"terminal_width": width})},
    )

    @app.callback()
    def options(
        debug: bool = typer.Option(False, "--debug", help="Show tracebacks instead of one-line errors."),
        version: bool = typer.Option(
            False, "--version", help="Print the version and leave.", callback=_version, is_eager=True
        ),
    ) -> None:
        """Variational inference that buys posterior accuracy with compute."""

    for name in COMMANDS:
        importlib.import_module(f"relbo.lab.cli.{name}_command").register(app)
    return app


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and ends the process with its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not debug:  # JAX logs the traceback of an error that is raised, and shown, anyway
        logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    spell_what_the_terminal_lacks()
    try:
        with _terminable(), _notes():
            refuse_empty(words)
            sys.exit(build_app()(words or ["--help"], prog_name="relbo", standalone_mode=False))
    except KeyboardInterrupt:
        leave(130)
        sys.exit(130)
    except SystemExit as ended:
        if ended.code:
            leave(ended.code if isinstance(ended.code, int) else 1)
        raise
    except Exception as error:
        if debug:
            raise
        _say(f"relbo: {sentence(error)}")
        code = 2 if is_users(error) else 1
        leave(code)
        sys.exit(code)


def _version(asked: bool) -> bool:
    if asked:
        from relbo import __version__

        typer.echo(f"relbo {__version__}")
        raise typer.Exit
    return asked


def refuse_empty(words: list[str]) -> None:
    """Raises `ValueError` for an option without its value, such as `--out=`, which would mean the current folder."""
    for before, word in zip(["relbo", *words], words, strict=False):
        if word == "" or (word.startswith("--") and word.endswith("=") and word.count("=") == 1):
            raise ValueError(f"no word of the command line may be empty, got an empty one at {word or before}.")


def is_users(error: Exception) -> bool:
    """Whether an error is of the user's making."""
    return isinstance(error, (*USER_ERRORS, USAGE_ERRORS)) or out_of_memory(error)


def out_of_memory(error: Exception) -> bool:
    """Whether the machine has no room for what was asked."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def sentence(error: Exception) -> str:
    """What is said of an error."""
    if isinstance(error, USAGE_ERRORS):
        return "error: " + " ".join(error.format_message().split())[:LONGEST]
    if out_of_memory(error):
        return "error: there is not enough memory for this: try fewer samples or draws, or smaller batches or layers."
    message = runtime_message(error) or type(error).__name__
    kind = "" if is_users(error) else f"internal error ({type(error).__name__}), please report it with --debug: "
    return (kind or "error: ") + (message if len(message) <= LONGEST else message[:LONGEST] + " ...")


def _say(line: str) -> None:
    console(stderr=True).print(line, soft_wrap=True)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Ends the program on SIGTERM as Ctrl-C does, so that half-written files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Shows warnings as lines of ours, without the place in the code that they come from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _say(f"relbo: note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        # orbax leaves some of its own behind when a checkpoint is damaged, which is said anyway
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
        warnings.showwarning = show
        yield
