r"""Pareto tails: how heavy the tail of a set of importance weights is, and what can be had from it.

A generalised Pareto distribution is fitted to the largest weights; its shape k says which moments the weights have
(the variance exists for k < 1/2, the mean for k < 1). Estimates from weights with k > 0.7 are not to be trusted. Below,
the largest weights are replaced by quantiles of the fit, which are less noisy (Pareto-smoothed importance sampling).

References:
    Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto distribution".
    Vehtari et al. (2024), "Pareto smoothed importance sampling", https://arxiv.org/abs/1507.02646, sections 2.4 and 3.
"""

from typing import NamedTuple

import numpy as np

MIN_TAIL = 5
"""Fewer large weights than this say nothing about a tail."""
PRIOR_STRENGTH, PRIOR_SHAPE = 10, 0.5
"""The estimate is drawn towards 1/2 as by this many observations (Vehtari et al., appendix C)."""
NUM_REPLICATES = 200
"""Sets of weights behind an error by simulation."""


class Tail(NamedTuple):
    """The upper tail of some weights, in units of the largest."""

    size: int
    """Weights in the tail."""
    cutoff: float
    """Where it begins."""
    excess: np.ndarray
    """By how much its weights exceed that, sorted."""
    shape: float
    """k; NaN where too few or impossible weights leave it unknown, -inf where all weights are equal."""
    scale: float
    """sigma of the generalised Pareto distribution."""


def khat(log_weights: np.ndarray) -> float:
    """The shape k of the upper tail of the weights; NaN with fewer than 25 or impossible ones, -inf if all are equal.

    Args:
        log_weights: (n,) log weights, -inf for impossible draws.
    """
    return tail_of(log_weights).shape


def tail_of(log_weights: np.ndarray) -> Tail:
    """The largest min(0.2 n, 3 sqrt n) weights, and the generalised Pareto distribution that is fitted to them."""
    given = np.asarray(log_weights)
    log_w = np.sort(given.astype(np.float64))
    size = log_w.shape[0]
    num_tail = int(np.ceil(min(0.2 * size, 3 * np.sqrt(size))))
    nothing = Tail(0, 0.0, np.zeros(0), float("nan"), float("nan"))
    if num_tail < MIN_TAIL or not np.isfinite(log_w[-1]):
        return nothing
    # weights that differ by rounding are equal: there is no tail to be fitted to it
    rounding = 16 * np.finfo(given.dtype).eps * max(abs(log_w[-1]), 1.0)
    log_w = log_w - log_w[-1]
    cutoff = max(log_w[-num_tail - 1], np.log(np.finfo(np.float64).tiny))
    tail = log_w[log_w > cutoff + rounding]
    if tail.shape[0] < MIN_TAIL:
        return nothing._replace(shape=float("-inf") if log_w[0] >= -rounding else float("nan"))
    excess = np.exp(tail) - np.exp(cutoff)
    return Tail(tail.shape[0], float(np.exp(cutoff)), excess, *fit(excess))


