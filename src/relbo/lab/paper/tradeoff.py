r"""What compute buys: the exact R-ELBO against the acceptance rate, on a sigmoid belief network of 256 states.

A network with random weights generates data; its inference network, which cannot represent the posterior, is
trained to the maximum of the exact ELBO. Then nothing is trained any more and T alone sweeps: each T gives a mean
acceptance rate Z_R (one over the proposals that a draw costs) and a mean R-ELBO = log p(x) - KL(r || p(z | x)).

Beside it stands the k-sample bound of IWAE, E_q log mean_k w, with k = 1 / Z_R: as many draws as the R-ELBO pays
proposals for one. It is exact too. The mean of k weights that take n values needs all n^k tuples if they are summed one
by one; but log has the integral representation

    E log(W_1 + ... + W_k) = integral over t > 0 of ( e^-t - E[e^(-t W)]^k ) / t dt,

in which the k independent weights become a power, so that one integral over t gives every k.
"""

import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from scipy.special import logsumexp

import relbo
from relbo import exact
from relbo._check import root_key
from relbo.lab.paper import output
from relbo.models.sbn import sbn
from relbo.types import Pair

WIDTHS, NUM_OBSERVED, NUM_DATA, WEIGHT_SCALE = (5, 3), 12, 40, 4.0
LEARNING_RATE, MOMENTUM, NUM_STEPS = 0.3, 0.9, 600
THRESHOLDS = (math.inf, *np.linspace(17, 1, 33).tolist())


def network(key: Array) -> tuple[Pair, Float[Array, "n d"]]:
    """The generating network, its untrained inference network, and data drawn from the former."""
    key_weights, key_data = jax.random.split(key)
    pair = sbn(key_weights, WIDTHS, jnp.full(NUM_OBSERVED, 0.5))
    model = jax.tree.map(lambda leaf: WEIGHT_SCALE * leaf, pair.model)
    x, _ = jax.vmap(model.sample)(jax.random.split(key_data, NUM_DATA))
    return Pair(model, pair.proposal), x


def support() -> tuple[Float[Array, "n first"], Float[Array, "n second"]]:
    """All 2^(5+3) states of the two layers."""
    bits = exact.binary_states(sum(WIDTHS))
    return bits[:, : WIDTHS[0]], bits[:, WIDTHS[0] :]


@eqx.filter_jit
def train_proposal(pair: Pair, x: Float[Array, "n d"]) -> Pair:
    """Ascends the exact mean ELBO in phi alone, by gradient steps with momentum; one compiled scan."""
    arrays, static = eqx.partition(pair.proposal, eqx.is_inexact_array)
    optimizer = optax.sgd(LEARNING_RATE, MOMENTUM)
    states = support()

    def loss(arrays: Any) -> Array:
        candidate = Pair(pair.model, eqx.combine(arrays, static))
        return -jnp.mean(jax.vmap(lambda one: exact.elbo(candidate, one, states))(x))

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, state = carry
        update, state = optimizer.update(jax.grad(loss)(arrays), state)
        return (optax.apply_updates(arrays, update), state), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, optimizer.init(arrays)), None, length=NUM_STEPS)
    return Pair(pair.model, eqx.combine(arrays, static))


def iwae(log_w: np.ndarray, log_q: np.ndarray, num_samples: np.ndarray) -> np.ndarray:
    """E_q log mean_k w for every k, from the log weights and log probabilities of all states of one x.

    The integrand is smooth in s = log t, and falls off at both ends: a sum over equal steps of s converges faster than
    any power of the step. `test_iwae_is_that_of_all_tuples` compares it with a sum over tuples.
    """
    top = log_w.max()
    s = np.linspace(-45.0, 45.0, 6_001)
    t = np.exp(s)[:, None]
    # log E[e^(-t W)], from what is missing to 1 where t is small: there the two terms nearly cancel
    exponent = -t * np.exp(log_w - top)[None]
    missing = -np.sum(np.exp(log_q)[None] * np.expm1(exponent), axis=1)
    kept = np.where(missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), logsumexp(log_q[None] + exponent, axis=1))
    integrand = np.exp(-t) - np.exp(num_samples[None].astype(float) * kept[:, None])
    total = np.sum(integrand, axis=0) * (s[1] - s[0])
    return total + top - np.log(num_samples)


@eqx.filter_jit
def weights(pair: Pair, x: Float[Array, "n d"]) -> tuple[Array, Array]:
    """Log p - log q and log q of every state, for every x."""
    states = support()

    def one(row: Array) -> tuple[Array, Array]:
        log_q = exact.log_proposal(pair.proposal, row, states)
        return exact.log_joint(pair.model, row, states) - log_q, log_q

    return jax.vmap(one)(x)


