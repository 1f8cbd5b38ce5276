"""Short names for the common losses."""

from typing import Any

from relbo import estimators
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.numpyro.objective import EstimatorELBO
from relbo.thresholds import AbstractThreshold, Quantile, as_threshold

REFRESH_EVERY = 100
"""Steps between refreshes of T: SVI runs are some thousand steps long, not the paper's millions."""


def ResampledELBO(  # noqa: N802
    num_samples: int = 5,
    *,
    rate: Any = None,
    threshold: AbstractThreshold | float | str | None = None,
    acceptance: AbstractAcceptance | None = None,
    num_proposals: int | None = None,
    num_draws: int = 100,
    every: int | None = REFRESH_EVERY,
    warmup: int | None = None,
    max_rounds: int = 1_000,
    throw: bool = False,
    **settings: Any,
) -> EstimatorELBO:
    """The resampled ELBO (VRS): rows of the guide are accepted or redrawn, and the bound is that of what is kept.

    Args:
        num_samples: S >= 2, accepted draws per row at the least.
        rate: T holds the acceptance rate of each row here.
        threshold: a threshold, a number (T itself; +inf gives the ELBO) or words such as "quantile:0.9", instead; if
            neither is given, the 0.9 quantile.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        num_proposals: N >= S, proposals that every row evaluates; all accepted ones among them are used.
        num_draws: draws behind each T that is solved for.
        every: steps between refreshes of a quantile; before the first, T = +inf. None follows it online.
        warmup: steps with T = +inf before.
        max_rounds: a row runs out after max_rounds * S proposals.
        throw: whether a row that runs out is an error; if not, it takes the step at T = +inf, on fresh draws from the
            guide, and `relbo.numpyro.SVI.run` warns if more than 1% do.
        **settings: `num_shared` and `plate` of `EstimatorELBO`.
    """
    usual = Quantile(0.9, num_draws=num_draws, every=every, warmup=warmup)
    estimator = estimators.VRS(
        num_samples=num_samples,
        threshold=as_threshold(threshold, rate, default=usual, num_draws=num_draws, every=every, warmup=warmup),
        acceptance=Soft() if acceptance is None else acceptance,
        num_proposals=num_proposals,
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
