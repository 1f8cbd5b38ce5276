r"""Densities of flows that cannot be inverted, at a draw whose noise is known.

A score needs log q(z) as a function of the parameters phi with z held fixed, and a flow z = f_phi(e) without an
inverse (a block neural autoregressive flow) cannot be asked for it. But the noise e* of the draw z* is known, and one
Newton step from it,

    e(phi) = e* - J^-1 (f_phi(e*) - z*),      J = df/de at e*, constant,

has the value e* and, by the implicit function theorem, the derivatives of f_phi^-1(z*) in phi and in z*. So
log q(z*) = log base(e(phi)) - log |det df_phi/de| at e(phi) has the right value and the right score.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from numpyro import distributions as dist


class Noisy(NamedTuple):
    """A draw from a flow with the noise that it came from."""

    value: Array
    noise: Array


def needs_noise(site: dict[str, Any]) -> bool:
    """Whether the density of the site's value is out of reach without its noise."""
    if not isinstance(site["fn"], dist.TransformedDistribution):
        return False
    try:
        jax.eval_shape(site["fn"].log_prob, site["value"])
    except NotImplementedError:
        return True
    return False


def with_noise(site: dict[str, Any]) -> Noisy:
    """The value of a freshly drawn site, and the draw of the base distribution behind it."""
    return Noisy(site["value"], site["intermediates"][0][0])


def _push(fn: dist.TransformedDistribution, noise: Array) -> tuple[Array, list[list[PyTree]]]:
    intermediates = []
    value = noise
    for transform in fn.transforms:
        before = value
        value, extra = transform.call_with_intermediates(before)
        intermediates.append([before, extra])
    return value, intermediates


def log_prob(fn: dist.TransformedDistribution, draw: Noisy) -> Float[Array, "*s"]:
    """Log density at the value of the draw, differentiable in the parameters and in the value."""
    value, noise = draw.value, jax.lax.stop_gradient(draw.noise)

    def push_flat(flat: Array) -> Array:
        return _push(fn, flat.reshape(noise.shape))[0].reshape(-1)

    jacobian = jax.lax.stop_gradient(jax.jacfwd(push_flat)(noise.reshape(-1)))
    step = jnp.linalg.solve(jacobian, push_flat(noise.reshape(-1)) - value.reshape(-1))
    # the step is 0 up to rounding: keep its derivative only, so that the value is that of the draw
    moved = noise - (step - jax.lax.stop_gradient(step)).reshape(noise.shape)
    return fn.log_prob(*_push(fn, moved))
