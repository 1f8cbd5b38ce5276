r"""The oracle: every quantity of the method by enumeration, for a finite latent space.

Use it to check your own small models. `support` lists all states of z, stacked along the first axis of each leaf.
All functions take one x and are differentiable in `pair`, so `jax.grad` (or `gradient` below) gives exact gradients.

    >>> support = exact.binary_states(3)
    >>> exact.log_evidence(pair.model, x, support)
    >>> exact.gradient(exact.r_elbo, pair, x, support, 0.0)
"""

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.models.base import AbstractModel, AbstractProposal
from relbo.types import Pair

FAR_BELOW = 400.0
"""Nats of u that stand for T = -inf: acceptances are there what they are in the limit."""

Support: TypeAlias = PyTree[Shaped[Array, "n ..."]]


def binary_states(num_bits: int) -> Float[Array, "n d"]:
    """All 2^d vectors of d bits, as floats.

    Example:
        >>> relbo.exact.binary_states(2).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    return jnp.asarray(np.array(list(itertools.product((0.0, 1.0), repeat=num_bits))), jnp.result_type(float))


def tuples(num_states: int, size: int) -> np.ndarray:
    """All ordered tuples of `size` state numbers, (num_states^size, size).

    Example:
        >>> relbo.exact.tuples(2, 2).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    require(is_int(size, at_least=1), "size", "an integer >= 1", size)
    require(
        num_states**size <= 50_000_000,
        "num_states ** size",
        "at most 50,000,000 to enumerate",
        num_states**size,
    )
    return np.indices((num_states,) * size).reshape(size, -1).T


def log_joint(model: AbstractModel, x: PyTree, support: Support) -> Float[Array, " n"]:
    """Log p(x, z) of every state.

    Example:
        >>> relbo.exact.log_joint(pair.model, x[0], support).shape
        (8,)
    """
    return jax.vmap(lambda z: model.log_joint(x, z))(support)


def log_proposal(proposal: AbstractProposal, x: PyTree, support: Support) -> Float[Array, " n"]:
    """Log q(z | x) of every state.

    Example:
        >>> log_q = relbo.exact.log_proposal(pair.proposal, x[0], support)
        >>> bool(jnp.allclose(jnp.sum(jnp.exp(log_q)), 1))
        True
    """
    return jax.vmap(lambda z: proposal.log_prob(z, x))(support)


def log_evidence(model: AbstractModel, x: PyTree, support: Support) -> Float[Array, ""]:
    """Log p(x) = log sum_z p(x, z).

    Example:
        >>> relbo.exact.log_evidence(pair.model, x[0], support).shape
        ()
    """
    return logsumexp(log_joint(model, x, support))


def log_posterior(model: AbstractModel, x: PyTree, support: Support) -> Float[Array, " n"]:
    """Log p(z | x) of every state.

    Example:
        >>> bool(jnp.allclose(jnp.sum(jnp.exp(relbo.exact.log_posterior(pair.model, x[0], support))), 1))
        True
    """
    joint = log_joint(model, x, support)
    return joint - logsumexp(joint)


def _log_kept(
    pair: Pair, x: PyTree, support: Support, t: Any, acceptance: AbstractAcceptance | None
) -> Float[Array, " n"]:
    # log q a, the unnormalised r
    acceptance = Soft() if acceptance is None else acceptance
    log_p, log_q = log_joint(pair.model, x, support), log_proposal(pair.proposal, x, support)
    t, is_seen = jnp.asarray(t, log_p.dtype), (log_q > -jnp.inf) & (log_p > -jnp.inf)
    lowest = -FAR_BELOW - jnp.max(log_p - log_q, initial=-jnp.inf, where=is_seen)
    t = jnp.where(jnp.isneginf(t) & jnp.any(is_seen), jax.lax.stop_gradient(lowest), t)
    # a state that q never draws has u = inf, at T = -inf NaN
    u = jnp.where(jnp.isneginf(log_q), -jnp.inf, log_odds_of(log_p, log_q, t))
    return log_q + acceptance.log_prob(u)


def log_z(
    pair: Pair, x: PyTree, support: Support, t: Any, acceptance: AbstractAcceptance | None = None
) -> Float[Array, ""]:
    """Log Z_R = log E_q[a], the log of the mean acceptance rate; -inf where nothing is accepted.

    Example:
        >>> bool(relbo.exact.log_z(pair, x[0], support, 0.0) < relbo.exact.log_z(pair, x[0], support, 3.0))
        True
    """
    found = logsumexp(_log_kept(pair, x, support, t, acceptance))
    # only a floor keeps acceptances from 0 at T = -inf
    return jnp.where(jnp.isneginf(jnp.asarray(t)) & (found < -FAR_BELOW / 2), -jnp.inf, found)


