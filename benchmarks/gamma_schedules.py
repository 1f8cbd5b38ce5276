"""Does a quantile that falls during training give a better model than one that stays?

VRS with S = 2 of N = 6 proposals on a sigmoid belief network of 200 units, Adam with a cosine schedule from 3e-3 to 0,
T followed online. The schedules of gamma, with the share of the run before rejection begins: 0.7 from half of the run
on (the recipe), from 0.9 to 0.5 in the second half, and from 0.95 to 0.5 after a sixth. Printed are minus the bounds of
the first 3,000 validation images in nats, for the parameters of the last step.

    python benchmarks/gamma_schedules.py [--only NAME] [--epochs 30] [--seed 0] [--data binarized-mnist]
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import relbo

BATCH = 50


class Arm(NamedTuple):
    """gamma falls linearly from `first`, when rejection begins, to `last` at the end of the run."""

    first: float
    last: float
    warmup: float
    """Share of the steps before rejection begins."""


ARMS = {"stays": Arm(0.7, 0.7, 1 / 2), "falls": Arm(0.9, 0.5, 1 / 2), "falls-early": Arm(0.95, 0.5, 1 / 6)}
BOUNDS = ("elbo", "is:25", "is:1000")


def estimator_of(arm: Arm, num_steps: int) -> relbo.VRS:
    warmup = round(arm.warmup * num_steps)
    gamma = optax.linear_schedule(arm.first, arm.last, num_steps - warmup, transition_begin=warmup)
    return relbo.VRS(2, num_proposals=6, threshold=relbo.Quantile(gamma, num_draws=20, every=None, warmup=warmup))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=ARMS)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="binarized-mnist")
    options = parser.parse_args()
    data = relbo.data.load(options.data)
    num_steps = options.epochs * (len(data.train) // BATCH)
    print("| gamma | " + " | ".join(BOUNDS) + " | proposals | CPU seconds |", flush=True)
    for name in options.only or ARMS:
        result = relbo.fit(
            relbo.sbn(jax.random.key(options.seed), [200], jnp.asarray(data.mean(), jnp.float32)),
            estimator_of(ARMS[name], num_steps),
            data.train,
            num_epochs=options.epochs,
            optimizer=optax.adam(optax.cosine_decay_schedule(3e-3, num_steps)),
            batch_size=BATCH,
            seed=options.seed,
            progress=False,
        )
        record = result.metrics[-1]
        found = relbo.evaluate(result.pair, data.valid[:3_000], BOUNDS, key=jax.random.key(0))
        numbers = [f"{-found[bound].mean:.2f}" for bound in BOUNDS]
        proposals = record["num_proposals"] / (num_steps * BATCH)
        print(f"| {name} | {' | '.join(numbers)} | {proposals:.2f} | {record['cpu_seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
