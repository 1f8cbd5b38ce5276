"""`AutoLaplaceApproximation` as a guide with a spread: NumPyro draws its points only while it is trained."""

import copy
from typing import Any

import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro.infer.autoguide import AutoLaplaceApproximation

from relbo._check import refuse_if


def with_spread(guide: Any, params: dict[str, Any]) -> Any:
    """The normal approximation that the fit stands for, as a guide; any other guide as it is.

    While it is trained, `AutoLaplaceApproximation` is a point. What it approximates the posterior by is the normal
    distribution around that point whose precision is the Hessian of -log p there.
    """
    if not isinstance(guide, AutoLaplaceApproximation):
        return guide
    transform = guide.get_transform(params)
    is_flat = jnp.any(jnp.diagonal(transform.scale_tril) == 0)  # which is how NumPyro marks it
    scale = refuse_if(
        transform.scale_tril,
        is_flat,
        "AutoLaplaceApproximation must have a positive definite Hessian at its point, got one that is not. Train it "
        "longer, or use AutoNormal.",
    )
    spread = copy.copy(guide)
    spread._get_posterior = lambda: dist.MultivariateNormal(transform.loc, scale_tril=scale)
    return spread