def fit(excess: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution, from sorted positive excesses over its threshold."""
    size = excess.shape[0]
    num_points = 30 + int(np.sqrt(size))
    quartile = excess[int(size / 4 + 0.5) - 1]
    # candidates for theta = -k / sigma, and their posterior weights under the profile likelihood
    theta = 1 - np.sqrt(num_points / (np.arange(1, num_points + 1) - 0.5))
    theta = theta / (3 * quartile) + 1 / excess[-1]
    shape = np.mean(np.log1p(-theta[:, None] * excess[None]), axis=1)
    # theta = 0 is an exponential tail, where -theta / shape tends to 1 / mean; equal excesses of discrete z meet it
    is_zero = theta == 0
    inverse_scale = np.where(is_zero, 1 / np.mean(excess), -theta / np.where(is_zero, 1.0, shape))
    log_likelihood = size * (np.log(inverse_scale) - shape - 1)
    weight = np.exp(log_likelihood - np.max(log_likelihood))
    best = np.sum(theta * weight) / np.sum(weight)
    estimate = np.mean(np.log1p(-best * excess))
    return float((size * estimate + PRIOR_STRENGTH * PRIOR_SHAPE) / (size + PRIOR_STRENGTH)), float(-estimate / best)


def smoothed(log_weights: np.ndarray) -> np.ndarray:
    """Normalised log weights, the largest replaced by the quantiles of the tail that was fitted to them.

    No weight exceeds the largest that was seen. Weights without a tail to be fitted stay as they are.
    """
    log_w = np.asarray(log_weights).astype(np.float64)
    top = np.max(log_w)
    if not np.isfinite(top):
        return np.full(log_w.shape, np.nan)
    log_w = log_w - top
    tail = tail_of(log_weights)
    if tail.size:
        place = np.argsort(log_w, kind="stable")[-tail.size :]
        share = (np.arange(tail.size) + 0.5) / tail.size
        values = tail.cutoff + tail.scale * _stretch(-np.log1p(-share), tail.shape)
        log_w[place] = np.minimum(np.log(values), 0)
    return log_w - np.logaddexp.reduce(log_w)


def largest_reliable(size: int) -> float:
    """The k above which estimates from so many weights are not to be trusted, min(1 - 1 / log10 n, 0.7)."""
    return float(min(1 - 1 / np.log10(max(size, 11)), 0.7))


def log_mean_error(log_weights: np.ndarray) -> float:
    r"""Standard error of the log of the mean weight, the tail that was not seen included; inf where it is too heavy.

    The delta method takes the largest weights that happened to come for the largest there are. Here new sets of
    weights are drawn: as many in the tail as chance has it, from generalised Pareto distributions whose shape is as
    uncertain as the fit, sd (1 + k) / sqrt(tail size), the others from their empirical mean and spread. The error is
    half of what 95% of |log(true mean) - log(mean of the set)| stay below. It is infinite if k, with one of its own
    errors, is above `largest_reliable`, or if more than 5% of the shapes leave the weights without a mean.
    """
    log_w = np.asarray(log_weights).astype(np.float64)
    size, top = log_w.shape[0], np.max(log_w)
    if not np.isfinite(top):
        return float("nan")
    weights, tail = np.sort(np.exp(log_w - top)), tail_of(log_weights)
    if not tail.size:
        # all weights are equal, or a few values are: nothing is hidden; but too few to know anything say so
        return float("inf") if size < 25 else float(np.std(weights) / np.mean(weights) / np.sqrt(size))
    uncertain = (1 + tail.shape) / np.sqrt(tail.size)
    if tail.shape + uncertain > largest_reliable(size):
        return float("inf")
    random = np.random.default_rng(0)
    body, share = weights[: -tail.size], tail.size / size
    shape = tail.shape + uncertain * random.standard_normal(NUM_REPLICATES)
    # every shape goes through the median of the tail
    scale = np.median(tail.excess) / _stretch(np.log(2.0), shape)
    count = random.binomial(size, share, NUM_REPLICATES)
    is_drawn = np.arange(count.max())[None] < count[:, None]
    draws = tail.cutoff + scale[:, None] * _stretch(random.standard_exponential(is_drawn.shape), shape[:, None])
    below = (size - count) * np.mean(body) + np.sqrt(size - count) * np.std(body) * random.standard_normal(count.shape)
    found = np.sum(np.where(is_drawn, draws, 0), axis=1) + np.maximum(below, np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        true = size * ((1 - share) * np.mean(body) + share * (tail.cutoff + scale / (1 - shape)))
        errors = np.where(shape < 1, np.abs(np.log(true) - np.log(found)), np.inf)
    return float(np.quantile(errors, 0.95, method="higher") / 2)


def _stretch(exponential: np.ndarray | float, shape: np.ndarray | float) -> np.ndarray:
    """(exp(k e) - 1) / k: a generalised Pareto number of scale 1, from an exponential one."""
    shape = np.where(np.abs(shape) < 1e-8, 1e-8, shape)
    return np.expm1(shape * exponential) / shape
