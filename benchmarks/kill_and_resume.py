"""Kills a training run at random times, resumes it each time, and compares the end with a run left alone.

    python benchmarks/kill_and_resume.py --kills 20 --out /somewhere/empty

Prints one line for each kill and, at the end, whether all parameters are equal bit for bit; exits with 1 if not.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from relbo.lab.runs import open_run


def command(out: Path, epochs: int) -> list[str]:
    words = ["train", "--layers", "20", "--estimator", "vrs", "--rate", "0.5", "--epochs", str(epochs), "--quiet"]
    words += ["--checkpoint-every", "20", "--log-every", "10", "--resume", "--out", str(out)]
    words += ["--compilation-cache", str(out.parent / "cache")]
    return [sys.executable, "-c", "from relbo.lab.cli import main; main()", *words]


def last_step(out: Path) -> int:
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-2])["step"] if len(lines) > 1 else 0  # the last line may be half written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    whole, parts = options.out / "whole", options.out / "parts"

    subprocess.run(command(whole, options.epochs), check=True, stderr=subprocess.DEVNULL)
    total = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    for number in range(options.kills):
        process = subprocess.Popen(command(parts, options.epochs), stderr=subprocess.DEVNULL)
        # each fifth kill strikes while the program starts, the others in training, some steps after the last one
        patience = rng.uniform(0.0, 10.0) if number % 5 == 4 else float("inf")
        target = last_step(parts) + rng.uniform(0.0, 1.6 * total / options.kills)
        begin = time.monotonic()
        while last_step(parts) < target and time.monotonic() - begin < patience:
            if process.poll() is not None:
                sys.exit(f"the run ended by itself after {number} kills: give it more --epochs")
            time.sleep(rng.uniform(0.0, 0.05))
        process.kill()
        process.wait()
        print(f"{number + 1:3d}: killed at step {last_step(parts)} of {total}", flush=True)
    subprocess.run(command(parts, options.epochs), check=True)

    ends = [jax.tree.leaves(open_run(run, which="last").pair) for run in (whole, parts)]
    equal = all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(*ends, strict=True))
    print("equal bit for bit" if equal else "DIFFERENT")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