@eqx.filter_jit
def sweep(pair: Pair, x: Float[Array, "n d"], thresholds: Float[Array, " t"]) -> tuple[Array, Array, Array, Array]:
    """Means over the data, for each T: acceptance rate, R-ELBO, KL; and the mean log p(x)."""
    states = support()

    def one(t: Array, row: Array) -> tuple[Array, Array, Array]:
        rate = jnp.exp(exact.log_z(pair, row, states, t))
        return rate, exact.r_elbo(pair, row, states, t), exact.kl(pair, row, states, t)

    rate, bound, kl = jax.vmap(lambda t: jax.vmap(lambda row: one(t, row))(x))(thresholds)
    log_evidence = jax.vmap(lambda row: exact.log_evidence(pair.model, row, states))(x)
    return jnp.mean(rate, axis=1), jnp.mean(bound, axis=1), jnp.mean(kl, axis=1), jnp.mean(log_evidence)


def run(*, seed: int = 0) -> dict[str, Any]:
    """Trains the inference network and sweeps T; all by enumeration in float64.

    Args:
        seed: randomness of the network and of its data.

    Returns:
        A dictionary ready for JSON, from which `plot` draws.
    """
    with output.in_float64():
        pair, x = network(root_key(seed))
        pair = train_proposal(pair, x)
        rate, bound, kl, log_evidence = sweep(pair, x, jnp.asarray(THRESHOLDS))
        points = [
            {
                "threshold": t if math.isfinite(t) else "inf",
                "acceptance_rate": float(z),
                "r_elbo_nats": float(b),
                "kl_nats": float(k),
            }
            for t, z, b, k in zip(THRESHOLDS, rate, bound, kl, strict=True)
        ]
        most = int(np.ceil(1 / float(rate.min())))
        counts = np.unique(np.round(np.geomspace(1, most, 40)).astype(int))
        log_w, log_q = (np.asarray(part) for part in weights(pair, x))
        bounds = np.mean([iwae(w, q, counts) for w, q in zip(log_w, log_q, strict=True)], axis=0)
        return {
            "relbo_version": relbo.__version__,
            "settings": {
                "seed": seed,
                "widths": list(WIDTHS),
                "num_observed": NUM_OBSERVED,
                "num_data": NUM_DATA,
                "weight_scale": WEIGHT_SCALE,
                "learning_rate": LEARNING_RATE,
                "momentum": MOMENTUM,
                "num_steps": NUM_STEPS,
            },
            "log_evidence_nats": float(log_evidence),
            "points": points,
            "iwae": [{"num_samples": int(k), "bound_nats": float(b)} for k, b in zip(counts, bounds, strict=True)],
        }


def plot(results: dict[str, Any], path: Path) -> Path:
    """Draws the bounds against the acceptance rate; the gap of the R-ELBO to log p(x) is the KL."""
    points = results["points"]
    rate = np.array([p["acceptance_rate"] for p in points])
    bound = np.array([p["r_elbo_nats"] for p in points])
    top = results["log_evidence_nats"]

    figure, (axes,) = output.new_figure(5.8, 3.2)
    axes.axhline(top, color=output.INK, linewidth=1, linestyle="--")
    axes.fill_between(rate, bound, top, color=output.BLUE, alpha=0.10, linewidth=0)
    axes.plot(rate, bound, color=output.BLUE, linewidth=2)
    shares = np.array([1 / p["num_samples"] for p in results["iwae"]])
    of_iwae = np.array([p["bound_nats"] for p in results["iwae"]])
    axes.plot(shares, of_iwae, color=output.GREY, linewidth=1.5, linestyle=(0, (4, 2)))
    axes.plot(rate[:1], bound[:1], "o", color=output.ORANGE, markersize=6, clip_on=False, zorder=3)
    axes.set_xscale("log")
    axes.set_xlim(1, rate.min())
    ticks = [z for z in (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01) if z >= rate.min()]
    axes.set_xticks(ticks, [f"{z:g}" for z in ticks])
    axes.minorticks_off()
    axes.set_xlabel("acceptance rate $Z_R$ (a draw costs $1/Z_R$ proposals)", fontsize=8.5)
    axes.set_ylabel("bound on log p(x), nats", fontsize=8.5)
    axes.annotate(
        "log p(x)",
        (0.985, top),
        xytext=(0, 2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
    )
    axes.annotate("ELBO (T = ∞)", (rate[0], bound[0]), xytext=(9, -2), textcoords="offset points", fontsize=8.5)
    middle = int(np.argmin(np.abs(rate - 0.35)))
    axes.annotate(
        "R-ELBO",
        (rate[middle], bound[middle]),
        xytext=(8, -13),
        textcoords="offset points",
        fontsize=8.5,
        color=output.BLUE,
    )
    middle = int(np.argmin(np.abs(shares - 0.12)))
    axes.annotate(
        "IWAE, $k = 1/Z_R$ draws",
        (shares[middle], of_iwae[middle]),
        xytext=(6, -16),
        textcoords="offset points",
        fontsize=8.5,
        color=output.GREY,
    )
    axes.annotate("KL(r || p)", (0.88, (bound[0] + 3 * top) / 4), fontsize=8.5, color=output.BLUE)
    return output.save(figure, path)
