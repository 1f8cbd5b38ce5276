"""NumPyro programs with Bernoulli latents, and their exact ELBO from every value that the latents can take."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density

LOG3 = jnp.log(3.0)
"""The logit of 3/4: with logits of 0 and +-log 3 a quarter of the noise decides nothing within itself."""
NEARLY_0 = 1e-12
"""At a logit of exactly 0 NumPyro's own density, from which the exact ELBO comes, has a wrong derivative."""
X = jnp.array([[0.3, -1.2], [1.1, 0.4], [-0.7, 0.9]])


def exact_elbo(params, model, guide, shapes, *args, **kwargs):
    """Sum over all values of the latents; `shapes` names their shapes."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    states = jnp.asarray(list(itertools.product([0, 1], repeat=sum(sizes.values()))))

    def one(bits):
        parts = jnp.split(bits, np.cumsum(list(sizes.values()))[:-1])
        values = {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        log_p, _ = log_density(model, args, kwargs, {**params, **values})
        log_q, _ = log_density(guide, args, kwargs, {**params, **values})
        return jnp.exp(log_q) * (log_p - log_q)

    return jnp.sum(jax.vmap(one)(states))


# independent units of a row, two sites of different shapes; the second stands in a plate of its own
FLAT_PARAMS = {
    "a_logits": jnp.array([NEARLY_0, LOG3]),
    "c_logits": jnp.array([[NEARLY_0], [-LOG3], [LOG3]]),
    "w": jnp.array([0.7, -0.4, 1.2]),
    "bias": jnp.array(0.3),
}
FLAT_SHAPES = {"a": (3, 2), "c": (1, 3)}


def flat_model(x, subsample_size=None):
    w, bias = numpyro.param("w", FLAT_PARAMS["w"]), numpyro.param("bias", FLAT_PARAMS["bias"])
    with numpyro.plate("rows", 3, dim=-1, subsample_size=subsample_size):
        x = numpyro.subsample(x, event_dim=1)
        a = numpyro.sample("a", dist.Bernoulli(0.3 * jnp.ones(2)).to_event(1))
        with numpyro.plate("extra", 1, dim=-2):
            c = numpyro.sample("c", dist.Bernoulli(logits=bias))
        mean = a[:, 0] * w[0] * a[:, 1] + a[:, 1] * w[1] * c[0] + c[0] * w[2]
        numpyro.sample("x", dist.Normal(mean[:, None], 1.0).to_event(1), obs=x)


def flat_guide(x, subsample_size=None):
    a, c = numpyro.param("a_logits", FLAT_PARAMS["a_logits"]), numpyro.param("c_logits", FLAT_PARAMS["c_logits"])
    with numpyro.plate("rows", 3, dim=-1, subsample_size=subsample_size) as rows:
        numpyro.sample("a", dist.Bernoulli(logits=a).to_event(1))
        with numpyro.plate("extra", 1, dim=-2):
            numpyro.sample("c", dist.Bernoulli(logits=c[rows, 0]))


# a sigmoid belief network: the second layer depends on both units of the first, in model and guide
DEEP_PARAMS = {
    "top": jnp.array([0.4]),
    "down": jnp.array([0.8, -0.5]),
    "out": jnp.array([[1.1, -0.3], [0.2, 0.9]]),
    "first": jnp.array([NEARLY_0, -LOG3]),
    "up": jnp.array([[LOG3, LOG3]]),
    "up_bias": jnp.array([NEARLY_0 - LOG3]),
}
DEEP_SHAPES = {"h1": (3, 2), "h2": (3, 1)}


def deep_model(x, subsample_size=None):
    top, down, out = (numpyro.param(name, DEEP_PARAMS[name]) for name in ("top", "down", "out"))
    with numpyro.plate("rows", 3, subsample_size=subsample_size):
        x = numpyro.subsample(x, event_dim=1)
        h2 = numpyro.sample("h2", dist.Bernoulli(logits=top).to_event(1))
        h1 = numpyro.sample("h1", dist.Bernoulli(logits=h2 * down).to_event(1))
        numpyro.sample("x", dist.Normal(h1 @ out, 1.0).to_event(1), obs=x)


def deep_guide(x, subsample_size=None):
    first, up, bias = (numpyro.param(name, DEEP_PARAMS[name]) for name in ("first", "up", "up_bias"))
    with numpyro.plate("rows", 3, subsample_size=subsample_size):
        h1 = numpyro.sample("h1", dist.Bernoulli(logits=first).to_event(1))
        numpyro.sample("h2", dist.Bernoulli(logits=h1 @ up.T + bias).to_event(1))


# a shared bit beside two bits of each row
BOTH_PARAMS = {
    "g_logit": jnp.array(0.4),
    "slope": jnp.array([0.5, -1.0]),
    "shift": jnp.array(0.8),
    "mean": jnp.array(1.3),
}
BOTH_SHAPES = {"g": (), "z": (3, 2)}


def both_model(x, subsample_size=None):
    mean = numpyro.param("mean", BOTH_PARAMS["mean"])
    g = numpyro.sample("g", dist.Bernoulli(0.4))
    with numpyro.plate("rows", 3, subsample_size=subsample_size):
        x = numpyro.subsample(x, event_dim=1)
        z = numpyro.sample("z", dist.Bernoulli(logits=jnp.full(2, -0.3)).to_event(1))
        numpyro.sample("x", dist.Normal(mean * z * z[:, ::-1] + g * z, 1.0).to_event(1), obs=x)


def both_guide(x, subsample_size=None):
    slope, shift = numpyro.param("slope", BOTH_PARAMS["slope"]), numpyro.param("shift", BOTH_PARAMS["shift"])
    g = numpyro.sample("g", dist.Bernoulli(logits=numpyro.param("g_logit", BOTH_PARAMS["g_logit"])))
    with numpyro.plate("rows", 3, subsample_size=subsample_size):
        x = numpyro.subsample(x, event_dim=1)
        numpyro.sample("z", dist.Bernoulli(logits=slope * x + shift * g).to_event(1))


# no plate that all latents share: the whole program is one row; a site outside the plate depends on all of them
ONE_PARAMS = {"p": jnp.array([0.3, 0.6, 0.2]), "scale": jnp.array(0.7)}
ONE_SHAPES = {"s": (), "t": (3,)}


def one_model(x):
    scale = numpyro.param("scale", ONE_PARAMS["scale"])
    s = numpyro.sample("s", dist.Bernoulli(0.6))
    with numpyro.plate("items", 3):
        t = numpyro.sample("t", dist.Bernoulli(logits=s - 0.5))
    numpyro.sample("x", dist.Normal(scale * jnp.sum(t) * (1.0 + s), 1.0), obs=x[0, 0])


def one_guide(x):
    p = numpyro.param("p", ONE_PARAMS["p"])
    with numpyro.plate("items", 3):
        t = numpyro.sample("t", dist.Bernoulli(probs=p))
    numpyro.sample("s", dist.Bernoulli(probs=0.1 + 0.25 * jnp.sum(t)))
