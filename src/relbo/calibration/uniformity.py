r"""An exact test of whether ranks are uniform, and the band in which their distribution function then lies.

N independent ranks are uniform on 0..L under the hypothesis. With C_i the number of ranks below i, i = 1..L, and F_i
the distribution function of Binomial(N, i / (L + 1)), which C_i then has, the statistic is the most extreme tail,

    gamma = min_i 2 min( F_i(C_i), 1 - F_i(C_i - 1) ),

and the p-value is the probability of a gamma as small as the observed one. It is computed, not simulated: the numbers
of ranks 0, 1, ..., L are independent Poisson variables given that they add up to N, so the probability that the counts
ever leave the limits that belong to a gamma is a convolution for each i.

Reference:
    Saeilynoja, Buerkner and Vehtari (2022), "Graphical test for discrete uniformity and its applications in
    goodness-of-fit evaluation and multiple sample comparison", Statistics and Computing, https://arxiv.org/abs/2103.10522
"""

import functools
from typing import NamedTuple

import numpy as np

from relbo._check import is_int, require

SAME = 1 + 1e-9
"""Two tails that differ by less are the same tail, computed twice."""


class Band(NamedTuple):
    """Limits of the share of ranks below i = 0..L+1 that hold for all i together with the given probability.

    Example:
        >>> band = simultaneous_band(100, 9)
        >>> band.lower.shape, bool(band.lower[5] < 0.5 < band.upper[5])
        ((11,), True)
    """

    position: np.ndarray
    """i / (L + 1), from 0 to 1."""
    lower: np.ndarray
    upper: np.ndarray


def _positions(num_samples: int) -> np.ndarray:
    return np.arange(1, num_samples + 1) / (num_samples + 1)


@functools.lru_cache(maxsize=32)
def _tails(num_ranks: int, num_samples: int) -> np.ndarray:
    # 2 min(F_i(c), 1 - F_i(c - 1)) for every i = 1..L and c = 0..N
    from scipy.special import bdtr, bdtrc  # imported where it is used: it takes a tenth of the time of `import relbo`

    count, position = np.arange(num_ranks + 1.0)[None], _positions(num_samples)[:, None]
    below, above = bdtr(count, num_ranks, position), bdtrc(count - 1, num_ranks, position)
    return 2 * np.minimum(below, above)


def _counts(ranks: np.ndarray, num_samples: int) -> np.ndarray:
    # C_1..C_L
    return np.cumsum(np.bincount(ranks, minlength=num_samples + 1))[:-1]


def _poisson(count: np.ndarray, mean: float) -> np.ndarray:
    from scipy.special import gammaln, xlogy

    return np.exp(xlogy(count, mean) - mean - gammaln(count + 1))


def _probability_of_leaving(gamma: float, num_ranks: int, num_samples: int) -> float:
    """The probability that a chain of counts has a tail of `gamma` or less anywhere."""
    inside = _tails(num_ranks, num_samples) > gamma * SAME
    counts = np.arange(num_ranks + 1.0)
    mean = num_ranks / (num_samples + 1)
    kernel, mass, left = _poisson(counts, mean), np.zeros(num_ranks + 1), 0.0
    mass[0] = 1.0
    for i in range(num_samples):
        mass = np.convolve(mass, kernel)[: num_ranks + 1]
        # what leaves here, times the probability that the remaining ranks make N of it; a sum of what leaves and not
        # 1 minus what stays, so that small p-values keep their digits
        completed = mass * _poisson(num_ranks - counts, (num_samples - i) * mean)
        left += float(np.sum(completed[~inside[i]]))
        mass = np.where(inside[i], mass, 0.0)
    return min(left / float(_poisson(counts, float(num_ranks))[-1]), 1.0)


def uniformity_p_value(ranks: np.ndarray, num_samples: int) -> float:
    """The exact p-value of the hypothesis that independent ranks are uniform on 0..L.

    Args:
        ranks: (N,) integers from 0 to L.
        num_samples: L, draws that each rank was taken among.

    Returns:
        A number in (0, 1]; under the hypothesis it is at most p with a probability of at most p.

    Example:
        >>> uniform, low = np.arange(100) % 10, np.zeros(100, int)
        >>> uniformity_p_value(uniform, 9) > 0.99, uniformity_p_value(low, 9) < 1e-90
        (True, True)
    """
    ranks = np.asarray(ranks)
    require(is_int(num_samples, at_least=1), "num_samples", "an integer >= 1", num_samples)
    require(
        ranks.ndim == 1 and ranks.size > 0 and np.issubdtype(ranks.dtype, np.integer),
        "ranks",
        "a non-empty vector of integers",
        ranks.shape if np.issubdtype(ranks.dtype, np.integer) else ranks.dtype,
    )
    require(
        bool(ranks.min() >= 0 and ranks.max() <= num_samples),
        "ranks",
        f"from 0 to num_samples = {num_samples}",
        (int(ranks.min()), int(ranks.max())),
    )
    counts = _counts(ranks, num_samples)
    gamma = float(_tails(ranks.size, num_samples)[np.arange(num_samples), counts].min())
    return _probability_of_leaving(gamma, ranks.size, num_samples)


@functools.lru_cache(maxsize=32)
def simultaneous_band(num_ranks: int, num_samples: int, probability: float = 0.99) -> Band:
    """Where the distribution function of uniform ranks lies, all of it, with the given probability or a little more.

    Args:
        num_ranks: N, how many ranks.
        num_samples: L, draws that each was taken among.
        probability: that the whole function stays inside.

    Returns:
        A `Band`.

    Example:
        >>> band = simultaneous_band(50, 4, 0.9)
        >>> [float(v) for v in band.position]
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    require(0 < probability < 1, "probability", "a number in (0, 1)", probability)
    alpha = 1 - probability
    low, high = np.log(alpha / num_samples), np.log(alpha)  # Bonferroni, and a single position
    for _ in range(12):
        middle = (low + high) / 2
        if _probability_of_leaving(float(np.exp(middle)), num_ranks, num_samples) <= alpha:
            low = middle
        else:
            high = middle
    inside = _tails(num_ranks, num_samples) > np.exp(low) * SAME
    first = np.argmax(inside, axis=1)
    last = num_ranks - np.argmax(inside[:, ::-1], axis=1)

    def whole(ends: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], ends / num_ranks, [1.0]])

    return Band(np.concatenate([[0.0], _positions(num_samples), [1.0]]), whole(first), whole(last))
