"""How many units of a sigmoid belief network say anything about x?

A unit of the layer next to the data is in use if q(h_i | x) differs from image to image: if its mean KL to the unit's
mean activation, the mutual information of h_i and x under q, is above 0.05 nats on the validation images.

    python benchmarks/units_in_use.py RUN [RUN ...] [--nats 0.05]
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.lab.runs import open_run


def information(logits: Float[Array, "n units"]) -> Float[Array, " units"]:
    """Mean over images of KL(Bernoulli(p_n) || Bernoulli(mean of p)), in nats, of each unit."""
    share = jax.nn.sigmoid(logits)

    def negative_entropy(p: Array) -> Array:
        return jax.scipy.special.xlogy(p, p) + jax.scipy.special.xlogy(1 - p, 1 - p)

    return negative_entropy(share).mean(axis=0) - negative_entropy(share.mean(axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--nats", type=float, default=0.05)
    options = parser.parse_args()
    print("| run | units | in use | nats in all |", flush=True)
    for path in options.runs:
        run = open_run(path, with_metrics=False)
        logits = jax.jit(jax.vmap(run.pair.proposal.condition))(jnp.asarray(run.data.valid, jnp.float32))
        nats = information(logits)
        print(f"| {path} | {nats.size} | {int((nats > options.nats).sum())} | {float(nats.sum()):.1f} |", flush=True)


if __name__ == "__main__":
    main()
