"""Small NumPyro programs whose latents can be enumerated, and the same models written for relbo's oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import relbo
from relbo import exact

NUM_ROWS, NUM_STATES = 4, 3
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for what runs so little that compiling it is the cost."""


def quick(function):
    """`jax.jit`, compiled in a hurry."""
    return jax.jit(function, compiler_options=QUICK)


X = jnp.array([-1.0, 0.3, 0.8, 2.0])
STATES = jnp.arange(NUM_STATES)

PARAMS = {
    "prior": jnp.array([0.2, -0.4, 0.5]),
    "means": jnp.array([-1.2, 0.1, 1.4]),
    "slope": jnp.array([-0.8, 0.3, 0.9]),
    "offset": jnp.array([0.1, 0.6, -0.2]),
}


def model(x, subsample_size=None):
    """A mixture: z_i ~ Categorical(prior), x_i ~ Normal(means[z_i], 1)."""
    prior = numpyro.param("prior", PARAMS["prior"])
    means = numpyro.param("means", PARAMS["means"])
    with numpyro.plate("data", x.shape[0], subsample_size=subsample_size):
        z = numpyro.sample("z", dist.Categorical(logits=prior))
        numpyro.sample("x", dist.Normal(means[z], 1.0), obs=numpyro.subsample(x, event_dim=0))


def guide(x, subsample_size=None):
    """q(z_i | x_i) = Categorical(softmax(slope x_i + offset))."""
    slope = numpyro.param("slope", PARAMS["slope"])
    offset = numpyro.param("offset", PARAMS["offset"])
    with numpyro.plate("data", x.shape[0], subsample_size=subsample_size):
        logits = numpyro.subsample(x, event_dim=0)[:, None] * slope[None] + offset[None]
        numpyro.sample("z", dist.Categorical(logits=logits))


class RowModel(relbo.AbstractModel):
    params: dict
    shift: jax.Array | float = 0.0

    def log_joint(self, x, z):
        log_prior = jax.nn.log_softmax(self.params["prior"])[z]
        return log_prior - 0.5 * (x - self.shift - self.params["means"][z]) ** 2 - 0.5 * jnp.log(2 * jnp.pi)

    def sample(self, key):
        raise NotImplementedError


class RowProposal(relbo.AbstractProposal):
    params: dict
    shift: jax.Array | float = 0.0

    def logits(self, x):
        return (x - self.shift) * self.params["slope"] + self.params["offset"]

    def sample(self, key, x):
        return jax.random.categorical(key, self.logits(x))

    def log_prob(self, z, x):
        return jax.nn.log_softmax(self.logits(x))[z]


def row_pair(params, shift=0.0):
    return relbo.Pair(RowModel(params, shift), RowProposal(params, shift))


def exact_total(bound, params, *args, shift=0.0):
    """Sum over rows of one of `relbo.exact`'s bounds."""
    return jnp.sum(jax.vmap(lambda x: bound(row_pair(params, shift), x, STATES, *args))(X))


def wake_gradient(params, num_samples):
    """Expected RWS gradient: normalised weights times both scores, over all tuples of draws."""
    index = exact.tuples(NUM_STATES, num_samples)
    frozen = row_pair(params)

    def surrogate(p, x):
        log_q = exact.log_proposal(frozen.proposal, x, STATES)
        log_w = exact.log_joint(frozen.model, x, STATES) - log_q
        weight = jnp.exp(jnp.sum(log_q[index], axis=-1))[:, None] * jax.nn.softmax(log_w[index], axis=-1)
        both = exact.log_joint(RowModel(p), x, STATES) + exact.log_proposal(RowProposal(p), x, STATES)
        return jnp.sum(weight * both[index])

    return quick(jax.grad(lambda p: sum(surrogate(p, x) for x in X)))(params)


SHIFTS = jnp.array([-0.5, 0.9])
SHARED_PARAMS = {**PARAMS, "shift_prior": jnp.array([0.3, -0.1]), "shift_logits": jnp.array([-0.2, 0.4])}


def shared_model(x, subsample_size=None):
    """The mixture with a discrete latent that shifts all rows."""
    logits = numpyro.param("shift_prior", SHARED_PARAMS["shift_prior"])
    shift = SHIFTS[numpyro.sample("shift", dist.Categorical(logits=logits))]
    model(x - shift, subsample_size)


def shared_guide(x, subsample_size=None):
    """Its guide, whose rows also depend on the shift."""
    logits = numpyro.param("shift_logits", SHARED_PARAMS["shift_logits"])
    shift = SHIFTS[numpyro.sample("shift", dist.Categorical(logits=logits))]
    guide(x - shift, subsample_size)


