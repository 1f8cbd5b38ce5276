"""What a step of `ResampledELBO(5, rate=0.5)` costs beside one of `Trace_ELBO(5)`, on 85 groups of 10 observations.

Both are compiled and trained in one process, turn by turn, so the ratios do not depend on what else the machine does at
the time. Steps are counted after rejection has begun. Ten proposals are needed for five acceptances, so a sampler
without any overhead would cost as much as two steps of `Trace_ELBO(5)`.

    python benchmarks/groups_cost.py [--rate 0.5] [--samples 5] [--steps 500] [--turns 7]
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.infer import Trace_ELBO
from starving import groups

from relbo.numpyro import SVI, ResampledELBO


class Timed:
    """A loss, compiled for a number of steps, and the state that it has come to."""

    def __init__(self, loss: Any, num_steps: int) -> None:
        program = groups()
        svi = SVI(program.model, program.guide, numpyro.optim.Adam(program.lr), loss)
        self.state, self.num_steps = svi.init(jax.random.key(0), *program.args), num_steps

        def run(state: Any) -> tuple[Any, jax.Array]:
            return jax.lax.scan(lambda s, _: svi.update(s, *program.args), state, jnp.arange(num_steps))

        start = time.perf_counter()
        self.compiled = jax.jit(run).lower(self.state).compile()
        self.compilation = time.perf_counter() - start

    def milliseconds(self) -> float:
        """Of one step, over all of them."""
        start = time.perf_counter()
        self.state, _ = jax.block_until_ready(self.compiled(self.state))
        return 1e3 * (time.perf_counter() - start) / self.num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    plain = Timed(Trace_ELBO(options.samples), options.steps)
    resampled = Timed(ResampledELBO(options.samples, rate=options.rate, warmup=options.steps), options.steps)
    both = (plain, resampled)
    warm = [one.milliseconds() for one in both][1]  # the warm-up
    for one in both:
        one.milliseconds()  # the first steps that reject, when T is solved for
    turns = [[one.milliseconds() for one in both] for _ in range(options.turns)]
    ours, theirs = (statistics.median(turn[i] for turn in turns) for i in (1, 0))
    ratio = statistics.median(turn[1] / turn[0] for turn in turns)
    needed = 1 / options.rate
    print(f"Trace_ELBO({options.samples}): {theirs:.3f} ms a step, compiled in {plain.compilation:.1f} s")
    print(f"rate {options.rate}: {ours:.3f} ms a step ({warm:.3f} before), compiled in {resampled.compilation:.1f} s")
    print(f"ratio of steps {ratio:.2f}, per proposal that is needed {ratio / needed:.2f}")
    print(f"ratio of compilations {resampled.compilation / plain.compilation:.2f}")


if __name__ == "__main__":
    main()
