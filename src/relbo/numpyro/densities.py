"""Log densities of sites, with the derivative that NumPyro's own have everywhere but at one point."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro import distributions as dist

_BY_LOGITS = (dist.BernoulliLogits, dist.BinomialLogits)


def log_prob(fn: Any, value: Any) -> Float[Array, "..."]:
    """Log density of a site's value.

    NumPyro (0.21, 0.22) writes softplus(l) as max(l, 0) + log(1 + exp(-|l|)), whose automatic derivative at a logit of
    exactly 0 is 0 instead of 1/2. So `Bernoulli(logits)` has the score 0 and 1 there instead of -1/2 and 1/2, and
    `Binomial(n, logits)` likewise; a guide whose logits start at 0 would take a biased first step. A logit of 0 is
    moved by the smallest normal number: the value stays as it is, the derivative is right.
    """

    def is_by_logits(leaf: Any) -> bool:
        return isinstance(leaf, _BY_LOGITS)

    if any(is_by_logits(leaf) for leaf in jax.tree.leaves(fn, is_leaf=is_by_logits)):
        fn = jax.tree.map(lambda leaf: _off_zero(leaf) if is_by_logits(leaf) else leaf, fn, is_leaf=is_by_logits)
    return fn.log_prob(value)


def _off_zero(fn: Any) -> Any:
    logits = jnp.asarray(fn.logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        return fn
    tiny = jnp.asarray(jnp.finfo(logits.dtype).tiny, logits.dtype)
    moved = logits + jax.lax.stop_gradient(jnp.where(logits == 0, tiny, 0))
    leaves, structure = jax.tree.flatten(fn)
    return jax.tree.unflatten(structure, [moved if leaf is fn.logits else leaf for leaf in leaves])
