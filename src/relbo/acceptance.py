r"""Acceptance functions: how likely a proposal z is kept, as a function of u.

With u = log p(x, z) - log q(z | x) + T(x) (minus the paper's l), an acceptance is given by
g(u) = log a(z) and its slope g'(u). They enter the method only through these two:

    r(z) proportional to q(z) exp g(u)          the resampled proposal
    A(z) = log p - log q - g(u)                 the learning signal

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", section 3.2, https://arxiv.org/abs/1804.01712.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo._check import is_real, require


class AbstractAcceptance(eqx.Module):
    """A log acceptance probability g(u) <= 0, non-decreasing in u, with slope in [0, 1]."""

    @abc.abstractmethod
    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log acceptance probability g(u)."""

    @abc.abstractmethod
    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The derivative g'(u)."""

    @abc.abstractmethod
    def level(self, rate: float) -> float:
        """The u at which a proposal is accepted with probability `rate` in (0, 1)."""


@jax.custom_jvp
def _soft(u: Array, t: Array) -> Array:
    # -softplus(-t u) / t without ever forming t u where it could overflow to inf / inf
    return jnp.minimum(u, 0) - jnp.log1p(jnp.exp(-t * jnp.abs(u))) / t


@_soft.defjvp
def _soft_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # autodiff of the expression above is NaN at u = +-inf; t is a constant
    (u, t), (du, _) = primals, tangents
    return _soft(u, t), jax.nn.sigmoid(-t * u) * du


class Soft(AbstractAcceptance):
    r"""Smooth acceptance a = (1 + e^{-t u})^{-1/t}.

    At t = 1 this is the paper's a = w / (w + M); as t grows it tends to `Hard`.

        g(u) = -softplus(-t u) / t,    g'(u) = sigmoid(-t u)

    Args:
        t: sharpness, t > 0.
    """

    t: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        require(is_real(self.t) and 0 < self.t < math.inf, "Soft: t", "a finite number > 0", self.t)

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = -softplus(-t u) / t."""
        return _soft(u, jnp.asarray(self.t, u.dtype))

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = sigmoid(-t u), which is 1 - a at t = 1."""
        return jax.nn.sigmoid(-jnp.asarray(self.t, u.dtype) * u)

    def level(self, rate: float) -> float:
        """The u at which a = rate, from rate^-t = 1 + e^{-t u}."""
        exponent = -self.t * math.log(rate)
        log_odds = math.log(math.expm1(exponent)) if exponent < 700 else exponent
        return -log_odds / self.t


class Hard(AbstractAcceptance):
    """Classical rejection sampling, a = min(1, e^u): the limit of `Soft` as t grows."""

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = min(0, u)."""
        return jnp.minimum(u, jnp.zeros_like(u))

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = 1 where u < 0, else 0."""
        return jnp.where(u < 0, jnp.ones_like(u), jnp.zeros_like(u))

    def level(self, rate: float) -> float:
        """The u at which a = rate, log(rate)."""
        return math.log(rate)


class Always(AbstractAcceptance):
    """Accepts everything, a = 1, whatever T: r = q, the R-ELBO is the ELBO and VRS is RLOO."""

    def log_prob(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g(u) = 0."""
        return jnp.zeros_like(u)

    def slope(self, u: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Computes g'(u) = 0."""
        return jnp.zeros_like(u)

    def level(self, rate: float) -> float:
        """There is none: every proposal is accepted."""
        raise ValueError(
            f"Rate: the acceptance must be able to reject to reach a rate of {rate}, got Always(). "
            "Use Soft() or Hard()."
        )


def log_odds_of(log_p: Float[Array, "*s"], log_q: Float[Array, "*s"], t: Array) -> Float[Array, "*s"]:
    """U = log p - log q + T, with u = -inf wherever log p = -inf, also at T = +inf.

    The convention is the limit of large T: an impossible z is never accepted by `Soft` or `Hard`.
    """
    u = log_p - log_q + jnp.asarray(t, log_p.dtype)
    return jnp.where(jnp.isneginf(log_p), -jnp.inf, u)
