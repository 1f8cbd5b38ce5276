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


@pytest.mark.parametrize("width", [50, 80])
def test_a_narrow_terminal_cuts_the_facts_alone(clock, width):
    screen = io.StringIO()
    with Progress(100_000, 0, Console(file=screen, force_terminal=True, width=width, color_system=None)) as bar:
        for step in (2_500, 5_000):
            clock[0] += 60
            bar.update(step, {"bound": -123.45, "acceptance": 0.5, "seconds": step / 10})
    last = screen.getvalue().rsplit("step", 1)[1]
    assert " 5000/100000 " in last and "0:38:00" in last
