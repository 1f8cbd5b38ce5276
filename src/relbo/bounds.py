r"""Lower bounds on log p(x) from log weights, and the estimates of Z_R that keep them bounds.

With log w_i = log p(x, z_i) - log q(z_i | x), u = log w + T and g = log a:

    ELBO    mean_i log w_i                               z_i ~ q
    IS-k    log mean_i w_i                               z_i ~ q
    R-ELBO  mean_i A_i + log Z_R,   A = log w - g(u)     z_i ~ r
    RS-k    log mean_i exp A_i + log Z_R                 z_i ~ r

For the paper's acceptance, exp A = w + M. Since E_r[exp A] = p(x) / Z_R, an estimate of Z_R that is unbiased and
independent of the accepted z_i keeps E[exp(RS-k)] = p(x), hence a lower bound by Jensen. Two such estimates are
offered, fresh draws and (k-1)/(N-1). The tempting k/N is biased upwards and would break the bound.

A bound has a name on every surface: `ELBO()`, `IS(k)`, `RS(k)` and the words `elbo`, `is:K`, `rs:K`. ELBO is IS-1,
and the R-ELBO is RS-1.

All functions reduce the last axis.
"""

import abc
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, logsumexp
from jaxtyping import Array, Float, Int

from relbo._check import did_you_mean, is_int, require, shortened
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.thresholds import AbstractThreshold, as_threshold
from relbo.types import Number


