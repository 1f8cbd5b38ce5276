"""What can go wrong while training."""

import signal


class TrainingError(RuntimeError):
    """Training cannot go on; the last checkpoint is whole."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during training; the run is saved.

    Args:
        number: the signal, SIGINT or SIGTERM.
    """

    def __init__(self, number: int | None = None) -> None:
        super().__init__("the run was interrupted and saved")
        self.exit_code = 128 + (number or signal.SIGINT)


class Damaged(ValueError):
    """A file of a run is not what was written: its content does not have the hash that was recorded."""


class Occupied(ValueError):
    """Another process is writing there."""


class RunWarning(UserWarning):
    """What the owner of a run should know, though it goes on."""


def runtime_message(error: BaseException) -> str:
    """The sentence given to `eqx.error_if`, without the stack and the advice that Equinox puts around it."""
    text = str(error).rpartition("EquinoxRuntimeError: ")[2]
    return " ".join(text.split("\n\n---")[0].split())


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 200 characters of it."""
    return (str(error).strip().splitlines() or ["no details"])[0][:200].rstrip(".")
