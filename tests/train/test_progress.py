"""The progress bar: the time left counts training, not compilation."""

import io

import pytest
from rich.console import Console

from relbo.train import progress as module
from relbo.train.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_that_of_training(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar = Progress(1_000, 0, console)

    def left(seconds_later, step, **more):
        clock[0] += seconds_later
        bar.update(step, {"bound": -1.0, "seconds": step / 10, **more})
        return bar.left

    assert left(600, 10) == "-:--:--"  # ten minutes of compilation, and the first chunk
    assert left(1, 20) == "0:01:38"
    assert left(301, 30, valid_bound=-2.0) == "0:01:37"  # the first validation is compiled too
    assert left(3, 40, valid_bound=-2.0) == "0:02:40"  # later ones take the time that they take: 5 s for 30 steps
    assert left(1, 1_000) == "0:00:00"
