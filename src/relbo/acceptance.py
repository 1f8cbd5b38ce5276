r"""Acceptance functions: how likely a proposal z is kept, as a function of u.

With u = log p(x, z) - log q(z | x) + T(x) (minus the paper's l), an acceptance is given by
g(u) = log a(z) and its slope g'(u). They enter the method only through these two:

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
from jaxtyping import Array, Float

from relbo._check import is_number, require
from relbo.types import Number


class AbstractAcceptance(eqx.Module):
    """A log acceptance probability g(u) <= 0, non-decreasing in u, with slope in [0, 1]."""

    @abc.abstractmethod
    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log acceptance probability g(u)."""

    @abc.abstractmethod
    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The derivative g'(u)."""

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


class Soft(AbstractAcceptance):
    r"""Smooth acceptance a = (1 + e^{-s u})^{-1/s}.

    At sharpness s = 1 this is the paper's a = w / (w + M); as s grows it tends to `Hard`.

        g(u) = -softplus(-s u) / s,    g'(u) = sigmoid(-s u)

    Args:
        sharpness: s > 0.
    """

    sharpness: Number = 1.0

    def __check_init__(self) -> None:
        require(is_number(self.sharpness, above=0), "Soft: sharpness", "a finite number > 0", self.sharpness)

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = -softplus(-s u) / s."""
        return _soft(u, jnp.asarray(self.sharpness, u.dtype))

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = sigmoid(-s u), which is 1 - a at s = 1."""
        return jax.nn.sigmoid(-jnp.asarray(self.sharpness, u.dtype) * u)

    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """The u at which a = rate, from rate^-s = 1 + e^{-s u}."""
        sharpness = jnp.asarray(self.sharpness, rate.dtype)
        exponent = -sharpness * jnp.log(rate)
        return -(exponent + jnp.log(-jnp.expm1(-exponent))) / sharpness  # log(e^exponent - 1), which cannot overflow


class Hard(AbstractAcceptance):
    """Classical rejection sampling, a = min(1, e^u): the limit of `Soft` as its sharpness grows."""

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = min(0, u)."""
        return jnp.minimum(u, jnp.zeros_like(u))

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = 1 where u < 0, else 0."""
        return jnp.where(u < 0, jnp.ones_like(u), jnp.zeros_like(u))

    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """The u at which a = rate, log(rate)."""
        return jnp.log(rate)


class Always(AbstractAcceptance):
    """Accepts everything, a = 1, whatever T: r = q, the R-ELBO is the ELBO and VRS is RLOO."""

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = 0."""
        return jnp.zeros_like(u)

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = 0."""
        return jnp.zeros_like(u)

    def level(self, rate: Float[Array, ""]) -> Float[Array, ""]:
        """There is none: every proposal is accepted."""
        raise ValueError("Rate: the acceptance must be able to reject, got Always(). Use Soft() or Hard().")


def log_odds_of(log_p: Float[Array, "*s"], log_q: Float[Array, "*s"], t: Array) -> Float[Array, "*s"]:
    """U = log p - log q + T, with u = -inf wherever log p = -inf, also at T = +inf.

    The convention is the limit of large T: an impossible z is never accepted by `Soft` or `Hard`.
    """
    u = log_p - log_q + jnp.asarray(t, log_p.dtype)
    return jnp.where(jnp.isneginf(log_p), -jnp.inf, u)


def parse(text: str) -> AbstractAcceptance:
    """Reads `soft:SHARPNESS`, `soft`, `hard` or `always`."""
    kind, _, number = text.strip().lower().partition(":")
    makers: dict[str, Callable[[], AbstractAcceptance]] = {
        "soft": lambda: Soft(float(number or 1.0)),
        "hard": Hard,
        "always": Always,
    }
    try:
        if number and kind != "soft":
            raise KeyError(kind)
        return makers[kind]()
    except (KeyError, ValueError):
        raise ValueError(f"acceptance must be soft:SHARPNESS (> 0), hard or always, got {text!r}.") from None
