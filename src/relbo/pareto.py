r"""Pareto k-hat: how heavy the tail of a set of importance weights is.

A generalised Pareto distribution is fitted to the largest weights; its shape k says which moments the weights have
(the variance exists for k < 1/2, the mean for k < 1). Estimates from weights with k > 0.7 are not to be trusted.

References:
    Zhang and Stephens (2009), "A new and efficient estimation method for the generalized Pareto distribution".
    Vehtari et al. (2024), "Pareto smoothed importance sampling", https://arxiv.org/abs/1507.02646, section 2.4.
"""

import numpy as np

MIN_TAIL = 5
"""Fewer large weights than this say nothing about a tail."""
PRIOR_STRENGTH, PRIOR_SHAPE = 10, 0.5
"""The estimate is drawn towards 1/2 as by this many observations (Vehtari et al., appendix C)."""


def khat(log_weights: np.ndarray) -> float:
    """The shape k of the upper tail of the weights; NaN with fewer than 25 or impossible ones, -inf if all are equal.

    Args:
        log_weights: (n,) log weights, -inf for impossible draws.
    """
    given = np.asarray(log_weights)
    log_w = np.sort(given.astype(np.float64))
    size = log_w.shape[0]
    num_tail = int(np.ceil(min(0.2 * size, 3 * np.sqrt(size))))
    if num_tail < MIN_TAIL or not np.isfinite(log_w[-1]):
        return float("nan")
    # weights that differ by rounding are equal: there is no tail to be fitted to it
    rounding = 16 * np.finfo(given.dtype).eps * max(abs(log_w[-1]), 1.0)
    log_w = log_w - log_w[-1]
    cutoff = max(log_w[-num_tail - 1], np.log(np.finfo(np.float64).tiny))
    tail = log_w[log_w > cutoff + rounding]
    if tail.shape[0] < MIN_TAIL:
        return float("-inf") if log_w[0] >= -rounding else float("nan")
    return fit_shape(np.exp(tail) - np.exp(cutoff))


def fit_shape(excess: np.ndarray) -> float:
    """The shape of a generalised Pareto distribution, from sorted positive excesses over its threshold."""
    size = excess.shape[0]
    num_points = 30 + int(np.sqrt(size))
    quartile = excess[int(size / 4 + 0.5) - 1]
    # candidates for theta = -k / sigma, and their posterior weights under the profile likelihood
    theta = 1 - np.sqrt(num_points / (np.arange(1, num_points + 1) - 0.5))
    theta = theta / (3 * quartile) + 1 / excess[-1]
    shape = np.mean(np.log1p(-theta[:, None] * excess[None]), axis=1)
    log_likelihood = size * (np.log(-theta / shape) - shape - 1)
    weight = np.exp(log_likelihood - np.max(log_likelihood))
    best = np.sum(theta * weight) / np.sum(weight)
    estimate = np.mean(np.log1p(-best * excess))
    return float((size * estimate + PRIOR_STRENGTH * PRIOR_SHAPE) / (size + PRIOR_STRENGTH))
