"""Ctrl-C and SIGTERM while training: the first asks for an end, the second ends the process at once.

Python runs its signal handlers between two of its own instructions, and a compiled chunk of steps is one instruction.
The bytes that the system's handler writes to a pipe are there at once, and a thread of ours reads them.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None


def answer(number: int, *, is_compiled: bool, is_saved: bool) -> str:
    """What happens after a first signal, which steps and compilation may keep waiting."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    when = "after the steps under way" if is_compiled else "as soon as the step is compiled"
    return f"{name}: training ends {when}{' and is saved' * is_saved}; a second one ends the process at once."


@contextmanager
def stop_requests(on_first: Callable[[int], None] = lambda number: None) -> Iterator[StopRequest]:
    """Catches SIGINT and SIGTERM while the context lasts; `on_first` is told of the first at once, on another thread.

    Outside of the main thread, which alone may handle signals, nothing is caught and no stop is ever asked for.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1)[0]:
            if number in SIGNALS and request.number is not None:
                os._exit(128 + number)  # what is on disk is whole at any moment
            if number in SIGNALS:
                request.number = int(number)
                on_first(request.number)

    def leave_to_the_watch(number: int, frame: Any) -> None:
        pass

    watcher = threading.Thread(target=watch, name="relbo-signals", daemon=True)
    watcher.start()
    pipe_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, leave_to_the_watch) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not one of Python's
        signal.set_wakeup_fd(pipe_before)
        os.write(writer, b"\0")
        watcher.join()
        os.close(reader)
        os.close(writer)
