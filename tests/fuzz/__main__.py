"""Fuzzes the program: command lines, data files, run directories and Python calls.

    python -m tests.fuzz --minutes 5 --seed 0
    python -m tests.fuzz --only "bit flips" --cases 2000 --seed 7

Ends with a table of counts by kind and outcome, and with exit code 1 if a case ended in anything but one sentence or
what the undamaged files give.
"""

import argparse
import faulthandler
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz import damage, judge, lines, python_calls
from tests.fuzz.judge import FAULTS, Tally
from tests.fuzz.world import RUNS, World

BATCH = 40
"""Cases of one kind before the next kind has its turn."""
SHARES = damage.PLACES
NAMES = st.sampled_from(RUNS)
READERS = st.sampled_from(["everything"] * 6 + ["evaluate"] * 4 + ["last"] * 2 + ["compare"] * 2 + ["resume"])
FORGED = st.sampled_from(
    [f"config.json/{name}" for name in ("layers", "data", "estimator", "threshold", "num_samples", "settings", "seed")]
    + [f"config.json/{name}" for name in ("acceptance", "batch_size", "epochs", "optimizer", "lr", "model", "unknown")]
    + [f"run.json/{name}" for name in ("name", "identity", "estimator", "relbo", "unknown")]
)

Kind = tuple[st.SearchStrategy[Any], Callable[[World, str, Any, Tally], None]]


def flipped_data(world: World, kind: str, case: tuple[bool, damage.Damage], tally: Tally) -> None:
    """A data file with damaged bytes."""
    is_compressed, what = case
    arrays = {**world.splits, "image_shape": [2, 3]}
    content = what.of(damage.npz(arrays, compressed=is_compressed))
    judge.check_data(world, kind, case, b"" if content is None else content, same=True, tally=tally)


def odd_data(world: World, kind: str, case: tuple[str, Any], tally: Tally) -> None:
    """A data file that is whole, with something else in it."""
    what, value = case
    if what == "header":
        content = damage.with_header({name: rows.astype("u1") for name, rows in world.splits.items()}, value)
    elif what == "bomb":
        content = bomb()
    else:
        content = damage.npz({**world.splits, what: value}, compressed=False)
    judge.check_data(world, kind, case, content, same=False, tally=tally)


def bomb(made: dict[str, bytes] | None = None, *, _kept: dict[str, bytes] = {}) -> bytes:  # noqa: B006
    """Three gigabytes of zeros in 13 megabytes; made once."""
    if "bomb" not in _kept:
        _kept["bomb"] = damage.bomb(3_000)
    return _kept["bomb"]


ARRAYS = st.sampled_from(
    [[], 0, [[2, 0, 1, 0, 1, 1]], [[0.5] * 6], [[float("nan")] * 6], [["a"] * 6], [[1] * 5], [[[1] * 6]], [[1j] * 6]]
    + [[[10**18] * 6], [[True] * 6], [[-1] * 6], [3, 2], [2, 3], [-2, -3], [2.0, 3.0], [2], [0, 6], [1, 6]]
)
ODD_DATA = st.one_of(
    st.tuples(st.just("header"), damage.HEADERS),
    st.tuples(st.sampled_from(["train", "valid", "test", "image_shape", "train_shape", "test_shape", "other"]), ARRAYS),
)

KINDS: dict[str, Kind] = {
    "command lines": (lines.command_lines(), judge.run_line),
    "damaged data": (st.tuples(st.booleans(), damage.DAMAGES), flipped_data),
    "odd data": (ODD_DATA, odd_data),
    "bit flips": (st.tuples(NAMES, READERS, SHARES, damage.FLIPS), judge.read_damaged),
    "damaged runs": (st.tuples(NAMES, READERS, SHARES, damage.DAMAGES), judge.read_damaged),
    "swapped files": (
        st.tuples(NAMES, READERS, SHARES, SHARES, st.sampled_from(["same name", "other run", "same run"])),
        judge.read_swapped,
    ),
    "forged seals": (st.tuples(NAMES, READERS, FORGED, damage.ODD), judge.read_forged),
    "python": (python_calls.python_calls(), judge.call_python),
}
SHARE = {"command lines": 3, "damaged data": 2, "bit flips": 2, "python": 2}
"""Batches of a kind for each one of the others."""


def run_batch(world: World, kind: str, cases: int, seed: int, tally: Tally, *, until: float) -> None:
    """Some cases of one kind."""
    strategy, act = KINDS[kind]

    @seeded(seed)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(case: Any) -> None:
        if time.monotonic() < until:
            faulthandler.dump_traceback_later(10 * judge.SLOW, exit=True)
            begin = time.monotonic()
            act(world, kind, case, tally)
            tally.seconds[kind] += time.monotonic() - begin
            faulthandler.cancel_dump_traceback_later()

    one()


def table(tally: Tally) -> str:
    """Counts by kind and outcome."""
    columns = ("same", "refused", *FAULTS, "seconds")

    def row(name: str, kinds: list[str]) -> list[str]:
        counts = [str(sum(tally.counts[kind, column] for kind in kinds)) for column in columns[:-1]]
        return [name, *counts, f"{sum(tally.seconds[kind] for kind in kinds):.0f}"]

    rows = [*(row(kind, [kind]) for kind in KINDS), row("all", list(KINDS))]
    widths = [max(len(row[i]) for row in (["", *columns], *rows)) for i in range(len(columns) + 1)]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in (["", *columns], *rows)
    )


def main() -> None:
    """Reads the command line and fuzzes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="stop after so long")
    parser.add_argument("--cases", type=int, default=1_000_000_000, help="stop after so many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(KINDS), action="append", help="kinds of cases; repeatable")
    parser.add_argument("--cache", type=Path, help="where compiled programs are kept from one call to the next")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    kinds = [kind for kind in options.only or KINDS for _ in range(1 if options.only else SHARE.get(kind, 1))]
    tally = Tally()
    world = World(options.cache)
    try:
        if not options.only or "odd data" in options.only:
            odd_data(world, "odd data", ("bomb", None), tally)
        number = 0
        while tally.total() < options.cases and time.monotonic() < until:
            kind = kinds[number % len(kinds)]
            cases = min(BATCH, options.cases - tally.total(), max(options.cases // len(kinds), 1))
            run_batch(world, kind, cases, options.seed * 1_000_003 + number, tally, until=until)
            number += 1
    finally:
        world.close()
    print(table(tally))
    for failure in tally.failures[:100]:
        print(failure)
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
