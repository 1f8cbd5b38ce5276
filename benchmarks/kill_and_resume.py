"""Kills a training run, again and again, resumes it each time, and compares the end with a run left alone.

    python benchmarks/kill_and_resume.py --kills 100 --out /somewhere/empty

Every third kill strikes while a file is being written: as soon as an unfinished checkpoint or file is seen. The others
strike at random moments: some while the program starts, most some steps after the last checkpoint. At the end all that
a run has is compared bit for bit: parameters, best parameters, optimiser, thresholds, random key, step, counters and
records (all but the seconds). Prints one line for each kill; exits with 1 if anything differs.

The program is started by forking a process that has imported it and has not used JAX yet, which saves the seconds of
the imports; compiled programs are kept in OUT/cache.

With `--processes 2` the run is one of two processes, of which a random one is killed; the other must end by itself
within a minute. Both then go on from the last checkpoint.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import orbax.checkpoint as _  # so that no child has to import it  # noqa: F401

from relbo._disk import PART
from relbo.lab.cli import main as relbo
from relbo.train.checkpoint import TEMPORARY
from relbo.train.directory import checkpoints_of, read_config, read_description

SHARE_DURING_WRITES = 3
"""One of so many kills strikes during a write."""


LONGEST_END = 60.0
"""Seconds in which the processes beside a killed one must end."""


class Run(NamedTuple):
    """A run that is to be killed."""

    out: Path
    epochs: int
    processes: int


def words(run: Run, number: int, port: int) -> list[str]:
    """The command line of one process of the run."""
    out = run.out
    line = ["train", "--layers", "8", "--num-samples", "2", "--num-draws", "10", "--estimator", "vrs", "--rate", "0.5"]
    line += ["--warmup-epochs", "0"]
    line += ["--epochs", str(run.epochs), "--valid-bound", "is:2", "--valid-every", "5", "--quiet"]
    line += ["--resume"] if (out / "run.json").exists() else []  # it may be killed before it began
    line += ["--checkpoint-every", "20", "--log-every", "10", "--out", str(out)]
    if run.processes > 1:
        line += ["--batch-size", "48", "--distributed", "--coordinator", f"localhost:{port}"]
        line += ["--num-processes", str(run.processes), "--process-id", str(number)]
    return [*line, "--compilation-cache", str(out.parent / "cache")]


def start(run: Run) -> list[int]:
    """Starts the run in processes of its own, and returns their numbers."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    return [_start(run, words(run, number, port)) for number in range(run.processes)]


def _start(run: Run, line: list[str]) -> int:
    number = os.fork()
    if number:
        return number
    try:
        with (run.out.parent / "said.txt").open("a") as said:
            os.dup2(said.fileno(), 2)
        relbo(line)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 0)
    os._exit(99)


