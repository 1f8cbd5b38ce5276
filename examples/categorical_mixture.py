"""Two categorical causes behind one observation, a neural proposal, and the exact posterior to compare with.

A point x in the plane is a[z_1] + b[z_2] plus noise: two unknown tables of five centres each, one entry of each chosen
at random. Given x the two choices depend on each other, since what one does not explain the other must. The proposal
is a network that gives each choice its own probabilities, independently: wrong however long it is trained. VRS trains
both, and then one number, the acceptance rate, sets how far the draws leave the proposal for the posterior. There are
only 25 states of z, so log p(x) and every KL below is exact.

After 60 epochs, as this script prints it:

    acceptance   KL(r || posterior)   log p(x)   estimate
         1.000               0.8358     -3.911     -4.747
         0.500               0.0926     -3.911     -3.945
         0.200               0.0520     -3.911     -3.949
         0.050               0.0408     -3.911     -3.941

The first row is the proposal itself, with its ELBO; "estimate" is the log evidence that `relbo.posterior` gives with
its draws. What is left at the end are states that the proposal hardly ever proposes: rejection cannot bring them back.

Run `python examples/categorical_mixture.py`.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import relbo

STATES, NOISE = 5, 0.7
RATES = (0.5, 0.2, 0.05)
SUPPORT = jnp.stack(jnp.meshgrid(jnp.arange(STATES), jnp.arange(STATES), indexing="ij"), axis=-1).reshape(-1, 2)


class Mixture(relbo.AbstractModel):
    """Log p(x, z) for one x, two numbers, and one z, two integers."""

    first: jax.Array
    second: jax.Array

    def mean(self, z):
        """Where x is expected."""
        return self.first[z[0]] + self.second[z[1]]

    def log_joint(self, x, z):
        """Uniform choices, normal noise."""
        return -2 * jnp.log(float(STATES)) + jnp.sum(jax.scipy.stats.norm.logpdf(x, self.mean(z), NOISE))

    def sample(self, key):
        """Draws (x, z)."""
        key_z, key_x = jax.random.split(key)
        z = jax.random.randint(key_z, (2,), 0, STATES)
        return self.mean(z) + NOISE * jax.random.normal(key_x, (2,)), z


class Guess(relbo.AbstractProposal):
    """Q(z | x): a network with one hidden layer gives the logits of both choices."""

    network: eqx.nn.MLP

    def logits(self, x):
        """A row for each choice."""
        return jax.nn.log_softmax(self.network(x).reshape(2, STATES))

    def sample(self, key, x):
        """Draws z."""
        return jax.random.categorical(key, self.logits(x))

    def log_prob(self, z, x):
        """Log q(z | x)."""
        return jnp.sum(self.logits(x)[jnp.arange(2), z])


def make_pair(key: jax.Array) -> relbo.Pair:
    """Centres near the origin, an untrained network."""
    keys = jax.random.split(key, 3)
    tables = [0.5 * jax.random.normal(k, (STATES, 2)) for k in keys[:2]]
    return relbo.Pair(Mixture(*tables), Guess(eqx.nn.MLP(2, 2 * STATES, 64, 1, jnp.tanh, key=keys[2])))


def exactly(quantity, x: jax.Array, *columns: jax.Array) -> float:
    """Mean over datapoints of a function of `relbo.exact`."""
    return float(jnp.mean(jax.jit(jax.vmap(quantity))(x, *columns)))


def main(epochs: int = 60, num_rows: int = 2_000) -> dict[str, dict[float, float]]:
    """Trains, draws and compares; returns acceptance, KL, and both log evidences for each rate (1 is the proposal)."""
    key_truth, key_data, key_start, key_draw = jax.random.split(jax.random.key(0), 4)
    truth = Mixture(*1.5 * jax.random.normal(key_truth, (2, STATES, 2)))
    x, _ = jax.jit(jax.vmap(truth.sample))(jax.random.split(key_data, num_rows + 200))
    estimator = relbo.VRS(
        num_samples=2, num_proposals=8, threshold=relbo.Rate(0.5, warmup=num_rows // 50 * epochs // 2)
    )
    result = relbo.fit(make_pair(key_start), estimator, x[200:], num_epochs=epochs, optimizer=optax.adam(5e-3))
    pair, test = result.pair, x[:200]

    evidence = exactly(lambda one: relbo.exact.log_evidence(pair.model, one, SUPPORT), test)
    found = {"acceptance": {1.0: 1.0}, "kl": {}, "evidence": {1.0: evidence}, "estimate": {}}
    found["estimate"][1.0] = exactly(lambda one: relbo.exact.elbo(pair, one, SUPPORT), test)
    found["kl"][1.0] = evidence - found["estimate"][1.0]
    for rate in RATES:
        draws = relbo.posterior(key_draw, pair, test, rate=rate, num_samples=200)
        found["acceptance"][rate] = float(draws.acceptance.mean())
        found["kl"][rate] = exactly(lambda one, t: relbo.exact.kl(pair, one, SUPPORT, t), test, draws.threshold)
        found["evidence"][rate], found["estimate"][rate] = evidence, float(draws.log_evidence.mean())
    print("acceptance   KL(r || posterior)   log p(x)   estimate")
    for rate in (1.0, *RATES):
        values = [found[name][rate] for name in ("acceptance", "kl", "evidence", "estimate")]
        print("{:10.3f}   {:18.4f}   {:8.3f}   {:8.3f}".format(*values))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60, help="passes over the data; the second half rejects")
    main(parser.parse_args().epochs)