def exact_shared(bound, params, *args):
    """E_q(g)[log p(g) - log q(g) + sum_i L_i(g)]."""
    log_p, log_q = (jax.nn.log_softmax(params[name]) for name in ("shift_prior", "shift_logits"))
    rows = jnp.stack([exact_total(bound, params, *args, shift=shift) for shift in SHIFTS])
    return jnp.sum(jnp.exp(log_q) * (log_p - log_q + rows))


MOVED_PARAMS = {**PARAMS, "loc": jnp.array(0.2), "log_scale": jnp.array(-0.3)}


def moved_model(x, subsample_size=None):
    """The mixture with a Gaussian latent that shifts all rows."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    model(x - shift, subsample_size)


def moved_guide(x, subsample_size=None):
    """Its guide."""
    loc, log_scale = (numpyro.param(name, MOVED_PARAMS[name]) for name in ("loc", "log_scale"))
    shift = numpyro.sample("shift", dist.Normal(loc, jnp.exp(log_scale)))
    guide(x - shift, subsample_size)


def exact_moved(bound, params, *args, num_nodes=40):
    """E_q(g)[log p(g) - log q(g) + sum_i L_i(g)], by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    scale = jnp.exp(params["log_scale"])

    def at(node):
        g = params["loc"] + scale * node
        log_ratio = dist.Normal(0.0, 1.0).log_prob(g) - dist.Normal(params["loc"], scale).log_prob(g)
        return log_ratio + exact_total(bound, params, *args, shift=g)

    return jnp.sum(jnp.asarray(weights / weights.sum()) * jax.vmap(at)(jnp.asarray(nodes)))


PATH_PARAMS = {
    "noise": jnp.array(-0.1),
    "slope": jnp.array(0.4),
    "spread": jnp.array(-0.5),
    "loc": jnp.array(0.2),
    "log_scale": jnp.array(-0.3),
}


def path_model(x, subsample_size=None):
    """Gaussian rows around a shared Gaussian: z_i ~ N(g, 1), x_i ~ N(z_i, e^noise)."""
    g = numpyro.sample("g", dist.Normal(0.0, 1.0))
    noise = numpyro.param("noise", PATH_PARAMS["noise"])
    with numpyro.plate("data", x.shape[0], subsample_size=subsample_size):
        z = numpyro.sample("z", dist.Normal(g, 1.0))
        numpyro.sample("x", dist.Normal(z, jnp.exp(noise)), obs=numpyro.subsample(x, event_dim=0))


def path_guide(x, subsample_size=None):
    """q(g) = N(loc, e^log_scale), q(z_i | x_i, g) = N(g + slope (x_i - g), e^spread)."""
    value = {name: numpyro.param(name, PATH_PARAMS[name]) for name in ("slope", "spread", "loc", "log_scale")}
    g = numpyro.sample("g", dist.Normal(value["loc"], jnp.exp(value["log_scale"])))
    with numpyro.plate("data", x.shape[0], subsample_size=subsample_size):
        rows = numpyro.subsample(x, event_dim=0)
        numpyro.sample("z", dist.Normal(g + value["slope"] * (rows - g), jnp.exp(value["spread"])))


def exact_path(params, num_samples, *, num_nodes=24):
    """E_q(g)[log p(g) - log q(g) + sum_i IWAE_K(x_i | g)], by Gauss-Hermite quadrature over g and K draws."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    nodes, weights = jnp.asarray(nodes), jnp.asarray(weights / weights.sum())
    scale, width = jnp.exp(params["log_scale"]), jnp.exp(params["spread"])

    def at(node):
        g = params["loc"] + scale * node
        centre = g + params["slope"] * (X[:, None] - g)
        z = centre + width * nodes[None]
        log_w = dist.Normal(g, 1.0).log_prob(z) - dist.Normal(centre, width).log_prob(z)
        log_w = log_w + dist.Normal(z, jnp.exp(params["noise"])).log_prob(X[:, None])
        index = exact.tuples(num_nodes, num_samples)
        mean = jax.nn.logsumexp(log_w[:, index], axis=-1) - jnp.log(num_samples)
        rows = mean @ jnp.prod(weights[index], axis=-1)
        return dist.Normal(0.0, 1.0).log_prob(g) - dist.Normal(params["loc"], scale).log_prob(g) + jnp.sum(rows)

    return jnp.sum(weights * jax.vmap(at)(nodes))
