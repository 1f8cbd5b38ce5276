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
SMALL_TAIL = 20
"""A tail is not halved below this."""
PRIOR_STRENGTH, PRIOR_SHAPE = 10, 0.5
"""The estimate is drawn towards 1/2 as by this many observations (Vehtari et al., appendix C)."""
MOSTLY_DISTINCT = 0.9
"""Share of distinct weights in a tail below which it is that of discrete z."""
CARRIERS = 4
"""So many draws must carry the spread of tied weights for it to be known."""
NEGLIGIBLE = 0.01
"""Nats of error that nobody need be warned of."""


class Tail(NamedTuple):
    """The upper tail of some weights, in units of the largest."""

    size: int
    """Weights in the tail; 0 where none can be fitted."""
    cutoff: float
    """Where it begins."""
    shape: float
    """k; NaN where too few, tied or impossible weights leave it unknown, -inf where all weights are equal."""
    scale: float
    """sigma of the generalised Pareto distribution."""


def khat(log_weights: np.ndarray) -> float:
    """The shape k of the upper tail of the weights; NaN with fewer than 25, tied or impossible ones, -inf if all equal.

    Args:
        log_weights: (n,) log weights, -inf for impossible draws.
    """
    return tail_of(log_weights).shape


def tail_of(log_weights: np.ndarray) -> Tail:
    """The largest min(0.2 n, 3 sqrt n) weights, and the generalised Pareto distribution that is fitted to them.

    Only where nine in ten of them are distinct: the tied weights of discrete z have steps and no such tail. And p / q
    has a mean, p(x). A fit with k > 1 has none, so it is about something else, such as the weights near the mode of a
    good proposal, which end at a largest one that is no more than the many others: then half as many are taken.
    """
    given = np.asarray(log_weights)
    log_w = np.sort(given.astype(np.float64))
    size = log_w.shape[0]
    num_tail = int(np.ceil(min(0.2 * size, 3 * np.sqrt(size))))
    nothing = Tail(0, 0.0, float("nan"), float("nan"))
    if num_tail < MIN_TAIL or not np.isfinite(log_w[-1]):
        return nothing
    # weights that differ by rounding are equal: there is no tail to be fitted to it
    eps = np.finfo(np.float64 if given.dtype.itemsize > 4 else np.float32).eps  # NumPy does not know that of bfloat16
    rounding = 16 * eps * max(abs(log_w[-1]), 1.0)
    log_w = log_w - log_w[-1]
    cutoff = max(log_w[-num_tail - 1], np.log(np.finfo(np.float64).tiny))
    tail = log_w[log_w > cutoff + rounding]
    if tail.shape[0] < MIN_TAIL:
        return nothing._replace(shape=float("-inf") if log_w[0] >= -rounding else float("nan"))
    if np.unique(tail).shape[0] < MOSTLY_DISTINCT * tail.shape[0]:
        return nothing
    weights, start = np.exp(tail), float(np.exp(cutoff))
    shape, scale = fit(weights - start)
    while shape > 1 and weights.shape[0] >= 2 * SMALL_TAIL:
        start = float(weights[-(weights.shape[0] // 2) - 1])
        weights = weights[weights > start]
        shape, scale = fit(weights - start)
    return Tail(weights.shape[0], start, shape, scale)


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

    No weight exceeds the largest that was seen, and equal ones stay equal. Weights without a tail to be fitted, such as
    those of discrete z, stay as they are.
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
        _, group, count = np.unique(log_w[place], return_inverse=True, return_counts=True)
        values = (np.bincount(group, values) / count)[group]
        log_w[place] = np.minimum(np.log(values), 0)
    return log_w - np.logaddexp.reduce(log_w)


def largest_reliable(size: int) -> float:
    """The k above which estimates from so many weights are not to be trusted, min(1 - 1 / log10 n, 0.7)."""
    return float(min(1 - 1 / np.log10(max(size, 11)), 0.7))


def log_mean_error(log_weights: np.ndarray) -> float:
    r"""Standard error of the log of the mean weight; inf where what was not seen may matter.

    With d the deviations of the weights from their mean, the error is that of the delta method, which takes the largest
    weights that came for the largest there are, made larger by the skewness of the mean:

        sd(w) / (mean(w) sqrt n) (1 + g),    g = sum d^3 / (sum d^2)^(3/2).

    1 / g^2 is the number of draws that carry the spread. The error is infinite if k, with one of its own errors, is
    above `largest_reliable`; of tied weights, which have no k, if fewer than four draws carry their spread.
    """
    log_w = np.asarray(log_weights).astype(np.float64)
    size, top = log_w.shape[0], np.max(log_w)
    if np.isnan(top):
        return float("nan")
    if size < 25 or not np.isfinite(top):
        return float("inf")
    weights, tail = np.exp(log_w - top), tail_of(log_weights)
    deviation = weights - np.mean(weights)
    spread = np.sqrt(np.sum(deviation**2))
    skewness = max(np.sum((deviation / spread) ** 3), 0) if spread > 0 else 0
    error = float(np.std(weights) / np.mean(weights) / np.sqrt(size) * (1 + skewness))
    if tail.size:
        is_unknown = tail.shape + (1 + tail.shape) / np.sqrt(tail.size) > largest_reliable(size)
    else:
        is_unknown = skewness > CARRIERS**-0.5 and error > NEGLIGIBLE
    return float("inf") if is_unknown else error


def _stretch(exponential: np.ndarray, shape: float) -> np.ndarray:
    """(exp(k e) - 1) / k: a generalised Pareto number of scale 1, from an exponential one."""
    shape = shape if abs(shape) >= 1e-8 else 1e-8
    return np.expm1(shape * exponential) / shape
