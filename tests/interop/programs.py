"""Small NumPyro programs whose latents can be enumerated, and the same models written for relbo's oracle."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import relbo
from relbo import exact

NUM_ROWS, NUM_STATES = 4, 3
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

    def log_joint(self, x, z):
        log_prior = jax.nn.log_softmax(self.params["prior"])[z]
        return log_prior - 0.5 * (x - self.params["means"][z]) ** 2 - 0.5 * jnp.log(2 * jnp.pi)

    def sample(self, key):
        raise NotImplementedError


class RowProposal(relbo.AbstractProposal):
    params: dict

    def sample(self, key, x):
        return jax.random.categorical(key, x * self.params["slope"] + self.params["offset"])

    def log_prob(self, z, x):
        return jax.nn.log_softmax(x * self.params["slope"] + self.params["offset"])[z]


def exact_total(bound, params, *args):
    """Sum over rows of one of `relbo.exact`'s bounds."""
    pair = relbo.Pair(RowModel(params), RowProposal(params))
    return sum(bound(pair, x, STATES, *args) for x in X)


def wake_gradient(params, num_samples):
    """Expected RWS gradient: normalised weights times both scores, over all tuples of draws."""
    index = exact.tuples(NUM_STATES, num_samples)

    def surrogate(p, x):
        frozen = relbo.Pair(RowModel(params), RowProposal(params))
        log_q = exact.log_proposal(frozen.proposal, x, STATES)
        log_w = exact.log_joint(frozen.model, x, STATES) - log_q
        weight = jnp.exp(jnp.sum(log_q[index], axis=-1))[:, None] * jax.nn.softmax(log_w[index], axis=-1)
        both = exact.log_joint(RowModel(p), x, STATES) + exact.log_proposal(RowProposal(p), x, STATES)
        return jnp.sum(weight * both[index])

    return jax.grad(lambda p: sum(surrogate(p, x) for x in X))(params)