def log_resampled(
    pair: Pair, x: PyTree, support: Support, t: Any, acceptance: AbstractAcceptance | None = None
) -> Float[Array, " n"]:
    """Log r(z | x) of every state, r = q a / Z_R; at T = -inf its limit, NaN where q draws nothing that is possible.

    Example:
        >>> r = jnp.exp(relbo.exact.log_resampled(pair, x[0], support, 0.0))
        >>> bool(jnp.allclose(jnp.sum(r), 1))
        True
    """
    kept = _log_kept(pair, x, support, t, acceptance)
    return kept - logsumexp(kept)


def _expect(log_prob: Float[Array, " n"], values: Float[Array, " n"]) -> Float[Array, ""]:
    # states of probability 0 count for nothing, even where the value is infinite
    possible = log_prob != -jnp.inf
    return jnp.sum(jnp.where(possible, jnp.exp(log_prob) * jnp.where(possible, values, 0), 0))


def kl(
    pair: Pair, x: PyTree, support: Support, t: Any, acceptance: AbstractAcceptance | None = None
) -> Float[Array, ""]:
    """KL(r || p(z | x)) in nats; inf where q draws nothing that is possible.

    Example:
        >>> bool(relbo.exact.kl(pair, x[0], support, 0.0) < relbo.exact.kl(pair, x[0], support, jnp.inf))
        True
    """
    log_r = log_resampled(pair, x, support, t, acceptance)
    found = _expect(log_r, log_r - log_posterior(pair.model, x, support))
    return jnp.where(_is_apart(pair, x, support), jnp.inf, found)


def elbo(pair: Pair, x: PyTree, support: Support) -> Float[Array, ""]:
    """E_q[log p - log q].

    Example:
        >>> bool(relbo.exact.elbo(pair, x[0], support) < relbo.exact.log_evidence(pair.model, x[0], support))
        True
    """
    log_q = log_proposal(pair.proposal, x, support)
    return _expect(log_q, log_joint(pair.model, x, support) - log_q)


def r_elbo(
    pair: Pair, x: PyTree, support: Support, t: Any, acceptance: AbstractAcceptance | None = None
) -> Float[Array, ""]:
    """The resampled ELBO, E_r[log p - log r] = log p(x) - KL(r || p(z | x)); -inf where q draws nothing possible.

    Example:
        >>> bool(relbo.exact.r_elbo(pair, x[0], support, 0.0) > relbo.exact.elbo(pair, x[0], support))
        True
    """
    log_r = log_resampled(pair, x, support, t, acceptance)
    found = _expect(log_r, log_joint(pair.model, x, support) - log_r)
    return jnp.where(_is_apart(pair, x, support), -jnp.inf, found)


def _is_apart(pair: Pair, x: PyTree, support: Support) -> Bool[Array, ""]:
    # no state that q draws is possible: there is no r, and what is accepted nevertheless is impossible
    log_p, log_q = log_joint(pair.model, x, support), log_proposal(pair.proposal, x, support)
    return jnp.all(jnp.isneginf(log_p) | jnp.isneginf(log_q))


def iwae(pair: Pair, x: PyTree, support: Support, num_samples: int) -> Float[Array, ""]:
    """The k-sample bound E_q log mean_k w, summed over all n^k tuples: for small k only.

    Example:
        >>> bool(relbo.exact.iwae(pair, x[0], support, 2) > relbo.exact.elbo(pair, x[0], support))
        True
    """
    log_q = log_proposal(pair.proposal, x, support)
    # tuples with a state that q never draws count for nothing, whatever its w, in the gradient too
    log_w = log_joint(pair.model, x, support) - jnp.where(jnp.isneginf(log_q), 0, log_q)
    index = tuples(log_q.shape[0], num_samples)
    bound = logsumexp(log_w[index], axis=-1) - np.log(num_samples)
    return _expect(jnp.sum(log_q[index], axis=-1), bound)


def gradient(quantity: Callable[..., Float[Array, ""]], pair: Pair, *args: Any) -> Pair:
    """The exact gradient of one of the functions above in the arrays of `pair`, shaped like `pair`.

    Example:
        >>> gradient = relbo.exact.gradient(relbo.exact.r_elbo, pair, x[0], support, 0.0)
        >>> gradient.model.prior.shape
        (3,)
    """
    return eqx.filter_grad(lambda p: quantity(p, *args))(pair)
