r"""The Poisson diagnostic, figures 2 to 5 of the paper: VRS learns what the proposal family cannot represent.

Target: Poisson(10) with the mass below 5 replaced by e^-100 per state. Proposal: Poisson(e^phi), which always has
mass there. With T = 50 exactly the proposals below 5 are rejected, so r can be the target and the R-ELBO has its
maximum at rate 10. The paper leaves epsilon open; the maximum is at 10 only for log epsilon below about -65.
VIMCO ascends another bound, whose maximum is near 10 but flat: the two are not rivals for one objective.

Only phi is trained. Everything is a function of the number of proposals, accepted or not.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", section 5.1, https://arxiv.org/abs/1804.01712.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import gammainc
from jaxtyping import Array, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import relbo
from relbo import exact
from relbo._check import is_int, require, root_key
from relbo.estimators import VIMCO, VRS, AbstractEstimator
from relbo.lab.paper import output
from relbo.models.toy import PoissonProposal, PoissonTarget
from relbo.thresholds import Fixed
from relbo.types import Batch, Pair

TARGET_RATE, CUT, LOG_EPSILON, START_RATE = 10.0, 5, -100.0, 3.0
THRESHOLD, MOMENTUM = 50.0, 0.5
VRS_SAMPLES, VRS_LEARNING_RATE = 5, 0.01
VIMCO_SAMPLES, VIMCO_LEARNING_RATE = 100, 0.005
LARGEST_STATE = 200
"""Exact figures sum over z = 0 ... 200; beyond lies less than 1e-50 of any proposal that is looked at."""
BUDGET, TOLERANCE = 2_000, 0.005
"""The learned rate is read after this many proposals, and called right within this relative error."""
WINDOW = 10
"""Steps that a point of the counted acceptance rate averages."""
CHECKED_RATES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0)


class Trace(NamedTuple):
    """A training run; entry i is the state before step i and what that step cost."""

    phi: Float[Array, " n"]
    gradient: Float[Array, " n"]
    """Ascent gradient in phi."""
    num_proposals: Int[Array, " n"]


def poisson_pair(phi: Float[Array, ""]) -> Pair:
    """The target and a proposal of rate e^phi."""
    log_rate = jnp.asarray(math.log(TARGET_RATE), phi.dtype)
    return Pair(PoissonTarget(log_rate, CUT, LOG_EPSILON), PoissonProposal(phi))


@eqx.filter_jit
def train(key: Array, estimator: AbstractEstimator, learning_rate: float, num_steps: int) -> Trace:
    """Ascends the estimator's bound in phi from rate 3 by SGD with momentum; one compiled scan."""
    optimizer = optax.sgd(learning_rate, momentum=MOMENTUM)
    start_phi = jnp.log(jnp.asarray(START_RATE))
    batch = Batch(x=jnp.zeros(1), index=jnp.zeros(1, jnp.int32))

    def step(carry: tuple[Array, Any, Any], key: Array) -> tuple[tuple[Array, Any, Any], Trace]:
        phi, optimizer_state, state = carry
        grads, state, info = estimator.estimate(key, poisson_pair(phi), state, batch)
        ascent = cast(PoissonProposal, grads.proposal).phi
        update, optimizer_state = optimizer.update(-ascent, optimizer_state)
        trace = Trace(phi, ascent, info.num_proposals[0])
        return (optax.apply_updates(phi, update), optimizer_state, state), trace

    key_init, key_steps = jax.random.split(key)
    start = (start_phi, optimizer.init(start_phi), estimator.init(key_init, poisson_pair(start_phi), 1))
    return jax.lax.scan(step, start, jax.random.split(key_steps, num_steps))[1]