class AbstractBound(eqx.Module):
    """A lower bound on log p(x), in nats; `str(bound)` is how the command line says it.

    Example:
        >>> isinstance(relbo.bounds.parse("is:25"), relbo.bounds.AbstractBound)
        True
    """

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What tables and pictures call it."""


class ELBO(AbstractBound):
    """The evidence lower bound, E_q log w.

    Example:
        >>> relbo.evaluate(pair, x, [relbo.ELBO()], key=key)["elbo"].mean < 0
        True
    """

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return "ELBO"

    def __str__(self) -> str:
        return "elbo"


class IS(AbstractBound):
    """The importance-weighted bound IS-k, E_q log mean_k w (Burda et al. 2016).

    Args:
        num_samples: k >= 1, draws from q.

    Example:
        >>> relbo.IS(25).label, str(relbo.IS(25))
        ('IS-25', 'is:25')
    """

    num_samples: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        require(is_int(self.num_samples, at_least=1), "IS: num_samples", "an integer >= 1", self.num_samples)

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return f"IS-{self.num_samples}"

    def __str__(self) -> str:
        return f"is:{self.num_samples}"


class RS(AbstractBound):
    """The resampled bound RS-k, E_r log mean_k exp A + log Z_R; RS-1 is the R-ELBO.

    Args:
        num_samples: k >= 1, draws from r.
        threshold: how T is set, as a threshold, a number or words; None leaves it to whoever evaluates.
        acceptance: the acceptance function; None likewise.

    Example:
        >>> str(relbo.RS(25, rate=0.5))
        'rs:25'
    """

    num_samples: int = eqx.field(static=True)
    threshold: AbstractThreshold | None = None
    acceptance: AbstractAcceptance | None = None

    def __init__(
        self,
        num_samples: int,
        threshold: AbstractThreshold | Number | str | None = None,
        acceptance: AbstractAcceptance | None = None,
        *,
        rate: Any = None,
    ) -> None:
        require(is_int(num_samples, at_least=1), "RS: num_samples", "an integer >= 1", num_samples)
        is_acceptance = acceptance is None or isinstance(acceptance, AbstractAcceptance)
        require(is_acceptance, "RS: acceptance", "an acceptance such as Soft(), Hard() or Always()", acceptance)
        self.num_samples = num_samples
        self.threshold = None if threshold is None and rate is None else as_threshold(threshold, rate)
        self.acceptance = acceptance

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return "R-ELBO" if self.num_samples == 1 else f"RS-{self.num_samples}"

    def __str__(self) -> str:
        return f"rs:{self.num_samples}"


def parse(bound: AbstractBound | str) -> AbstractBound:
    """Reads `elbo`, `is:K` or `rs:K`; a bound is returned as it is.

    Example:
        >>> relbo.bounds.parse("is:25") == relbo.IS(25)
        True
    """
    if isinstance(bound, AbstractBound):
        return bound
    match = re.fullmatch(r"elbo|(is|rs):([1-9][0-9]{0,8})", bound.strip().lower()) if isinstance(bound, str) else None
    if match is None:
        almost = (
            re.fullmatch(r"([a-z]+)\W?([1-9][0-9]{0,8})?", bound.strip().lower()) if isinstance(bound, str) else None
        )
        kind, k = almost.groups() if almost else ("", None)
        hint = did_you_mean(kind, ["is", "rs"], f":{k}") if k else did_you_mean(kind, ["elbo"])
        raise ValueError(f"a bound must be elbo, is:K or rs:K with an integer K >= 1, got {shortened(bound)}{hint}")
    kinds = {None: lambda k: ELBO(), "is": IS, "rs": RS}
    return kinds[match[1]](int(match[2] or 1))


def elbo(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """The evidence lower bound, mean of log w over draws from q.

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> relbo.bounds.elbo(log_w).tolist()
        [-2.0]
    """
    return jnp.mean(log_w, axis=-1)


def log_mean_exp(a: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """The log of the mean of exp(a).

    Example:
        >>> float(relbo.bounds.log_mean_exp(jnp.zeros((1, 4)))[0])
        0.0
    """
    return logsumexp(a, axis=-1) - jnp.log(jnp.asarray(a.shape[-1], a.dtype))


def iwae(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """The k-sample importance-weighted bound IS-k, log mean w over draws from q (Burda et al. 2016).

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> bool(relbo.bounds.iwae(log_w)[0] > relbo.bounds.elbo(log_w)[0])
        True
    """
    return log_mean_exp(log_w)


def log_accept(
    log_w: Float[Array, "*b k"], t: Float[Array, "*b"], acceptance: AbstractAcceptance | None = None
) -> Float[Array, "*b k"]:
    """The log acceptance probability g(log w + T); an impossible z is not accepted, even at T = +inf.

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> bool(jnp.all(relbo.bounds.log_accept(log_w, jnp.array([1.0]), relbo.Soft()) < 0))
        True
    """
    acceptance = Soft() if acceptance is None else acceptance
    t = jnp.asarray(t, log_w.dtype)[..., None]
    return acceptance.log_prob(jnp.where(jnp.isneginf(log_w), -jnp.inf, log_w + t))


def signal(
    log_w: Float[Array, "*b k"], t: Float[Array, "*b"], acceptance: AbstractAcceptance | None = None
) -> Float[Array, "*b k"]:
    """The learning signal A = log w - g(log w + T) = log p - log(q a); log(w + M) for the paper's acceptance.

    At T = +inf everything possible is accepted and A = log w.

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> t = jnp.array([1.0])  # A = log(w + e^-T) for this acceptance
        >>> bool(jnp.allclose(relbo.bounds.signal(log_w, t, relbo.Soft()), jnp.log(jnp.exp(log_w) + jnp.exp(-1.0))))
        True
    """
    return log_w - log_accept(log_w, t, acceptance)


def r_elbo(
    log_w: Float[Array, "*b k"],
    t: Float[Array, "*b"],
    log_z: Float[Array, "*b"],
    acceptance: AbstractAcceptance | None = None,
) -> Float[Array, "*b"]:
    """The resampled ELBO, mean of A + log Z_R over draws from r (Theorem 1).

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> t, log_z = jnp.array([jnp.inf]), jnp.array([0.0])  # nothing is rejected: the ELBO
        >>> relbo.bounds.r_elbo(log_w, t, log_z, relbo.Soft()).tolist()
        [-2.0]
    """
    return jnp.mean(signal(log_w, t, acceptance), axis=-1) + log_z


def rs(
    log_w: Float[Array, "*b k"],
    t: Float[Array, "*b"],
    log_z: Float[Array, "*b"],
    acceptance: AbstractAcceptance | None = None,
) -> Float[Array, "*b"]:
    """The k-sample resampled bound RS-k, log mean exp A + log Z_R over draws from r.

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> t, log_z = jnp.array([jnp.inf]), jnp.array([0.0])  # nothing is rejected: IS-3
        >>> bool(jnp.allclose(relbo.bounds.rs(log_w, t, log_z, relbo.Soft()), relbo.bounds.iwae(log_w)))
        True
    """
    return log_mean_exp(signal(log_w, t, acceptance)) + log_z


def log_z_fresh(
    log_w: Float[Array, "*b n"], t: Float[Array, "*b"], acceptance: AbstractAcceptance | None = None
) -> Float[Array, "*b"]:
    """Log of the mean acceptance probability over n fresh draws from q; its exponential is unbiased for Z_R.

    Example:
        >>> log_w = jnp.array([[-1.0, -2.0, -3.0]])
        >>> relbo.bounds.log_z_fresh(log_w, jnp.array([jnp.inf]), relbo.Soft()).tolist()
        [0.0]
    """
    return log_mean_exp(log_accept(log_w, t, acceptance))


def log_z_counted(num_accepted: int, num_proposals: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Log of (k-1)/(N-1), N the proposals until the k-th acceptance, k >= 2.

    Its exponential is the minimum-variance unbiased estimate of Z_R, and N is independent of the accepted values.

    Example:
        >>> bool(jnp.allclose(jnp.exp(relbo.bounds.log_z_counted(3, jnp.array([9]))), 2 / 8))
        True
    """
    if num_accepted < 2:
        raise ValueError(f"log_z_counted: num_accepted must be an integer >= 2, got {num_accepted!r}.")
    n = jnp.asarray(num_proposals, jnp.result_type(float))
    return jnp.log(jnp.asarray(num_accepted - 1, n.dtype)) - jnp.log(n - 1)


