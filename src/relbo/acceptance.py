r"""Acceptance functions: how likely a proposal z is kept, as a function of u.

With u = log p(x, z) - log q(z | x) + T(x) (minus the paper's l), an acceptance is given by
g(u) = log a(z), its slope g'(u) and, for gradients along the path of z, its curvature g''(u). It enters the method
only through these:

    r(z) proportional to q(z) exp g(u)          the resampled proposal
    A(z) = log p - log q - g(u)                 the learning signal

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", section 3.2, https://arxiv.org/abs/1804.01712.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from relbo._check import did_you_mean, is_number, require
from relbo.types import Number

LEAST_ABOVE_FLOOR = 1e-6
"""Acceptance beyond the floor at which a target at or below the floor is taken to be met."""


class AbstractAcceptance(eqx.Module):
    """A log acceptance probability g(u) <= 0, non-decreasing in u, with slope in [0, 1].

    Example:
        >>> float(jnp.exp(relbo.Soft().log_prob(relbo.Soft().level(jnp.array(0.3))))) - 0.3 < 1e-6
        True
    """

    @abc.abstractmethod
    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log acceptance probability g(u)."""

    @abc.abstractmethod
    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The derivative g'(u)."""

    @abc.abstractmethod
    def curvature(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The second derivative g''(u), for estimators that go along the path of z."""

    @abc.abstractmethod
    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """The u at which a proposal is accepted with probability `rate` in (0, 1]."""


@jax.custom_jvp
def _soft(u: Array, sharpness: Array) -> Array:
    # -softplus(-s u) / s without ever forming s u where it could overflow to inf / inf
    return jnp.minimum(u, 0) - jnp.log1p(jnp.exp(-sharpness * jnp.abs(u))) / sharpness


@_soft.defjvp
def _soft_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # autodiff of the expression above is NaN at u = +-inf; the sharpness is a constant
    (u, sharpness), (du, _) = primals, tangents
    return _soft(u, sharpness), jax.nn.sigmoid(-sharpness * u) * du


@jax.custom_jvp
def _floored(u: Array, sharpness: Array, floor: Array) -> Array:
    plain = _soft(u, sharpness)
    # exact near a = 1, which T = +inf must give, and in the tail where the floor may be 0
    low = jnp.logaddexp(jnp.log(floor), jnp.log1p(-floor) + plain)
    log_a = jnp.where(plain > -1, jnp.log1p((1 - floor) * jnp.expm1(plain)), low)
    # an impossible z has u = -inf, and is not to be accepted at any floor
    return jnp.where(jnp.isneginf(u), -jnp.inf, log_a)


@_floored.defjvp
def _floored_jvp(primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    (u, sharpness, floor), (du, _, _) = primals, tangents
    return _floored(u, sharpness, floor), _above_floor(u, sharpness, floor) * jax.nn.sigmoid(-sharpness * u) * du


def _above_floor(u: Array, sharpness: Array, floor: Array) -> Array:
    # rho = (1 - eps) e^{g_0} / a, as a logistic function of what does not overflow
    plain = jnp.maximum(_soft(u, sharpness), jnp.finfo(u.dtype).min)
    return jax.nn.sigmoid(plain + jnp.log1p(-floor) - jnp.log(floor))


class Soft(AbstractAcceptance):
    r"""Smooth acceptance a = eps + (1 - eps) (1 + e^{-s u})^{-1/s}.

    At sharpness s = 1 and floor eps = 0 this is the paper's a = w / (w + M); as s grows it tends to `Hard`. Without a
    floor

        g(u) = -softplus(-s u) / s,    g'(u) = sigmoid(-s u),    g''(u) = -s sigmoid(s u) sigmoid(-s u),

    and with one, g_0 being the former and rho = 1 - eps / a the share of a that is not the floor's,

        g(u) = log(eps + (1 - eps) e^{g_0}),    g' = rho g_0',    g'' = rho g_0'' + rho (1 - rho) g_0'^2.

    A floor bounds the cost: at most 1 / eps proposals for a draw, whatever T. The R-ELBO is still a lower bound with
    the same gradients, but Theorem 1 no longer holds as it stands: as T falls r returns to q, so KL(r || p) falls at
    first and then rises again. A z with p(x, z) = 0 is never accepted, floor or not: the bound would be -inf.

    Args:
        sharpness: s > 0.
        floor: eps in [0, 1), the least probability of a possible z to be accepted.

    Example:
        >>> float(jnp.exp(relbo.Soft().log_prob(jnp.array(0.0))))
        0.5

    Reference:
        Jankowiak and Phan (2024), "Reparameterized variational rejection sampling", for the floor.
    """

    sharpness: Number = 1.0
    floor: Number = 0.0

    def __check_init__(self) -> None:
        require(is_number(self.sharpness, above=0), "Soft: sharpness", "a finite number > 0", self.sharpness)
        is_share = is_number(self.floor, above=-1, below=1)
        is_share = is_share and (isinstance(self.floor, jax.core.Tracer) or bool(np.all(np.asarray(self.floor) >= 0)))
        require(is_share, "Soft: floor", "a number in [0, 1)", self.floor)

    @property
    def _has_floor(self) -> bool:
        return not (isinstance(self.floor, int | float) and self.floor == 0)

    def _settings(self, dtype: jnp.dtype) -> tuple[Array, Array]:
        return jnp.asarray(self.sharpness, dtype), jnp.asarray(self.floor, dtype)

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u)."""
        sharpness, floor = self._settings(u.dtype)
        return _floored(u, sharpness, floor) if self._has_floor else _soft(u, sharpness)

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u), which is 1 - a at s = 1 and eps = 0."""
        sharpness, floor = self._settings(u.dtype)
        slope = jax.nn.sigmoid(-sharpness * u)
        return _above_floor(u, sharpness, floor) * slope if self._has_floor else slope

    def curvature(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g''(u), which is -a (1 - a) at s = 1 and eps = 0."""
        sharpness, floor = self._settings(u.dtype)
        slope = jax.nn.sigmoid(-sharpness * u)
        plain = -sharpness * slope * (1 - slope)
        if not self._has_floor:
            return plain
        rho = _above_floor(u, sharpness, floor)
        return rho * plain + rho * (1 - rho) * slope**2

    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """The u at which a = rate, from rate^-s = 1 + e^{-s u} above the floor; a finite one at or below the floor."""
        sharpness, floor = self._settings(rate.dtype)
        # T = -inf would make u = -inf, which stands for an impossible z
        share = (rate - floor) / (1 - floor)
        share = jnp.where(floor > 0, jnp.maximum(share, LEAST_ABOVE_FLOOR), share)
        exponent = -sharpness * jnp.log(share)
        return -(exponent + jnp.log(-jnp.expm1(-exponent))) / sharpness  # log(e^exponent - 1), which cannot overflow


