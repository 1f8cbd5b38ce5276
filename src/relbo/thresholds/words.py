"""One way to say a threshold on every surface: a threshold, a number, words, or a rate."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relbo._check import did_you_mean, require
from relbo.thresholds.base import AbstractThreshold
from relbo.thresholds.fixed import Fixed
from relbo.thresholds.quantile import Quantile
from relbo.thresholds.rate import Rate
from relbo.types import Number

SAID = (
    "a threshold such as relbo.Rate(0.5), a number (T itself), or words such as 'rate:0.5', 'quantile:0.9', 'fixed:3'"
)


def parse(text: str, **settings: Any) -> AbstractThreshold:
    """Reads `rate:RATE`, `quantile:GAMMA` or `fixed:T`.

    Args:
        text: the words.
        **settings: `num_draws`, `every`, `warmup`, where the threshold has them.

    Example:
        >>> relbo.thresholds.parse("quantile:0.9").gamma
        0.9
    """
    kind, _, number = text.strip().lower().partition(":")
    makers: dict[str, tuple[Callable[..., AbstractThreshold], tuple[str, ...]]] = {
        "rate": (Rate, ("num_draws", "warmup")),
        "quantile": (Quantile, ("num_draws", "every", "warmup")),
        "fixed": (Fixed, ("warmup",)),
    }
    try:
        make, known = makers[kind]
        value = float(number)
    except (KeyError, ValueError):
        hint = did_you_mean(kind, makers, f":{number}") if number else "."
        raise ValueError(
            f"a threshold in words must be rate:RATE, quantile:GAMMA or fixed:T, got {text!r}{hint}"
        ) from None
    return make(value, **_said(known, settings))


def as_threshold(
    threshold: AbstractThreshold | Number | np.number | np.ndarray | jax.Array | str | None,
    rate: Any = None,
    *,
    default: AbstractThreshold | None = None,
    **settings: Any,
) -> AbstractThreshold:
    """The threshold that a user means.

    Args:
        threshold: a threshold, a number (T itself) or words such as "rate:0.5".
        rate: the short form, `Rate(rate)`.
        default: what is meant if neither is given.
        **settings: for words and for `rate`: `num_draws`, `every`, `warmup`.

    Example:
        >>> relbo.thresholds.as_threshold("rate:0.5", None).rate, relbo.thresholds.as_threshold(3.0, None)
        (0.5, Fixed(value=3.0))
    """
    both = threshold is not None and rate is not None
    require(not both, "the threshold", "set by threshold= or by rate=, not by both", (threshold, rate))
    if rate is not None:
        return Rate(rate, **_said(("num_draws", "warmup"), settings))
    if threshold is None:
        require(default is not None, "the threshold", "set by threshold= or by rate=", None)
        assert default is not None
        return default
    if isinstance(threshold, str):
        return parse(threshold, **settings)
    if isinstance(threshold, AbstractThreshold):
        warmup = settings.get("warmup")
        require(warmup is None, "warmup", f"a setting of the threshold itself beside {threshold!r}", warmup)
        return threshold
    is_number = isinstance(threshold, int | float | np.number | np.ndarray | jax.Array)
    require(is_number and not isinstance(threshold, bool), "threshold", SAID, threshold)
    if isinstance(threshold, np.number | np.ndarray | jax.Array):
        threshold = jnp.asarray(threshold, jnp.result_type(float))
    return Fixed(threshold, **_said(("warmup",), settings))


def _said(known: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    # None means that nothing was said, except that `every=None` says to follow online
    said = {name: value for name, value in settings.items() if name in known}
    return {name: value for name, value in said.items() if value is not None or name == "every"}
