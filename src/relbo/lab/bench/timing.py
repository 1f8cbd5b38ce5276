"""Contenders that take turns."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Timing(NamedTuple):
    """Seconds per unit of work over several rounds."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""

    @classmethod
    def of(cls, values: list[float]) -> "Timing":
        """The summary of measured seconds."""
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(median), float(low), float(high))


def take_turns(contenders: dict[str, Callable[[], object]], *, rounds: int, units: int = 1) -> dict[str, Timing]:
    """Times all contenders `rounds` times, one after the other in every round, after one round that is not counted.

    Args:
        contenders: what to time, by name; each returns when its work is done.
        rounds: how often.
        units: units of work in one call, for instance steps.

    Returns:
        Seconds per unit for each contender.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for i in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if i:
                seconds[name].append((time.perf_counter() - start) / units)
    return {name: Timing.of(values) for name, values in seconds.items()}


def ratio(a: Timing, b: Timing) -> float:
    """How many times longer the first takes."""
    return a.median / b.median
