"""What is wrong with a program whose draws fail: NaN, impossible draws and rejections told apart, by site."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from relbo.numpyro.densities import log_prob
from relbo.numpyro.laplace import with_spread
from relbo.numpyro.layout import run, samples_of

FAILURES = ("Rejection sampling was exhausted", "log p ", "log q ")
"""How the sampler's refusals begin."""
NUM_DRAWS = 1_000


def sites_at_fault(programs: tuple, args: tuple, kwargs: dict[str, Any], params: dict[str, Any], key: Any) -> str:
    """How many of 1,000 draws of the guide have a NaN density, or are impossible, and the sites that make them so."""
    model, guide = programs
    guide = with_spread(guide, params)

    def one(key: PRNGKeyArray) -> dict[str, Bool[Array, " 2"]]:
        guide_trace, model_trace = run(model, guide, args, kwargs, key, params)
        found: dict[str, Bool[Array, " 2"]] = {}
        for trace in (guide_trace, model_trace):
            for name, site in samples_of(trace).items():
                density = log_prob(site["fn"], site["value"])
                here = jnp.stack([jnp.any(jnp.isnan(density)), jnp.any(jnp.isneginf(density))])
                found[name] = here | found.get(name, jnp.zeros(2, bool))
        return found

    # one after the other: the densities of all of the data may fit into memory but once
    found = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(key, NUM_DRAWS))
    nan, impossible = jnp.any(jnp.stack(list(found.values())), axis=0).T
    counts = int(jnp.sum(nan)), int(jnp.sum(impossible & ~nan))
    names = [[repr(name) for name, flags in found.items() if jnp.any(flags[:, i])] for i in range(2)]
    where = [f" (at {', '.join(some)})" if some else "" for some in names]
    return (
        f"of {NUM_DRAWS:,} draws of the guide {counts[0]} have a density that is NaN{where[0]}, {counts[1]} are "
        f"impossible, log p = -inf{where[1]}, and {NUM_DRAWS - sum(counts)} can be accepted."
    )
