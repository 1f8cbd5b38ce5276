"""How long `relbo train` takes from its start to the first step on 200-200-200, without and with a compilation cache.

    python benchmarks/first_step.py --data binarized-mnist --data-dir DIR

Starts the command three times, waits for the first record of its metrics, and kills it: once without a cache, once with
an empty one, once with what the second start left there.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def seconds_to_first_step(words: list[str], out: Path) -> float:
    command = [
        sys.executable,
        "-c",
        "from relbo.lab.cli import main; main()",
        "train",
        "--layers",
        "200-200-200",
        "--quiet",
    ]
    command += ["--estimator", "vrs", "--num-samples", "2", "--num-proposals", "6", "--threshold", "quantile:0.9"]
    command += ["--log-every", "1", "--out", str(out), *words]
    start = time.perf_counter()
    process = subprocess.Popen(command)
    metrics = out / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
            sys.exit("the run ended before its first step")
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    words = ["--data", options.data] + (["--data-dir", str(options.data_dir)] if options.data_dir else [])
    with tempfile.TemporaryDirectory() as folder:
        cache = ["--compilation-cache", str(Path(folder) / "cache")]
        for number, (label, more) in enumerate({"no cache": [], "empty cache": cache, "full cache": cache}.items()):
            seconds = seconds_to_first_step(words + more, Path(folder) / str(number))
            print(f"{label}: first step after {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