class Hard(AbstractAcceptance):
    """Classical rejection sampling, a = min(1, e^u): the limit of `Soft` as its sharpness grows.

    Example:
        >>> relbo.Hard().log_prob(jnp.array([-2.0, 3.0])).tolist()
        [-2.0, 0.0]
    """

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = min(0, u)."""
        return jnp.minimum(u, jnp.zeros_like(u))

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = 1 where u < 0, else 0."""
        return jnp.where(u < 0, jnp.ones_like(u), jnp.zeros_like(u))

    def curvature(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """There is none: the slope jumps at u = 0."""
        raise ValueError(
            "the acceptance must be smooth for a gradient along the path of z, got Hard(), whose slope jumps. Use a "
            "sharp Soft(), or VRS."
        )

    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """The u at which a = rate, log(rate)."""
        return jnp.log(rate)


class Always(AbstractAcceptance):
    """Accepts everything, a = 1, whatever T: r = q, the R-ELBO is the ELBO and VRS is RLOO.

    Example:
        >>> relbo.Always().log_prob(jnp.array([-5.0, 5.0])).tolist()
        [0.0, 0.0]
    """

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = 0."""
        return jnp.zeros_like(u)

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = 0."""
        return jnp.zeros_like(u)

    def curvature(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g''(u) = 0."""
        return jnp.zeros_like(u)

    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """There is none: every proposal is accepted."""
        raise ValueError("Rate: the acceptance must be able to reject, got Always(). Use Soft() or Hard().")


def in_one_axis(function: Callable[[Array], Array], u: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """A function of single numbers: a loop over the few draws of a row is not worth a processor's vectors.

    Example:
        >>> in_one_axis(relbo.Soft().slope, jnp.zeros((2, 3))).shape
        (2, 3)
    """
    return function(u.reshape(-1)).reshape(u.shape)


def log_odds_of(log_p: Float[Array, "*s"], log_q: Float[Array, "*s"], t: Array) -> Float[Array, "*s"]:
    """U = log p - log q + T, with u = -inf wherever log p = -inf, also at T = +inf.

    The convention is the limit of large T: an impossible z is never accepted by `Soft` or `Hard`.

    Example:
        >>> relbo.acceptance.log_odds_of(jnp.array([-3.0]), jnp.array([-1.0]), jnp.array(2.0)).tolist()
        [0.0]
    """
    u = log_p - log_q + jnp.asarray(t, log_p.dtype)
    return jnp.where(jnp.isneginf(log_p), -jnp.inf, u)


def parse(text: str) -> AbstractAcceptance:
    """Reads `soft:SHARPNESS:FLOOR`, `soft:SHARPNESS`, `soft`, `hard` or `always`.

    Example:
        >>> relbo.acceptance.parse("hard")
        Hard()
    """
    kind, *numbers = text.strip().lower().split(":")
    makers: dict[str, Callable[..., AbstractAcceptance]] = {"soft": Soft, "hard": Hard, "always": Always}
    try:
        if len(numbers) > 2 or (numbers and kind != "soft"):
            raise KeyError(kind)
        return makers[kind](*[float(number) for number in numbers])
    except (KeyError, ValueError):
        hint = did_you_mean(kind, makers, "".join(f":{number}" for number in numbers))
        raise ValueError(
            "acceptance must be soft:SHARPNESS (> 0), soft:SHARPNESS:FLOOR (in [0, 1)), hard or always, got "
            f"{text!r}{hint}"
        ) from None