def log_z_stopped(num_samples: int, num_proposals: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Digamma(S) - digamma(n), n the proposals up to the S-th acceptance: unbiased for log Z_R itself, 0 at n = S.

    Example:
        >>> float(relbo.bounds.log_z_stopped(3, jnp.array([3]))[0])  # nothing was rejected
        0.0
    """
    n = jnp.asarray(jnp.maximum(num_proposals, num_samples), jnp.result_type(float))
    return digamma(jnp.asarray(num_samples, n.dtype)) - digamma(n)


def log_z_unbiased(
    num_accepted: Int[Array, "*b"], num_proposals: Int[Array, "*b"], num_samples: int, budget: int
) -> Float[Array, "*b"]:
    r"""Unbiased for log Z_R itself, from the counts of a row that stops by the rule of `relbo.rejection`.

    Use it where log Z_R is added outside a logarithm, as in the R-ELBO. With n_S the proposals up to the S-th
    acceptance, digamma(S) - digamma(n_S) is unbiased: for S = 1 it is minus the harmonic number H_{n-1}, whose mean is
    sum_j P(n > j)/j = sum_j (1 - Z)^j / j = -log Z; S > 1 follows since digamma(n) - digamma(S) is the only function
    of n with mean -log Z. A row that goes on beyond N proposals stops at n_S. One that finished with K acceptances
    among N has its mean given K instead, over where the S-th of them may have stood (Rao and Blackwell),

        digamma(S) - E[digamma(n_S) | K of N] = H_K - H_N,

    whatever S: by Vandermonde E[Gamma(n_S + t) / Gamma(n_S) | K of N] is Gamma(S + t) / Gamma(S) times
    Gamma(N + 1 + t) / Gamma(N + 1) over Gamma(K + 1 + t) / Gamma(K + 1), whose slope at t = 0 is E[digamma(n_S)]. It is
    exactly 0 when nothing was rejected.

    Args:
        num_accepted: K of each row.
        num_proposals: n of each row, N if it finished within its budget.
        num_samples: S.
        budget: N >= S.

    Example:
        >>> relbo.bounds.log_z_unbiased.__name__
        'log_z_unbiased'
    """
    table = jnp.asarray(_within_budget(num_samples, budget), jnp.result_type(float))
    within = table[jnp.clip(num_accepted - num_samples, 0, budget - num_samples)]
    return jnp.where(num_proposals > budget, log_z_stopped(num_samples, num_proposals), within)


def _within_budget(num_samples: int, budget: int) -> np.ndarray:
    # H_K - H_N for K = S, ..., N, as a sum of the N - K terms between them
    terms = 1 / np.arange(budget, num_samples, -1)
    return -np.cumsum(np.append(0.0, terms))[::-1]


def kl_from_signal(a: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """Estimates KL(r || p(z | x)) = log E_r[exp(A - E_r A)] from draws of A under r.

    The paper's Lemma 1 prints exp(-(A - E_r A)); the sign here is the right one (docs/errata.md, E5). With finitely
    many draws the estimate is biased downwards, as every log of a mean is.

    Example:
        >>> relbo.bounds.kl_from_signal(jnp.full((1, 5), -2.0)).tolist()  # a perfect fit
        [0.0]
    """
    return log_mean_exp(a - jnp.mean(a, axis=-1, keepdims=True))


def effective_sample_size(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """Kish's effective sample size (sum w)^2 / sum w^2 of importance weights.

    Example:
        >>> round(float(relbo.bounds.effective_sample_size(jnp.zeros((1, 5)))[0]), 3)
        5.0
    """
    return jnp.exp(2 * logsumexp(log_w, axis=-1) - jax.scipy.special.logsumexp(2 * log_w, axis=-1))


def relative_variance(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """Variance of the mean of exp(log w) over its square, from k independent draws.

    Example:
        >>> bool(jnp.abs(relbo.bounds.relative_variance(jnp.zeros((1, 5)))[0]) < 1e-6)
        True
    """
    weights = jnp.exp(log_w - jnp.max(log_w, axis=-1, keepdims=True))
    return jnp.var(weights, axis=-1) / jnp.mean(weights, axis=-1) ** 2 / log_w.shape[-1]