def finish(numbers: list[int]) -> list[int]:
    """Waits for processes; their exit codes, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]


def kill_one(numbers: list[int], rng: random.Random) -> float:
    """Kills one process, and waits for the others; the seconds that they took to end."""
    killed = rng.choice(numbers)
    begin = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    left = set(numbers)
    while left:
        left -= {number for number in left if os.waitpid(number, os.WNOHANG)[0]}
        if time.monotonic() - begin > LONGEST_END:
            for number in left:
                os.kill(number, signal.SIGKILL)
            sys.exit(f"{len(left)} processes had not ended {LONGEST_END:.0f} s after another was killed.")
        time.sleep(0.01)
    return time.monotonic() - begin


def last_step(out: Path) -> int:
    """Step of the newest checkpoint."""
    folder = out / "checkpoints"
    return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=0) if folder.is_dir() else 0


def unfinished(out: Path) -> set[tuple[str, int]]:
    """Files and folders of a run that are not finished, by name and inode."""
    found = set()
    for folder in (out, out / "checkpoints"):
        for entry in os.scandir(folder) if folder.is_dir() else []:
            if TEMPORARY in entry.name or entry.name.endswith(PART):
                found.add((entry.name, entry.inode()))
    return found


def strike(run: Run, total: int, number: int, kills: int, rng: random.Random) -> tuple[str, float]:
    """Starts the run and kills it; says when, and how long the others took to end."""
    out = run.out
    before = unfinished(out)
    processes = start(run)
    first = last_step(out)
    begin = time.monotonic()
    is_early = number % 10 == 1
    target = first + rng.uniform(0.0, 1.2 * (total - first) / (kills - number + 1))
    # a process that has not joined the others yet is waited for, for minutes: it might only be late
    joined = 5.0 if run.processes > 1 else 0.0
    patience = joined + rng.uniform(0.0, 4.0) if is_early else float("inf")
    seeks_write = number % SHARE_DURING_WRITES == 0
    while time.monotonic() - begin < patience:
        if any(os.waitpid(process, os.WNOHANG)[0] for process in processes):
            sys.exit(
                f"the run ended by itself after {number} kills: give it more --epochs; see {out.parent / 'said.txt'}"
            )
        if last_step(out) >= target and (not seeks_write or unfinished(out) - before):
            break
        time.sleep(0.0 if seeks_write else rng.uniform(0.0, 0.02))
    if not seeks_write and not is_early:
        time.sleep(rng.uniform(0.0, 0.2))
    is_writing = bool(unfinished(out) - before)
    seconds = kill_one(processes, rng)
    return "during a write" if is_writing else "while it started" if is_early else "in training", seconds


def everything(run: Path) -> dict[str, object]:
    """All values of a run but its times, by name."""
    import jax

    from relbo import data
    from relbo.lab.config import RunConfig, build_estimator, build_optimizer, build_pair
    from relbo.train.checkpoint import named_arrays
    from relbo.train.layout import Layout
    from relbo.train.shards import init_state_on

    config = RunConfig.load(run)
    rows = data.load(config.data)
    layout = Layout(len(rows.train), config.shards)
    per_epoch = layout.steps_per_epoch(config.batch_size)
    pair = build_pair(config, rows)
    parts = build_estimator(config, per_epoch), build_optimizer(config, per_epoch * config.epochs)
    state = init_state_on(layout, jax.random.key(0), pair, *parts)
    rest = {name: value for name, value in state._asdict().items() if name != "pair"}
    items, record = checkpoints_of(run, read_description(run).name).restore(
        last_step(run), {"pair": pair, "best": pair, "rest": rest}
    )
    found: dict[str, object] = {name: (a.dtype, a.shape, a.tobytes()) for name, a in named_arrays(items).items()}
    found |= {f"counter {name}": value for name, value in record["counters"].items() if "seconds" not in name}
    for number, line in enumerate((run / "metrics.jsonl").read_text().splitlines()):
        values = {
            name: value for name, value in json.loads(line).items() if name not in ("seconds", "cpu_seconds", "sha256")
        }
        found[f"record {number}"] = values
    return {**found, "config": read_config(run)}


def main() -> None:
    """Reads the command line, kills, compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, help="by default 3 for each kill")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    epochs = options.epochs or 3 * options.kills
    options.out.mkdir(parents=True, exist_ok=True)
    whole, parts = (Run(options.out / name, epochs, options.processes) for name in ("whole", "parts"))

    if any(finish(start(whole))):
        sys.exit(f"the run that is left alone failed: see {options.out / 'said.txt'}")
    total = last_step(whole.out)
    moments, longest = [], 0.0
    for number in range(options.kills):
        moment, seconds = strike(parts, total, number, options.kills, rng)
        moments.append(moment)
        longest = max(longest, seconds)
        print(f"{number + 1:3d}: killed {moment}, last checkpoint {last_step(parts.out)} of {total}", flush=True)
    if any(finish(start(parts))):
        sys.exit(f"the last resumption failed: see {options.out / 'said.txt'}")

    if options.processes > 1:
        print(f"the other processes ended within {longest:.1f} s")
    print(", ".join(f"{moments.count(moment)} {moment}" for moment in dict.fromkeys(moments)))
    left, right = everything(whole.out), everything(parts.out)
    wrong = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    print(f"{len(left)} values compared: " + ("equal bit for bit" if not wrong else f"DIFFERENT: {wrong[:5]}"))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
