"""How much longer the slowest device works than the mean one, by the law of accept/reject: nothing is trained.

    python benchmarks/stragglers.py --rate 0.1 --num-samples 2 --num-proposals 20

A row needs a negative binomial number of proposals for S acceptances; those beyond the first N are late. A device's
work is N for each of its rows and what is late; a step waits for the device with the most.
"""

import argparse

import numpy as np


def main() -> None:
    """Prints a line for each number of rows and of devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--num-samples", type=int, default=2)
    parser.add_argument("--num-proposals", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print("rows of a device, devices: slowest / mean work; longest row of a device, of all")
    for rows in (8, 64, 512):
        for devices in (2, 8, 64, 1024):
            needed = rng.negative_binomial(options.num_samples, options.rate, (options.steps, devices, rows))
            late = np.maximum(needed + options.num_samples - options.num_proposals, 0)
            work = rows * options.num_proposals + late.sum(axis=2)
            ratio = np.mean(work.max(axis=1) / work.mean(axis=1))
            longest = late.max(axis=2)
            print(f"{rows:4d} {devices:5d}: {ratio:.2f}; {longest.mean():.0f}, {longest.max(axis=1).mean():.0f}")


if __name__ == "__main__":
    main()
