"""What the trainer adds to the bare jitted step.

    python benchmarks/trainer_overhead.py

Times the same steps of VRS on a 784-200 network three times in turns: by `relbo.fit` (the difference of a long and a
short run, so that compilation cancels) and by a loop over one jitted function of `estimate` and Adam. Evaluation and
checkpoints are left out of both.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import relbo
from relbo.lab.bench.steps import images

BATCH, EPOCHS, NUM_DATA = 50, 15, 5_000


def main() -> None:
    data = images(NUM_DATA)
    pair = relbo.sbn(jax.random.key(0), (200,), jnp.mean(data, axis=0))
    estimator, optimizer = relbo.VRS(5, relbo.Fixed(1000.0)), optax.adam(1e-3)
    steps = EPOCHS * (NUM_DATA // BATCH)

    def fit(num_epochs: int) -> float:
        start = time.perf_counter()
        relbo.fit(pair, estimator, data, num_epochs=num_epochs, optimizer=optimizer, batch_size=BATCH)
        return time.perf_counter() - start

    @eqx.filter_jit(donate="all-except-first")
    def step(batch, key, pair, opt_state, state):
        grads, state, _ = estimator.estimate(key, pair, state, batch)
        updates, opt_state = optimizer.update(jax.tree.map(jnp.negative, grads), opt_state)
        return eqx.apply_updates(pair, updates), opt_state, state

    def bare() -> float:
        copy = jax.tree.map(jnp.copy, pair)
        carry = (copy, optimizer.init(pair), estimator.init(jax.random.key(0), pair, NUM_DATA))
        rows = [jnp.arange(i, i + BATCH) for i in range(0, NUM_DATA, BATCH)]
        batches = [relbo.Batch(data[r], r) for r in rows]
        keys = list(jax.random.split(jax.random.key(1), steps + 1))
        carry = jax.block_until_ready(step(batches[0], keys[-1], *carry))
        start = time.perf_counter()
        for i in range(steps):
            carry = step(batches[i % len(batches)], keys[i], *carry)
        jax.block_until_ready(carry)
        return time.perf_counter() - start

    ratios = []
    for _ in range(3):
        trained, alone = fit(EPOCHS + 1) - fit(1), bare()
        ratios.append(trained / alone)
        print(f"fit {1e3 * trained / steps:.2f} ms, bare {1e3 * alone / steps:.2f} ms per step, ratio {ratios[-1]:.3f}")
    print(f"median ratio {np.median(ratios):.3f}")


if __name__ == "__main__":
    main()