def run(*, seed: int = 0, num_seeds: int = 10, num_steps: int = 600) -> dict[str, Any]:
    """Trains with both estimators from `num_seeds` seeds and computes the exact figures beside them.

    Args:
        seed: first seed; the others follow it.
        num_seeds: independent runs of each estimator.
        num_steps: SGD steps of each run; VRS needs about 450 to spend its 2,000 proposals.

    Returns:
        A dictionary ready for JSON, from which `plot` draws.
    """
    root_key(seed)
    require(is_int(num_seeds, at_least=1), "num_seeds", "an integer >= 1", num_seeds)
    require(is_int(num_steps, at_least=10), "num_steps", "an integer >= 10", num_steps)
    methods: dict[str, tuple[AbstractEstimator, float]] = {
        "vrs": (VRS(VRS_SAMPLES, Fixed(THRESHOLD)), VRS_LEARNING_RATE),
        "vimco": (VIMCO(VIMCO_SAMPLES), VIMCO_LEARNING_RATE),
    }
    seeds = range(seed, seed + num_seeds)
    runs = {
        name: [describe(s, train(root_key(s), estimator, rate, num_steps)) for s in seeds]
        for name, (estimator, rate) in methods.items()
    }
    right = [r["relative_error_at_budget"] <= TOLERANCE for r in runs["vrs"]]
    return {
        "relbo_version": relbo.__version__,
        "settings": {
            "seed": seed,
            "num_seeds": num_seeds,
            "num_steps": num_steps,
            "target_rate": TARGET_RATE,
            "cut": CUT,
            "log_epsilon": LOG_EPSILON,
            "threshold": THRESHOLD,
            "momentum": MOMENTUM,
            "start_rate": START_RATE,
            "vrs_num_samples": VRS_SAMPLES,
            "vrs_learning_rate": VRS_LEARNING_RATE,
            "vimco_num_samples": VIMCO_SAMPLES,
            "vimco_learning_rate": VIMCO_LEARNING_RATE,
        },
        "exact": exact_figures(),
        "budget": {
            "num_proposals": BUDGET,
            "relative_tolerance": TOLERANCE,
            "num_vrs_runs": num_seeds,
            "num_vrs_runs_within_tolerance": sum(right),
        },
        **runs,
    }


def describe(seed: int, trace: Trace) -> dict[str, Any]:
    """One run as JSON: its curves, and the rate learned within the budget."""
    phi, gradient = np.asarray(trace.phi, float), np.asarray(trace.gradient, float)
    cost = np.asarray(trace.num_proposals, int)
    before = np.concatenate([[0], np.cumsum(cost)[:-1]])
    learned = float(np.exp(phi[before <= BUDGET][-1]))
    off = np.flatnonzero(np.abs(np.exp(phi) / TARGET_RATE - 1) > TOLERANCE)
    settled = off[-1] + 1 if off.size else 0
    return {
        "seed": seed,
        "learned_rate_at_budget": learned,
        "relative_error_at_budget": abs(learned / TARGET_RATE - 1),
        "num_proposals_until_within_tolerance_for_good": int(before[settled]) if settled < phi.size else None,
        "learned_rate_at_end": float(np.exp(phi[-1])),
        "num_proposals_at_end": int(before[-1]),
        "phi": phi.tolist(),
        "gradient": gradient.tolist(),
        "num_proposals_before_step": before.tolist(),
        "exact_acceptance_rate": _poisson_tail(np.exp(phi)).tolist(),
        "num_proposals_of_step": cost.tolist(),
    }


def _poisson_tail(rate: np.ndarray) -> np.ndarray:
    """P(Poisson(rate) >= cut), which is Z_R but for what e^-50 lets through."""
    with output.in_float64():
        return np.asarray(gammainc(jnp.asarray(float(CUT)), jnp.asarray(rate, float)))


def exact_figures() -> dict[str, Any]:
    """Maximisers of the R-ELBO and of the ELBO, and Z_R(rate), by enumeration in float64."""
    with output.in_float64():
        x, states = jnp.zeros(()), jnp.arange(LARGEST_STATE + 1)
        r_elbo = jax.jit(lambda phi: exact.r_elbo(poisson_pair(phi), x, states, THRESHOLD))
        elbo = jax.jit(lambda phi: exact.elbo(poisson_pair(phi), x, states))
        log_z = jax.jit(lambda phi: exact.log_z(poisson_pair(phi), x, states, THRESHOLD))
        best, best_elbo = maximiser(r_elbo), maximiser(elbo)
        summed = [float(jnp.exp(log_z(jnp.log(jnp.asarray(rate))))) for rate in CHECKED_RATES]
        return {
            "r_elbo_maximiser_rate": float(jnp.exp(best)),
            "r_elbo_maximum_nats": float(r_elbo(best)),
            "log_mass_of_target_nats": float(exact.log_evidence(poisson_pair(best).model, x, states)),
            "elbo_maximiser_rate": float(jnp.exp(best_elbo)),
            "acceptance_check": [
                {"rate": rate, "acceptance_rate": z, "poisson_tail": tail}
                for rate, z, tail in zip(
                    CHECKED_RATES, summed, _poisson_tail(np.array(CHECKED_RATES)).tolist(), strict=True
                )
            ],
            "target_probability": np.exp(
                np.asarray(exact.log_posterior(poisson_pair(best).model, x, states[:31]))
            ).tolist(),
        }


