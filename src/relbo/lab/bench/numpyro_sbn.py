"""The same network through NumPyro's SVI with `Trace_ELBO` or `TraceGraph_ELBO`: no rejection, so less work."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI


def make_step(
    loss: Any,
    data: np.ndarray,
    batch_size: int,
    down: Sequence[tuple[np.ndarray, np.ndarray]],
    prior: np.ndarray,
    up: Sequence[tuple[np.ndarray, np.ndarray]],
    data_mean: np.ndarray,
) -> Callable[[int], None]:
    """Steps of SVI with Adam on minibatches, many in one compiled call, as `SVI.run` takes them."""
    images, depth = jnp.asarray(data), len(down)

    def layer(name: str, start: tuple[np.ndarray, np.ndarray], v: jax.Array) -> jax.Array:
        weight = numpyro.param(f"{name}_weight", jnp.asarray(start[0]))
        return v @ weight.T + numpyro.param(f"{name}_bias", jnp.asarray(start[1]))

    def model() -> None:
        logits = numpyro.param("prior", jnp.asarray(prior))
        with numpyro.plate("data", len(images), subsample_size=batch_size):
            x = numpyro.subsample(images, event_dim=1)
            for i in reversed(range(depth)):
                h = numpyro.sample(f"h{i}", dist.Bernoulli(logits=logits).to_event(1))
                logits = layer(f"down{i}", down[i], 2 * h.astype(x.dtype) - 1)
            numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    def guide() -> None:
        with numpyro.plate("data", len(images), subsample_size=batch_size):
            v = numpyro.subsample(images, event_dim=1) - jnp.asarray(data_mean)
            for i in range(depth):
                h = numpyro.sample(f"h{i}", dist.Bernoulli(logits=layer(f"up{i}", up[i], v)).to_event(1))
                v = 2 * h.astype(images.dtype) - 1

    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), loss)
    start = svi.init(jax.random.key(0))

    @jax.jit
    def many(state: Any, count: jax.Array) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, s: svi.update(s)[0], state)

    return lambda count: jax.block_until_ready(many(start, jnp.asarray(count, jnp.int32)))
