"""relbo against RVRS (Jankowiak and Phan 2024) on their own experiment: logistic regression on 100 rows of bank.csv.

    python benchmarks/rvrs.py --rvrs PATH --out FILE

PATH is a checkout of github.com/martinjankowiak/rvrs_example_code; nothing of it is copied here. Both start from the
same mean-field fit, take the same number of steps with the same optimiser, and are then judged by the same code: from
plain draws of the trained guide, T is solved so that the acceptance rate is exactly the target, and

    R-ELBO = E_r[log w - log a] + log Z

and the posterior standard deviations under r are means over those draws, weighed by a. Standard deviations are compared
with those of NUTS. Milliseconds are those of a compiled loop of all steps. In brackets the standard deviation between
seeds. "relbo" takes exactly S accepted draws, as RVRS does; "relbo, budget" S / Z proposals and all that is accepted of
them, two at the least.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import MCMC, NUTS, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

import relbo
from relbo.numpyro import SVI, EstimatorELBO
from relbo.thresholds.rate import solve_rate

TARGETS = [(0.3, 2), (0.3, 5), (0.1, 2), (0.1, 5)]
"""Acceptance rate Z and accepted draws S."""


def model(x: Any, y: Any) -> None:
    coefficients = numpyro.sample("coef", dist.Normal(jnp.zeros(x.shape[-1]), 1).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ coefficients), obs=y)


def bank(place: Path) -> tuple[np.ndarray, np.ndarray]:
    """Their choice of 100 rows."""
    table = np.genfromtxt(place / "bank.csv", delimiter=",", skip_header=1)[:, 1:]
    rows = np.random.RandomState(0).permutation(len(table))[:100]
    return table[rows, :-1], table[rows, -1]


def optimiser(num_steps: int, size: float) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(size, num_steps))


def trained(svi: Any, state: Any, num_steps: int) -> tuple[Any, float]:
    """The state after all steps, and milliseconds a step."""
    loop = jax.jit(lambda s: jax.lax.fori_loop(0, num_steps, lambda _, v: svi.update(v)[0], s))
    compiled = loop.lower(state).compile()
    start = time.perf_counter()
    state = jax.block_until_ready(compiled(state))
    return state, 1e3 * (time.perf_counter() - start) / num_steps


def judged(bound: Callable, params: dict[str, Any], rate: float, sds: np.ndarray) -> dict[str, float]:
    """R-ELBO at exactly this rate, and the error of the standard deviations under r."""
    loc, scale = params["auto_loc"], params["auto_scale"]

    def one(key: Any) -> tuple[Any, Any]:
        z = loc + scale * jax.random.normal(key, loc.shape)
        return z, bound(z) - jnp.sum(dist.Normal(loc, scale).log_prob(z))

    z, log_w = jax.lax.map(one, jax.random.split(jax.random.key(9), 400_000), batch_size=4_000)
    t = solve_rate(log_w, jnp.asarray(rate, log_w.dtype), relbo.Soft())
    log_a = jax.nn.log_sigmoid(log_w + t)
    weight = jax.nn.softmax(log_a)
    log_z = jax.nn.logsumexp(log_a) - jnp.log(log_a.size)
    mean = weight @ z
    spread = jnp.sqrt(weight @ (z - mean) ** 2)
    return {
        "R-ELBO": float(weight @ (log_w - log_a) + log_z),
        "sd error": float(np.mean(np.abs(np.asarray(spread) / sds - 1))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rvrs", type=Path, required=True, help="a checkout of rvrs_example_code")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=float, default=1e-3, help="first step size, falling to 0 by a cosine")
    parser.add_argument("--rate", type=float, action="append", help="acceptance rates Z; both by default")
    options = parser.parse_args()
    sys.path.insert(0, str(options.rvrs))
    import rvrs

    x, y = bank(options.rvrs)
    program = partial(model, x, y)
    mcmc = MCMC(NUTS(program), num_warmup=2_000, num_samples=20_000, progress_bar=False)
    mcmc.run(jax.random.key(0))
    sds = np.std(mcmc.get_samples()["coef"], axis=0)

    def bound(z: Any) -> Any:
        log_p = jnp.sum(dist.Normal(0, 1).log_prob(z))
        return log_p + jnp.sum(dist.Bernoulli(logits=x @ z).log_prob(y))

    guide = AutoDiagonalNormal(program, init_scale=0.1)
    svi = numpyro.infer.SVI(program, guide, optimiser(20_000, 1e-2), Trace_ELBO(num_particles=4))
    plain = svi.run(jax.random.key(1), 20_000, progress_bar=False)
    elbo = -float(jnp.mean(plain.losses[-2_000:]))
    report: dict[str, Any] = {"mean field": {"ELBO": elbo, **judged(bound, plain.params, 0.999, sds)}}
    for rate, size in [target for target in TARGETS if target[0] in (options.rate or (0.3, 0.1))]:
        exactly = relbo.estimators.VRSPath(size, rate=rate)
        budget = relbo.estimators.VRSPath(2, rate=rate, num_proposals=int(np.ceil(size / rate - 1e-6)))
        theirs = rvrs.AutoRVRS(
            program, S=size, T=-elbo, guide=guide, epsilon=1e-4, Z_target=rate, T_lr=1.0, gamma=0.0, init_scale=0.1
        )
        methods = {
            "RVRS": lambda g=theirs: rvrs.SVI(program, g, optimiser(options.steps, options.size), rvrs.Trace_ELBO()),
        }
        for name, estimator in {"relbo": exactly, "relbo, budget": budget}.items():
            loss = EstimatorELBO(estimator)
            methods[name] = lambda o=loss: SVI(program, guide, optimiser(options.steps, options.size), o)
        for name, make in methods.items():
            found = []
            for seed in range(options.seeds):
                runner = make()
                start = runner.init(jax.random.PRNGKey(100 + seed), init_params=plain.params)
                state, milliseconds = trained(runner, start, options.steps)
                found.append({**judged(bound, runner.get_params(state), rate, sds), "ms/step": milliseconds})
            means = {figure: statistics.mean(f[figure] for f in found) for figure in found[0]}
            spreads = (
                {figure: float(np.std([f[figure] for f in found], ddof=1)) for figure in means} if found[1:] else {}
            )
            report[f"Z = {rate}, S = {size}, {name}"] = {**means, "spread": spreads, "runs": found}
            told = [
                f"{name} {mean:.4f}" + (f" ({spreads[name]:.4f})" if name in spreads else "")
                for name, mean in means.items()
            ]
            print(f"Z = {rate}, S = {size}, {name:13}", *told, flush=True)
            options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
