"""How good are posteriors after a mean-field fit: the guide, draws from r, and weighed proposals, against NUTS?

    python benchmarks/posteriors.py --out out/posteriors

Seven textbook posteriors: eight schools, centred and not; a 20-dimensional normal distribution with correlations of
0.9; logistic regression on the wine data (needs scikit-learn); Neal's funnel; two modes; negative binomial regression.
AutoNormal is fitted by `Trace_ELBO`. All methods have the same number of proposals, but for the 1,000 behind T. Errors
are those of posterior means, in posterior standard deviations, and of posterior standard deviations, relative, as means
over all latent numbers. The reference is NUTS, or exact draws where the posterior is a known distribution.

The second table is about the log evidence: how often two of its errors cover the truth, how often the error is finite,
and what the verdict says.
"""

import argparse
import collections
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import MCMC, NUTS, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from scipy import stats

from relbo.numpyro import SVI, resample

EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools_centred() -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, ERRORS), obs=EFFECTS)


def schools_not_centred() -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        eta = numpyro.sample("eta", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * eta, ERRORS), obs=EFFECTS)


def evidence_of_schools() -> float:
    """Log p(y) by quadrature over mu and log tau, the effects integrated out."""
    mu, log_tau = np.linspace(-40, 45, 1_201), np.linspace(-15, 12, 2_000)
    inner = []
    for tau in np.exp(log_tau):
        scale = np.sqrt(tau**2 + ERRORS**2)[:, None]
        log_p = stats.norm.logpdf(EFFECTS[:, None], mu[None], scale).sum(0) + stats.norm.logpdf(mu, 0, 5)
        inner.append(np.trapezoid(np.exp(log_p), mu) * stats.halfcauchy.pdf(tau, scale=5) * tau)
    return float(np.log(np.trapezoid(inner, log_tau)))


def normal() -> None:
    lag = jnp.abs(jnp.arange(20)[:, None] - jnp.arange(20)[None])
    numpyro.sample("z", dist.MultivariateNormal(jnp.zeros(20), 0.9**lag))


def wine() -> Callable[[], None]:
    from sklearn.datasets import load_wine

    data = load_wine()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    y = (data.target == 1).astype(float)

    def model() -> None:
        b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("bottles", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=a + x @ b), obs=y)

    return model


def funnel() -> None:
    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]).to_event(1))


def bimodal() -> None:
    modes = dist.MultivariateNormal(
        jnp.array([[-1.5, 0.0], [2.0, 1.0]]), jnp.eye(2) * jnp.array([1.0, 0.5])[:, None, None]
    )
    numpyro.sample("z", dist.MixtureSameFamily(dist.Categorical(jnp.array([0.7, 0.3])), modes))


def counts() -> Callable[[], None]:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    mean = np.exp(1 + x @ np.array([0.5, -0.4, 0.3]))
    y = random.negative_binomial(2, 2 / (2 + mean))

    def model() -> None:
        b = numpyro.sample("b", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        a = numpyro.sample("a", dist.Normal(0, 2))
        c = numpyro.sample("c", dist.Exponential(1))
        with numpyro.plate("rows", 60):
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(a + x @ b), c), obs=y)

    return model


@dataclasses.dataclass
class Case:
    """A posterior."""

    model: Callable[[], None]
    evidence: float | None
    """Log p; None if it is to be estimated with a guide that knows correlations."""
    is_exact: bool = False
    """Whether the model has no data, so that it draws its own posterior."""


def cases() -> dict[str, Callable[[], Case]]:
    return {
        "schools, centred": lambda: Case(schools_centred, evidence_of_schools()),
        "schools, not centred": lambda: Case(schools_not_centred, evidence_of_schools()),
        "normal, 20-d": lambda: Case(normal, 0.0, is_exact=True),
        "wine": lambda: Case(wine(), None),
        "funnel": lambda: Case(funnel, 0.0, is_exact=True),
        "two modes": lambda: Case(bimodal, 0.0, is_exact=True),
        "negative binomial": lambda: Case(counts(), None),
    }


def fitted(model: Callable[[], None], kind: Any, num_steps: int) -> tuple[Any, dict[str, Any]]:
    guide = kind(model)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, num_steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=4))
    return guide, svi.run(jax.random.key(1), num_steps, progress_bar=False).params


def reference(case: Case, num_draws: int) -> dict[str, np.ndarray]:
    if case.is_exact:
        return Predictive(case.model, num_samples=20 * num_draws)(jax.random.key(0))
    mcmc = MCMC(NUTS(case.model, target_accept_prob=0.95), num_warmup=1_000, num_samples=num_draws, progress_bar=False)
    mcmc.run(jax.random.key(0))
    return mcmc.get_samples()


