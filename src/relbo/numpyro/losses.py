"""Short names for the common losses."""

import dataclasses
import math
from functools import partial
from typing import Any, TypeGuard

import jax

from relbo import estimators
from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, Hard, Soft
from relbo.numpyro.objective import EstimatorELBO
from relbo.thresholds import AbstractThreshold, OnceSettled, Rate, as_threshold

REFRESH_EVERY = 100
"""Steps between refreshes of T: SVI runs are some thousand steps long, not the paper's millions."""
LATE = 0.03
"""Share of steps in which some row may have to go on beyond its N proposals: all rows are then proposed to again."""
PATIENCE = 20
"""A row runs out after this many times the proposals that it should need."""


def ResampledELBO(  # noqa: N802
    num_samples: int = 5,
    *,
    rate: Any = None,
    threshold: AbstractThreshold | float | str | None = None,
    acceptance: AbstractAcceptance | None = None,
    num_proposals: int | None = None,
    path: bool | None = None,
    num_draws: int | None = None,
    every: int | None = REFRESH_EVERY,
    warmup: int | None = None,
    max_rounds: int | None = None,
    throw: bool = False,
    **settings: Any,
) -> EstimatorELBO:
    """The resampled ELBO (VRS): rows of the guide are accepted or redrawn, and the bound is that of what is kept.

    Every row evaluates N proposals, which give about S accepted draws, and uses all that are accepted. A row with fewer
    than two goes on. (`EstimatorELBO(relbo.VRS(S, ...))` is the paper's algorithm, exactly S accepted draws.)

    Args:
        num_samples: S >= 2, accepted draws per row to aim at.
        rate: T holds the acceptance rate of each row here.
        threshold: a threshold, a number (T itself; +inf gives the ELBO) or words such as "quantile:0.9", instead; if
            neither is given, the 0.9 quantile.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        num_proposals: N >= 2; by default S divided by the rate, or by the gamma of a quantile, else S. With a rate and
            many rows it is greater, up to twice that, so that in most steps no row has to go on.
        path: whether the gradient goes along the path of the draws (`VRSPath`) or by score functions (`VRS`); by
            default along the path where all latents of a row have one, the acceptance is smooth and the guide is not
            known to reach beyond the model's support.
        num_draws: draws behind each T that is solved for.
        every: steps between refreshes of a quantile; before the first, T = +inf. None follows it online.
        warmup: steps with T = +inf before; by default at least 500, until the ELBO rises by less than rejection may
            gain (`relbo.thresholds.OnceSettled`). A threshold object has its own.
        max_rounds: a row runs out after 2 max_rounds proposals, by default 20 N.
        throw: whether a row that runs out is an error; if not, it takes the step at T = +inf, on fresh draws from the
            guide, and `relbo.numpyro.SVI.run` warns if more than 1% do.
        **settings: `num_shared` and `plate` of `EstimatorELBO`.

    Example:
        >>> svi = relbo.numpyro.SVI(model, guide, numpyro.optim.Adam(0.1), relbo.numpyro.ResampledELBO(2, rate=0.5))
        >>> result = svi.run(key, 20, 1.0, progress_bar=False)
        >>> result.losses.shape
        (20,)
    """
    require(is_int(num_samples, at_least=2), "ResampledELBO: num_samples", "an integer >= 2", num_samples)
    waits = warmup is None and not isinstance(threshold, AbstractThreshold)
    said: dict[str, Any] = {"num_draws": num_draws, "every": every, "warmup": 0 if waits else warmup}
    rule = as_threshold("quantile:0.9" if threshold is None and rate is None else threshold, rate, **said)
    accept = Soft() if acceptance is None else acceptance
    size = _proposals_for(num_samples, rule) if num_proposals is None else num_proposals
    require(is_int(size, at_least=2), "ResampledELBO: num_proposals", "an integer >= 2", size)
    common: dict[str, Any] = {
        "num_samples": 2,
        "threshold": OnceSettled(rule) if waits else rule,
        "acceptance": accept,
        "num_proposals": size,
        "max_rounds": PATIENCE * size // 2 if max_rounds is None else max_rounds,
        "throw": throw,
    }
    if num_proposals is None and isinstance(rule, Rate) and _is_number(rule.rate):
        settings = {"for_rows": partial(_few_go_on, rate=float(rule.rate)), **settings}
    by_score = estimators.VRS(**common)
    if path is False or (path is None and isinstance(accept, Hard)):
        return EstimatorELBO(by_score, **settings)
    return EstimatorELBO(estimators.VRSPath(**common), without_path=None if path else by_score, **settings)


def _proposals_for(num_samples: int, threshold: AbstractThreshold) -> int:
    share = getattr(threshold, "rate", getattr(threshold, "gamma", 1.0))
    if not _is_number(share):  # only the running program knows
        return 2 * num_samples
    return math.ceil(num_samples / float(share) - 1e-6)


def _is_number(share: Any) -> TypeGuard[float]:
    return not callable(share) and not isinstance(share, jax.core.Tracer)


def _few_go_on(estimator: estimators.AbstractVRS, num_rows: int, rate: float) -> estimators.AbstractVRS:
    """N so large that in most steps every row has its two acceptances, but at most twice what S / rate is.

    A row goes on with probability P(K < 2) = (1 - rate)^N + N rate (1 - rate)^(N - 1).
    """
    fewest = size = estimator.num_proposals
    while size < 2 * fewest and num_rows * (1 - rate) ** (size - 1) * (1 - rate + size * rate) > LATE:
        size += 1
    return dataclasses.replace(estimator, num_proposals=size)


def RLOO(num_samples: int = 2, **settings: Any) -> EstimatorELBO:  # noqa: N802
    """The ELBO by score functions with a leave-one-out baseline over K draws of each row.

    Example:
        >>> relbo.numpyro.RLOO(4).estimator.num_samples
        4
    """
    return EstimatorELBO(estimators.RLOO(num_samples), **settings)


def VIMCO(num_samples: int = 5, **settings: Any) -> EstimatorELBO:  # noqa: N802
    """The K-sample importance-weighted bound of each row, with VIMCO's control variate.

    Example:
        >>> relbo.numpyro.VIMCO(5).estimator.num_samples
        5
    """
    return EstimatorELBO(estimators.VIMCO(num_samples), **settings)


def RWS(num_samples: int = 5, **settings: Any) -> EstimatorELBO:  # noqa: N802
    """Reweighted wake-sleep: the K-sample bound for the model, the wake update for the guide.

    Example:
        >>> relbo.numpyro.RWS(5).estimator.num_samples
        5
    """
    return EstimatorELBO(estimators.RWS(num_samples), **settings)
