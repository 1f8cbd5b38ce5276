r"""How close draws are to the exact posterior of a small network, against what a draw costs; all by enumeration.

Three ways to spend k proposals on one draw, of which the last two come closer to the posterior as k grows:

    q                        the proposal as it is, k = 1
    r                        rejection at an acceptance rate of 1 / k, T solved for exactly
    importance resampling    k proposals, one of them chosen with probability w_i / (w_1 + ... + w_k)

The law of the last is an integral: with W the weight of a proposal, P(z) = k q(z) w(z) E[1 / (w(z) + W_2 + ... + W_k)]
and 1 / s = integral over t > 0 of e^(-t s) dt, so

    P(z) = k q(z) w(z) integral e^(-t w(z)) E[e^(-t W)]^(k - 1) dt.

Closeness is the total variation distance, half the sum of |P(z) - p(z | x)|, and KL(P || posterior) in nats.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree
from scipy.special import expit, logsumexp, xlogy

from relbo import exact
from relbo.types import Pair

COSTS = (1, 2, 5, 10, 20, 50)
"""Proposals per draw."""
STEPS = np.linspace(-60.0, 45.0, 2_101)
"""Of log t, for the integral, which converges faster than any power of the step."""


def measure(pair: Pair, x: PyTree, support: PyTree, costs: Sequence[int] = COSTS) -> list[dict[str, Any]]:
    """Mean closeness over the rows of x, for each cost.

    Args:
        pair: a pair whose states can be listed.
        x: observations, rows first.
        support: all states of z, stacked along the first axis.
        costs: proposals per draw.

    Returns:
        A dictionary for each cost, ready for JSON: `proposals`, and for `rejection` and `resampling` the distances.
    """
    log_p, log_q = (np.asarray(part, float) for part in log_densities(pair, x, support))
    kept, chosen = [], []
    for p, q in zip(log_p, log_q, strict=True):
        kept.append([distances(rejection(p, q, cost), p) for cost in costs])
        chosen.append([distances(law, p) for law in resampling(p, q, costs)])
    return [
        {"proposals": cost, "rejection": named(one), "resampling": named(other)}
        for cost, one, other in zip(costs, np.mean(kept, axis=0), np.mean(chosen, axis=0), strict=True)
    ]


@eqx.filter_jit
def log_densities(pair: Pair, x: PyTree, support: PyTree) -> tuple[Array, Array]:
    """(rows, states) log p(x, z) and log q(z | x)."""
    return (
        jax.vmap(lambda one: exact.log_joint(pair.model, one, support))(x),
        jax.vmap(lambda one: exact.log_proposal(pair.proposal, one, support))(x),
    )


def rejection(log_p: np.ndarray, log_q: np.ndarray, cost: int) -> np.ndarray:
    """The law of a draw that is accepted with probability w / (w + e^-T), T such that it costs so many proposals."""
    log_w, q = log_p - log_q, np.exp(log_q - logsumexp(log_q))
    if cost == 1:
        return q
    low, high = -log_w.max() - 50.0, -log_w.min() + 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if np.sum(q * expit(log_w + middle)) > 1 / cost else (middle, high)
    kept = q * expit(log_w + low)
    return kept / kept.sum()


def resampling(log_p: np.ndarray, log_q: np.ndarray, costs: Sequence[int]) -> list[np.ndarray]:
    """The law of one draw chosen by its weight among so many proposals, for each number of them."""
    log_w, q = log_p - log_q, np.exp(log_q - logsumexp(log_q))
    # on a scale where a typical weight is 1, s = log t
    w = np.exp(log_w - logsumexp(log_w + np.log(q)))
    decay = np.exp(-np.exp(STEPS)[:, None] * w[None])
    one_more, step = decay @ q, STEPS[1] - STEPS[0]
    laws = [cost * q * w * ((np.exp(STEPS) * one_more ** (cost - 1)) @ decay) * step for cost in costs]
    return [law / law.sum() for law in laws]  # the sum is 1 up to the error of the integral


def distances(law: np.ndarray, log_p: np.ndarray) -> tuple[float, float]:
    """Total variation and KL to the posterior."""
    log_posterior = log_p - logsumexp(log_p)
    kl = np.sum(xlogy(law, law) - law * log_posterior)
    return float(0.5 * np.sum(np.abs(law - np.exp(log_posterior)))), float(kl)


def named(pair: np.ndarray) -> dict[str, float]:
    """Ready for JSON."""
    return {"total_variation": float(pair[0]), "kl_nats": float(pair[1])}
