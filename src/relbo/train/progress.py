"""The progress bar of a training run."""

import datetime
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Column


def progress_bar(total: int, done: int, *, wanted: bool | None) -> AbstractContextManager["Progress | None"]:
    """A bar, or nothing.

    Args:
        total: steps of the run.
        done: steps that were taken before.
        wanted: whether there is to be one; None means in a terminal and in a notebook, but not in a pipe.
    """
    console = Console(stderr=True)
    is_seen = console.is_terminal or console.is_jupyter
    return Progress(total, done, console) if (is_seen if wanted is None else wanted) else nullcontext()


class Progress:
    """Steps done, time, step rate, bound, acceptance and time left; the time goes on while a step compiles.

    The time left is judged by what came after the first chunk of steps, without the first validation, which compiles.
    """

    def __init__(self, total: int, done: int, console: Console) -> None:
        self.left = "-:--:--"
        self._bar = RichProgress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=6),
            TimeElapsedColumn(),
            TextColumn("[progress.remaining]{task.fields[left]}"),
            TextColumn("{task.fields[facts]}", table_column=Column(ratio=1, no_wrap=True)),  # it alone is cut
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=total, completed=done, facts="compiling", left=self.left)
        self._last: tuple[int, float, float] | None = None
        """Step, seconds of steps, and time of the last update."""
        self._total, self._done, self._spent, self._validated = total, 0, 0.0, False

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, step: int, record: dict[str, Any]) -> None:
        """Shows the state of the run after a chunk of steps."""
        facts = [f"bound {record['bound']:.2f}"]
        if "valid_bound" in record:
            facts.append(f"valid {record['valid_bound']:.2f}")
        if "acceptance" in record:
            facts.append(f"acceptance {record['acceptance']:.2f}")
        if self._last is not None and record["seconds"] > self._last[1]:
            rate = (step - self._last[0]) / (record["seconds"] - self._last[1])
            facts.append(f"{rate:.0f}/s")
        self._watch(step, record)
        self._bar.update(self._task, completed=step, facts="  ".join(facts), left=self.left)

    def _watch(self, step: int, record: dict[str, Any]) -> None:
        before, self._last = self._last, (step, record["seconds"], time.monotonic())
        if before is not None:
            compiles = "valid_bound" in record and not self._validated
            self._spent += self._last[1] - before[1] if compiles else self._last[2] - before[2]
            self._done += step - before[0]
            left = (self._total - step) * self._spent / max(self._done, 1)
            self.left = str(datetime.timedelta(seconds=round(left)))
        self._validated |= "valid_bound" in record
