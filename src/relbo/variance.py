r"""Gradient variance and signal-to-noise of an estimator at one point, over many keys.

For estimates g of a gradient, with mean m and variance v in every coordinate,

    total variance   sum_i v_i,        signal-to-noise ratio   |m| / sqrt(sum_i v_i),

each for theta and phi apart. To compare methods that draw unequal numbers of proposals, use the variance *per
proposal*: that of one estimate times the proposals it drew, which is what averaging estimates until a budget of
proposals is spent would leave, times that budget.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo._check import is_int, require
from relbo.estimators.base import AbstractEstimator
from relbo.types import Batch, Pair
from relbo.view import view_of


class Moments(NamedTuple):
    """Mean and variance of an estimator's gradient over its own randomness.

    Example:
        >>> Moments._fields
        ('mean', 'variance', 'num_proposals', 'num_estimates')
    """

    mean: Any
    variance: Any
    """Unbiased sample variance of one estimate, shaped like the gradient."""
    num_proposals: Float[Array, ""]
    """Mean proposals per datapoint and estimate."""
    num_estimates: int


class Noise(NamedTuple):
    """How noisy a part of the gradient is.

    Example:
        >>> noise_of(jnp.ones(2), jnp.ones(2), jnp.array(3.0)).per_proposal.item()
        6.0
    """

    total_variance: Float[Array, ""]
    per_proposal: Float[Array, ""]
    """Total variance times the proposals per datapoint of one estimate."""
    signal_to_noise: Float[Array, ""]


class GradientNoise(NamedTuple):
    """Noise of one estimator.

    Example:
        >>> GradientNoise._fields
        ('theta', 'phi', 'num_proposals')
    """

    theta: Noise
    phi: Noise
    num_proposals: Float[Array, ""]


def gradient_moments(
    estimator: AbstractEstimator,
    key: PRNGKeyArray,
    pair: Pair,
    state: Any,
    batch: Batch,
    *,
    num_estimates: int,
    chunk: int = 1_000,
) -> Moments:
    """Mean and variance of `estimator.estimate` over independent keys, from one state that is not carried on.

    Args:
        estimator: what to measure.
        key: randomness of all estimates.
        pair: model and proposal.
        state: state of the estimator, the same for every estimate.
        batch: datapoints; the gradient is that of their mean bound.
        num_estimates: how many, a multiple of `chunk`.
        chunk: how many at a time.

    Returns:
        A `Moments`.

    Example:
        >>> state = relbo.RLOO(4).init(key, pair, 4)
        >>> found = gradient_moments(relbo.RLOO(4), key, pair, state, batch, num_estimates=100, chunk=50)
        >>> float(found.num_proposals)
        4.0
    """
    require(is_int(chunk, at_least=2), "gradient_moments: chunk", "an integer >= 2", chunk)
    require(
        is_int(num_estimates, at_least=chunk) and num_estimates % chunk == 0,
        "gradient_moments: num_estimates",
        f"a multiple of the chunk {chunk}",
        num_estimates,
    )

    def one(k: PRNGKeyArray) -> tuple[Pair, Array]:
        gradient, _, info = estimator.estimate(k, pair, state, batch)
        return gradient, jnp.mean(info.num_proposals.astype(info.bound.dtype))

    return moments_of(one, key, num_estimates=num_estimates, chunk=chunk)


def moments_of(
    one: Callable[[PRNGKeyArray], tuple[PyTree, Array]], key: PRNGKeyArray, *, num_estimates: int, chunk: int = 1_000
) -> Moments:
    """Mean and variance of any function of a key.

    Args:
        one: from a key to what is measured, any tree of arrays, and the proposals that it took.
        key: randomness of all values.
        num_estimates: how many, a multiple of `chunk`.
        chunk: how many at a time.

    Returns:
        A `Moments` whose mean and variance are shaped like what is measured.

    Example:
        >>> one = lambda key: ({"g": jax.random.normal(key, (3,))}, jnp.ones(()))
        >>> found = moments_of(one, jax.random.key(0), num_estimates=4_000)
        >>> bool(jnp.all(jnp.abs(found.variance["g"] - 1) < 0.2))
        True
    """

    def step(carry: PyTree, index: Array) -> tuple[PyTree, None]:
        mean, squares, count = carry
        keys = jax.random.split(jax.random.fold_in(key, index), chunk)
        values = jax.vmap(one)(keys)

        def merge(m: Array, s: Array, v: Array) -> tuple[Array, Array]:  # Chan et al.'s pairwise update
            new = jnp.mean(v, axis=0)
            share = chunk / (count + chunk)
            gap = new - m
            centred = jnp.sum(jnp.square(v - new[None]), axis=0)
            return m + gap * share.astype(v.dtype), s + centred + jnp.square(gap) * (count * share).astype(v.dtype)

        leaves, treedef = jax.tree.flatten(values)
        merged = [merge(*parts) for parts in zip(jax.tree.leaves(mean), jax.tree.leaves(squares), leaves, strict=True)]
        mean, squares = (jax.tree.unflatten(treedef, part) for part in zip(*merged, strict=True))
        return (mean, squares, count + chunk), None

    shapes = jax.eval_shape(one, key)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    start = (zeros, zeros, jnp.zeros(()))
    indices = jnp.arange(num_estimates // chunk)
    ((mean, num_proposals), (squares, _), _), _ = jax.jit(lambda c: jax.lax.scan(step, c, indices))(start)
    variance = jax.tree.map(lambda s: s / (num_estimates - 1), squares)
    return Moments(mean, variance, num_proposals, num_estimates)


def gradient_noise(
    estimator: AbstractEstimator,
    key: PRNGKeyArray,
    pair: Pair,
    state: Any,
    batch: Batch,
    *,
    num_estimates: int,
    chunk: int = 1_000,
) -> GradientNoise:
    """The noise of an estimator's gradient, for theta and phi apart; arguments as `gradient_moments`.

    Example:
        >>> state = relbo.RLOO(4).init(key, pair, 4)
        >>> found = gradient_noise(relbo.RLOO(4), key, pair, state, batch, num_estimates=100, chunk=50)
        >>> bool(found.phi.total_variance > 0)
        True
    """
    moments = gradient_moments(estimator, key, pair, state, batch, num_estimates=num_estimates, chunk=chunk)
    mean, variance = moments.mean, moments.variance
    return GradientNoise(
        noise_of(mean.model, variance.model, moments.num_proposals),
        noise_of(mean.proposal, variance.proposal, moments.num_proposals),
        moments.num_proposals,
    )


def noise_of(mean: PyTree, variance: PyTree, num_proposals: Float[Array, ""]) -> Noise:
    """The noise of one part of a gradient, from its moments; a part without parameters has none.

    Example:
        >>> noise_of(jnp.array([3.0, 4.0]), jnp.array([12.0, 13.0]), jnp.array(2.0))
        Noise(total_variance=Array(25., ...), per_proposal=Array(50., ...), signal_to_noise=Array(1., ...))
    """
    total = jnp.sum(jnp.stack([jnp.sum(v) for v in jax.tree.leaves(variance)] or [jnp.zeros(())]))
    signal = jnp.sum(jnp.stack([jnp.sum(jnp.square(m)) for m in jax.tree.leaves(mean)] or [jnp.zeros(())]))
    return Noise(total, total * num_proposals, jnp.sqrt(signal / total))


def support_moves(key: PRNGKeyArray, pair: Pair, x: PyTree, num_draws: int = 100) -> bool:
    """Whether the support of q is seen to depend on phi, so that all but `Pathwise()` are biased.

    Phi is moved a little to either side along a random direction, so far that log q changes by some .05. Then draws of
    q_phi must stay possible, and q_(phi + d) / q_phi must have mean 1, to 6 standard errors: it has not where draws of
    the moved q are impossible under q_phi, nor where log q is not normalised.

    Example:
        >>> support_moves(key, gaussian, x)
        False
    """
    key_draw, key_direction = jax.random.split(key)
    view = view_of(pair, x)
    params, static = eqx.partition(pair.proposal, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key_direction, max(len(leaves), 1))
    steps = [jax.random.normal(k, v.shape, v.dtype) for k, v in zip(keys, leaves, strict=False)]

    @jax.jit
    def measure() -> tuple[Array, Array, Array]:
        z = view.draw(key_draw, num_draws)

        def log_q(size: Array) -> Array:
            moved = [v + size.astype(v.dtype) * d for v, d in zip(leaves, steps, strict=True)]
            proposal = eqx.combine(jax.tree.unflatten(structure, moved), static)
            return view.at(Pair(pair.model, proposal)).log_densities(z).log_q

        here, slope = jax.jvp(log_q, (jnp.zeros(()),), (jnp.ones(()),))
        size = 0.05 / jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(slope))), 1)
        ratios = jnp.exp(jnp.stack([log_q(size), log_q(-size)]) - here[None]).reshape(2, -1)
        error = jnp.std(ratios, axis=1) / jnp.sqrt(1.0 * ratios.shape[1])
        return jnp.min(ratios), jnp.mean(ratios, axis=1), error

    least, mean, error = measure()
    # what rounding does to sums of many terms is no bias
    return bool((least == 0) | jnp.any(jnp.abs(mean - 1) > 6 * error + 1e-3))
