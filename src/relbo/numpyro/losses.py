"""Short names for the common losses."""

from typing import Any

from relbo import estimators
from relbo._check import require
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.numpyro.objective import EstimatorELBO
from relbo.thresholds import AbstractThreshold, Fixed, Quantile, Rate

REFRESH_EVERY = 100
"""Steps between refreshes of T: SVI runs are some thousand steps long, not the paper's millions."""


def threshold_from(
    gamma: float | None, rate: float | None, threshold: float | None, *, num_draws: int, every: int
) -> AbstractThreshold:
    """The threshold that one of the three settings stands for."""
    given = {"gamma": gamma, "rate": rate, "threshold": threshold}
    given = {name: value for name, value in given.items() if value is not None}
    require(len(given) == 1, "the threshold", "set by exactly one of gamma=, rate= and threshold=", given)
    if gamma is not None:
        return Quantile(gamma, num_draws=num_draws, every=every)
    if rate is not None:
        return Rate(rate, num_draws=num_draws)
    assert threshold is not None
    return Fixed(float(threshold))


def ResampledELBO(  # noqa: N802
    gamma: float | None = None,
    num_samples: int = 5,
    *,
    rate: float | None = None,
    threshold: float | None = None,
    acceptance: AbstractAcceptance | None = None,
    num_draws: int = 100,
    every: int = REFRESH_EVERY,
    max_rounds: int = 1_000,
    throw: bool = True,
    **settings: Any,
) -> EstimatorELBO:
    """The resampled ELBO (VRS): rows of the guide are accepted or redrawn, and the bound is that of what is kept.

    Exactly one of `gamma`, `rate` and `threshold` sets T(x); without any, gamma = 0.9.

    Args:
        gamma: T is the gamma quantile of log q - log p under the guide.
        num_samples: S >= 2, accepted draws per row.
        rate: T holds the acceptance rate of each row here.
        threshold: T itself, in nats; +inf gives the ELBO.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        num_draws: draws behind each T that is solved for.
        every: steps between refreshes of T under `gamma`; before the first, T = +inf.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not, it is left out of the step.
        **settings: `num_shared` and `plate` of `EstimatorELBO`.
    """
    gamma = 0.9 if gamma is rate is threshold is None else gamma
    estimator = estimators.VRS(
        num_samples=num_samples,
        threshold=threshold_from(gamma, rate, threshold, num_draws=num_draws, every=every),
        acceptance=Soft() if acceptance is None else acceptance,
        max_rounds=max_rounds,
        throw=throw,
    )
    return EstimatorELBO(estimator, **settings)


def RLOO(num_samples: int = 2, **settings: Any) -> EstimatorELBO:  # noqa: N802
    """The ELBO by score functions with a leave-one-out baseline over K draws of each row."""
    return EstimatorELBO(estimators.RLOO(num_samples), **settings)


def VIMCO(num_samples: int = 5, **settings: Any) -> EstimatorELBO:  # noqa: N802
    """The K-sample importance-weighted bound of each row, with VIMCO's control variate."""
    return EstimatorELBO(estimators.VIMCO(num_samples), **settings)


def RWS(num_samples: int = 5, **settings: Any) -> EstimatorELBO:  # noqa: N802
    """Reweighted wake-sleep: the K-sample bound for the model, the wake update for the guide."""
    return EstimatorELBO(estimators.RWS(num_samples), **settings)