def maximiser(bound: Any) -> Float[Array, ""]:
    """The phi in [-1, 4] at which the bound is greatest: a grid, then bisection of the slope around its best point."""
    grid = jnp.linspace(-1.0, 4.0, 51)
    best = int(jnp.argmax(jax.jit(jax.vmap(bound))(grid)))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    slope = jax.jit(jax.grad(bound))
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def plot(results: dict[str, Any], out: Path) -> list[Path]:
    """Draws the paper's figures 2 to 5: thin lines are runs from single seeds, the bold line is their mean."""
    vrs, vimco = _curves(results["vrs"]), _curves(results["vimco"])
    pictures = {"target": plot_target(results), "acceptance": plot_acceptance(vrs)}
    pictures["vrs"] = plot_dynamics(vrs, f"VRS, S = {VRS_SAMPLES}, learning rate {VRS_LEARNING_RATE:g}", output.BLUE)
    pictures["vimco"] = plot_dynamics(
        vimco, f"VIMCO, k = {VIMCO_SAMPLES}, learning rate {VIMCO_LEARNING_RATE:g}", output.ORANGE
    )
    return [output.save(figure, out / f"poisson-{name}.png") for name, figure in pictures.items()]


def _curves(runs: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Curves of all runs, (seeds, steps)."""
    return {name: np.array([r[name] for r in runs]) for name, value in runs[0].items() if isinstance(value, list)}


def plot_target(results: dict[str, Any]) -> Figure:
    """Figure 2: the target, and the best Poisson without rejection."""
    figure, (axes,) = output.new_figure(4.6, 2.8)
    target = np.array(results["exact"]["target_probability"])
    z = np.arange(target.size)
    axes.bar(z, target, color=output.BLUE, width=0.8, label=f"target: Poisson({TARGET_RATE:g}) without z < {CUT}")
    rate = results["exact"]["elbo_maximiser_rate"]
    poisson = np.exp(z * math.log(rate) - rate - np.array([math.lgamma(v + 1) for v in z]))
    axes.plot(z, poisson, "o-", color=output.ORANGE, markersize=3, linewidth=1, label=f"ELBO's choice: rate {rate:.2f}")
    _label(axes, "z", "probability")
    axes.legend(fontsize=7.5, frameon=False)
    return figure


def plot_acceptance(curves: dict[str, np.ndarray]) -> Figure:
    """Figure 3: the sampler's efficiency over SGD."""
    figure, (axes,) = output.new_figure(4.6, 2.8)
    steps = np.arange(curves["phi"].shape[1])
    # (S-1)/(N-1) is unbiased for Z_R, S/N is not
    counted = ((VRS_SAMPLES - 1) / (curves["num_proposals_of_step"] - 1)).mean(0)
    whole = steps.size // WINDOW * WINDOW
    middles, means = (v[:whole].reshape(-1, WINDOW).mean(1) for v in (steps, counted))
    axes.plot(middles, means, ".", color=output.GREY, markersize=4, label=f"counted, mean of runs and {WINDOW} steps")
    axes.plot(steps, curves["exact_acceptance_rate"].T, color=output.BLUE, linewidth=0.7, alpha=0.35)
    axes.plot(
        steps, curves["exact_acceptance_rate"].mean(0), color=output.BLUE, linewidth=2, label="exact, mean of runs"
    )
    _label(axes, "SGD step", "acceptance rate $Z_R$")
    axes.set_ylim(0, 1.03)
    axes.legend(fontsize=7.5, frameon=False, loc="lower right")
    return figure


def plot_dynamics(curves: dict[str, np.ndarray], title: str, colour: str) -> Figure:
    """Figures 4 and 5: error and gradient against the proposals paid for."""
    figure, (error, gradient) = output.new_figure(7.6, 2.9, 2)
    cost = curves["num_proposals_before_step"]
    off = curves["phi"] - math.log(TARGET_RATE)
    for axes, values, name in (
        (error, off, "error  $\\phi - \\phi^*$"),
        (gradient, curves["gradient"], "gradient in $\\phi$"),
    ):
        axes.axhline(0, color=output.GREY, linewidth=0.8)
        axes.plot(cost.T, values.T, color=colour, linewidth=0.6, alpha=0.35)
        axes.plot(cost.mean(0), values.mean(0), color=colour, linewidth=1.6)
        _label(axes, "total proposals", name)
        axes.ticklabel_format(axis="x", style="plain")
    figure.suptitle(title, fontsize=9, color=output.INK)
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=8.5)
    axes.set_ylabel(y, fontsize=8.5)
