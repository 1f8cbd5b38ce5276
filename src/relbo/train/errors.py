"""What can go wrong while training."""


class TrainingError(RuntimeError):
    """Training cannot go on; the last checkpoint is whole."""


class Interrupted(Exception):
    """Ctrl-C during training; the run is saved."""


def runtime_message(error: BaseException) -> str:
    """The sentence given to `eqx.error_if`, without the stack and the advice that Equinox puts around it."""
    text = str(error).rpartition("EquinoxRuntimeError: ")[2]
    return " ".join(text.split("\n\n---")[0].split())
