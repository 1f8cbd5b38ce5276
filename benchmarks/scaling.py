"""How training scales from one core to two: one process of one core against two of one core each.

    python benchmarks/scaling.py --data binarized-mnist --layers 200-200-200 --batch-size 400 --rounds 3

Every process is bound to a core of its own (`sched_setaffinity`). Strong scaling: the same global batch on one and on
two; weak scaling: twice the batch on two. Also two and four devices in one process, which has both cores. Seconds are
those that the run itself counts for its steps, compilation and validation left out; each figure is a median over
rounds, in which the kinds take turns. Prints a table, and JSON with --json.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = {
    "one process": (1, 1, 1, 1),
    "one process, two shards": (1, 1, 1, 2),
    "two processes": (2, 1, 1, 2),
    "two processes, twice the batch": (2, 1, 2, 2),
    "two devices in one process": (1, 2, 1, 2),
    "four devices in one process": (1, 4, 1, 4),
}
"""Processes, devices of each, factor of the batch, and shards."""


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def words(arguments: argparse.Namespace, out: Path, kind: tuple[int, ...]) -> list[str]:
    """The command line that all processes of a run share."""
    processes, devices, factor, shards = kind
    line = [sys.executable, "-m", "relbo", "train", "--data", arguments.data, "--layers", arguments.layers]
    line += ["--num-samples", "2", "--num-proposals", "6", "--threshold", "quantile:0.9", "--warmup-epochs", "0"]
    line += ["--num-draws", "20", "--refresh-epochs", "1000", "--valid-every", "1000000", "--epochs", "1000000"]
    line += [
        "--batch-size",
        str(arguments.batch_size * factor),
        "--shards",
        str(shards),
        "--log-every",
        "1000000",
    ]
    line += ["--checkpoint-every", "1000000", "--quiet", "--out", str(out)]
    line += ["--compilation-cache", str(arguments.cache)]
    if devices > 1:
        line += ["--devices", str(devices)]
    if processes > 1:
        line += ["--distributed", "--coordinator", f"localhost:{free_port()}", "--num-processes", str(processes)]
    return line


def seconds_per_step(arguments: argparse.Namespace, kind: str) -> float:
    """Of the last record; in the first epochs the thresholds of rows that are visited first are solved for."""
    processes, devices, *_ = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        line = words(arguments, out, KINDS[kind])
        running = []
        for i in range(processes):
            cores = {i} if devices == 1 else {0, 1}
            numbered = [*line, "--process-id", str(i)] if processes > 1 else line
            running.append(
                subprocess.Popen(
                    numbered,
                    preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores),
                    stdout=subprocess.DEVNULL,
                )
            )
        records = watch(out / "metrics.jsonl", arguments.epochs, running)
    return (records[-1]["seconds"] - records[-2]["seconds"]) / (records[-1]["step"] - records[-2]["step"])


def watch(log: Path, count: int, running: list[subprocess.Popen]) -> list[dict]:
    """Waits for records, then asks the processes to stop."""
    lines: list[str] = []
    try:
        while len(lines) < count:
            lines = log.read_text().splitlines() if log.exists() else []
            for process in running:
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
                if len(lines) < count:
                    raise RuntimeError(f"a process ended with {process.returncode} before {count} records.")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
    return [json.loads(line) for line in lines]


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--layers", default="200-200-200")
    parser.add_argument("--batch-size", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=3, help="epochs, of which the last is timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "relbo-scaling-cache")
    parser.add_argument("--only", action="append", choices=KINDS, help="kind to run, repeatable; all by default")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {kind: [] for kind in arguments.only or KINDS}
    for _ in range(arguments.rounds):
        for kind in found:
            found[kind].append(seconds_per_step(arguments, kind))
            print(f"{kind}: {found[kind][-1] * 1e3:.1f} ms", file=sys.stderr, flush=True)
    median = {kind: statistics.median(values) for kind, values in found.items()}
    one = median.get("one process", float("nan"))
    result = {"seconds_per_step": found, "times_faster_than_one_process": {k: one / v for k, v in median.items()}}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for kind, values in found.items():
        times = " ".join(f"{value * 1e3:7.1f}" for value in values)
        print(f"{kind:32} {times} ms/step, one process / this {one / median[kind]:.2f}")


if __name__ == "__main__":
    main()