def errors(mean: dict[str, Any], sd: dict[str, Any], truth: dict[str, np.ndarray]) -> tuple[float, float]:
    names = sorted(mean)
    flat_mean, flat_sd = (np.concatenate([np.ravel(tree[n]) for n in names]) for tree in (mean, sd))
    true_mean = np.concatenate([np.ravel(np.mean(truth[n], axis=0)) for n in names])
    true_sd = np.concatenate([np.ravel(np.std(truth[n], axis=0)) for n in names])
    return float(np.mean(np.abs(flat_mean - true_mean) / true_sd)), float(np.mean(np.abs(flat_sd / true_sd - 1)))


def of_draws(draws: dict[str, Any], truth: dict[str, np.ndarray]) -> tuple[float, float]:
    draws = {name: np.asarray(value) for name, value in draws.items()}
    return errors({n: v.mean(0) for n, v in draws.items()}, {n: v.std(0) for n, v in draws.items()}, truth)


def by_resampling(proposals: Any, key: Any, size: int) -> dict[str, Any]:
    """Sampling/importance resampling: proposals drawn again by their weights."""
    chosen = np.asarray(jax.random.categorical(key, proposals.log_weights[0], shape=(size,)))
    return {name: np.asarray(value)[0][chosen] for name, value in proposals.z.items()}


def compare(
    case: Case, fit: tuple[Any, dict], truth: dict, num_proposals: int, num_keys: int
) -> dict[str, list[float]]:
    guide, params = fit
    found = collections.defaultdict(list)
    for number in range(num_keys):
        key = jax.random.key(100 + number)
        for rate in (0.5, 0.1, 0.01):
            size = int(num_proposals * rate)
            result = resample(key, case.model, guide, params, (), rate=rate, num_samples=size, throw=False)
            found[f"r at {rate:g}"].append(of_draws(result.samples, truth))
            if rate == 0.5:
                plain = {name: value[0] for name, value in result.proposals.z.items()}
                found["guide"].append(of_draws(plain, truth))
                found["weighed"].append(errors(result.mean, result.sd, truth))
                found["resampled by weight"].append(of_draws(by_resampling(result.proposals, key, size), truth))
    return {name: np.mean(values, axis=0).tolist() for name, values in found.items()}


def coverage(case: Case, fit: tuple[Any, dict], truth: float, num_proposals: int, num_keys: int) -> dict[str, Any]:
    guide, params = fit
    size = (num_proposals - 1_000) // 2
    results = [
        resample(jax.random.key(k), case.model, guide, params, (), rate=0.5, num_samples=size) for k in range(num_keys)
    ]
    values = np.array([result.log_evidence[0] for result in results])
    wide = np.array([result.log_evidence_error[0] for result in results])
    known = np.isfinite(wide)
    misses = np.abs(values - truth)
    return {
        "root mean square miss": float(np.sqrt(np.mean(misses**2))),
        "covered": float(np.mean(misses <= 2 * wide)),
        "finite": float(np.mean(known)),
        "covered where finite": float(np.mean(misses[known] <= 2 * wide[known])) if known.any() else None,
        "median error where finite": float(np.median(wide[known])) if known.any() else None,
        "median Pareto k": float(np.median([result.pareto_k[0] for result in results])),
        "verdicts": dict(collections.Counter(result.verdict[0] for result in results)),
    }


def evidence_of(case: Case, num_steps: int) -> float:
    """With a guide that knows correlations, and many proposals."""
    if case.evidence is not None:
        return case.evidence
    guide, params = fitted(case.model, AutoMultivariateNormal, num_steps)
    found = [resample(jax.random.key(k), case.model, guide, params, (), rate=0.5, num_samples=9_000) for k in range(10)]
    return float(
        np.log(np.mean(np.exp([r.log_evidence[0] - found[0].log_evidence[0] for r in found])))
        + found[0].log_evidence[0]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory to write posteriors.json into")
    parser.add_argument("--only", nargs="*", help="names of posteriors")
    parser.add_argument("--proposals", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=5, help="repetitions behind each error")
    parser.add_argument("--coverage-keys", type=int, default=40, help="repetitions behind each coverage")
    parser.add_argument("--coverage-proposals", type=int, nargs="*", default=[2_000, 11_000])
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--nuts", type=int, default=20_000, help="draws of NUTS")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    report = {}
    for name, make in cases().items():
        if options.only and name not in options.only:
            continue
        case = make()
        truth = reference(case, options.nuts)
        fit = fitted(case.model, AutoNormal, options.steps)
        table = compare(case, fit, truth, options.proposals, options.keys)
        evidence = evidence_of(case, options.steps)
        covered = {str(n): coverage(case, fit, evidence, n, options.coverage_keys) for n in options.coverage_proposals}
        report[name] = {"errors (mean, sd)": table, "log evidence": evidence, "coverage": covered}
        print(json.dumps({name: report[name]}, indent=1), flush=True)
        (options.out / "posteriors.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
