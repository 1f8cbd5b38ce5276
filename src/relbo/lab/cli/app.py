"""The `relbo` program: its commands, and what a failure looks like.

A mistake of the user's (a wrong value, a missing file, an unwritable path) is one line on standard error and exit
code 2. `--debug`, anywhere on the line, shows the traceback instead.
"""

import importlib
import logging
import sys

import equinox as eqx
import typer
from rich.console import Console

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
    "data",
    "reproduce",
    "bench",
)
"""Each has a module NAME_command with `register(app)`."""

USER_ERRORS = (ValueError, OSError, ImportError, TrainingError, eqx.EquinoxRuntimeError)
"""What a user can cause and mend; anything else is a bug of ours."""


def build_app() -> typer.Typer:
    """The program with all its commands."""
    app = typer.Typer(
        name="relbo",
        help="Variational inference that buys posterior accuracy with compute.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        debug: bool = typer.Option(False, "--debug", help="Show tracebacks instead of one-line errors."),
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
    try:
        build_app()(words, prog_name="relbo")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        is_users = isinstance(error, USER_ERRORS)
        message = runtime_message(error) or type(error).__name__
        prefix = "error" if is_users else f"internal error ({type(error).__name__}), please report it with --debug"
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"relbo: {prefix}: {message}")
        sys.exit(2 if is_users else 1)
