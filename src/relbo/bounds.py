r"""Lower bounds on log p(x) from log weights, and the estimates of Z_R that keep them bounds.

With log w_i = log p(x, z_i) - log q(z_i | x), u = log w + T and g = log a:

    ELBO    mean_i log w_i                               z_i ~ q
    IS-k    log mean_i w_i                               z_i ~ q
    R-ELBO  mean_i A_i + log Z_R,   A = log w - g(u)     z_i ~ r
    RS-k    log mean_i exp A_i + log Z_R                 z_i ~ r

For t = 1, exp A = w + M. Since E_r[exp A] = p(x) / Z_R, an estimate of Z_R that is unbiased and independent of the
accepted z_i keeps E[exp(RS-k)] = p(x), hence a lower bound by Jensen. Two such estimates are offered, fresh draws
and (k-1)/(N-1). The tempting k/N is biased upwards and would break the bound.

All functions reduce the last axis.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, logsumexp
from jaxtyping import Array, Float, Int

from relbo.acceptance import AbstractAcceptance, Soft


def elbo(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """The evidence lower bound, mean of log w over draws from q."""
    return jnp.mean(log_w, axis=-1)


def log_mean_exp(a: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """The log of the mean of exp(a)."""
    return logsumexp(a, axis=-1) - jnp.log(jnp.asarray(a.shape[-1], a.dtype))


def iwae(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """The k-sample importance-weighted bound IS-k, log mean w over draws from q (Burda et al. 2016)."""
    return log_mean_exp(log_w)


def log_accept(
    log_w: Float[Array, "*b k"], t: Float[Array, "*b"], acceptance: AbstractAcceptance | None = None
) -> Float[Array, "*b k"]:
    """The log acceptance probability g(log w + T); an impossible z is not accepted, even at T = +inf."""
    acceptance = Soft() if acceptance is None else acceptance
    t = jnp.asarray(t, log_w.dtype)[..., None]
    return acceptance.log_prob(jnp.where(jnp.isneginf(log_w), -jnp.inf, log_w + t))


def signal(
    log_w: Float[Array, "*b k"], t: Float[Array, "*b"], acceptance: AbstractAcceptance | None = None
) -> Float[Array, "*b k"]:
    """The learning signal A = log w - g(log w + T) = log p - log(q a); log(w + M) for the paper's acceptance.

    At T = +inf everything possible is accepted and A = log w.
    """
    return log_w - log_accept(log_w, t, acceptance)


def r_elbo(
    log_w: Float[Array, "*b k"],
    t: Float[Array, "*b"],
    log_z: Float[Array, "*b"],
    acceptance: AbstractAcceptance | None = None,
) -> Float[Array, "*b"]:
    """The resampled ELBO, mean of A + log Z_R over draws from r (Theorem 1)."""
    return jnp.mean(signal(log_w, t, acceptance), axis=-1) + log_z


def rs(
    log_w: Float[Array, "*b k"],
    t: Float[Array, "*b"],
    log_z: Float[Array, "*b"],
    acceptance: AbstractAcceptance | None = None,
) -> Float[Array, "*b"]:
    """The k-sample resampled bound RS-k, log mean exp A + log Z_R over draws from r."""
    return log_mean_exp(signal(log_w, t, acceptance)) + log_z


def log_z_fresh(
    log_w: Float[Array, "*b n"], t: Float[Array, "*b"], acceptance: AbstractAcceptance | None = None
) -> Float[Array, "*b"]:
    """Log of the mean acceptance probability over n fresh draws from q; its exponential is unbiased for Z_R."""
    return log_mean_exp(log_accept(log_w, t, acceptance))


def log_z_counted(num_accepted: int, num_proposals: Int[Array, "*b"]) -> Float[Array, "*b"]:
    """Log of (k-1)/(N-1), N the proposals until the k-th acceptance, k >= 2.

    Its exponential is the minimum-variance unbiased estimate of Z_R, and N is independent of the accepted values.
    """
    if num_accepted < 2:
        raise ValueError(f"log_z_counted: num_accepted must be an integer >= 2, got {num_accepted!r}.")
    n = jnp.asarray(num_proposals, jnp.result_type(float))
    return jnp.log(jnp.asarray(num_accepted - 1, n.dtype)) - jnp.log(n - 1)


def log_z_unbiased(num_accepted: int, num_proposals: Int[Array, "*b"]) -> Float[Array, "*b"]:
    r"""Digamma(k) - digamma(N): unbiased for log Z_R itself, N the proposals until the k-th acceptance.

    Use it where log Z_R is added outside a logarithm, as in the R-ELBO. For k = 1 it is minus the harmonic number
    H_{N-1}, whose mean is sum_j P(N > j)/j = sum_j (1 - Z)^j / j = -log Z; k > 1 follows since
    digamma(N) - digamma(k) is the only function of N with mean -log Z. It is exactly 0 when nothing was rejected.
    """
    n = jnp.asarray(num_proposals, jnp.result_type(float))
    k = jnp.asarray(num_accepted, n.dtype)
    # a compiler may evaluate digamma(k) itself, and differently in the last bit: the 0 must not rest on that
    return jnp.where(n == k, 0, digamma(k) - digamma(n))


def kl_from_signal(a: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """Estimates KL(r || p(z | x)) = log E_r[exp(A - E_r A)] from draws of A under r.

    The paper's Lemma 1 prints exp(-(A - E_r A)); the sign here is the right one (docs/errata.md, E5). With finitely
    many draws the estimate is biased downwards, as every log of a mean is.
    """
    return log_mean_exp(a - jnp.mean(a, axis=-1, keepdims=True))


def effective_sample_size(log_w: Float[Array, "*b k"]) -> Float[Array, "*b"]:
    """Kish's effective sample size (sum w)^2 / sum w^2 of importance weights."""
    return jnp.exp(2 * logsumexp(log_w, axis=-1) - jax.scipy.special.logsumexp(2 * log_w, axis=-1))
