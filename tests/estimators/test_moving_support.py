"""A proposal whose support moves with phi, and a model with an edge, against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close
from jax.scipy.stats import norm

import relbo
from relbo.estimators import DReG, Pathwise
from relbo.models.gaussian import linear_gaussian
from relbo.variance import support_moves
from relbo.view import view_of

X = jnp.asarray([0.8])
NODE, WEIGHT = (jnp.asarray(v) for v in np.polynomial.legendre.leggauss(40))


class Smooth(relbo.AbstractModel):
    slope: jax.Array

    def log_joint(self, x, z):
        return norm.logpdf(z) + norm.logpdf(x[0], self.slope * z)

    def sample(self, key):
        raise NotImplementedError


class Interval(relbo.AbstractReparameterizedProposal):
    """Uniform on (m - e^s, m + e^s)."""

    m: jax.Array
    s: jax.Array

    def noise(self, key):
        return jax.random.uniform(key, minval=-1.0)

    def transform(self, noise, x):
        return self.m + jnp.exp(self.s) * noise

    def log_prob(self, z, x):
        return jnp.where(jnp.abs(z - self.m) <= jnp.exp(self.s), -jnp.log(2.0) - self.s, -jnp.inf)


class Everywhere(Interval):
    """The same, but its density does not say where it ends."""

    def log_prob(self, z, x):
        return -jnp.log(2.0) - self.s


PAIR = relbo.Pair(Smooth(jnp.asarray(0.7)), Interval(jnp.asarray(0.4), jnp.asarray(-0.2)))


def elbo(pair):
    z = jax.vmap(lambda e: pair.proposal.transform(e, X))(NODE)
    return jnp.sum(WEIGHT * jax.vmap(lambda v: pair.model.log_joint(X, v))(z)) / 2 + jnp.log(2.0) + pair.proposal.s


@pytest.mark.parametrize("drop_score", [False, True])
def test_only_the_full_derivative_along_the_path_is_right(drop_score):
    estimator = Pathwise(1, drop_score=drop_score)
    x = jnp.broadcast_to(X, (NODE.size, 1))
    got = jax.grad(lambda p: jnp.sum(WEIGHT * estimator.surrogate(view_of(p, x), NODE[:, None])[0]) / 2)(PAIR)
    wanted = jax.grad(elbo)(PAIR)
    assert_trees_close(got.model, wanted.model, rtol=1e-9)
    assert estimator.follows_support == (not drop_score)
    assert bool(jnp.allclose(got.proposal.s, wanted.proposal.s, rtol=1e-9)) == (not drop_score)


@pytest.mark.parametrize("kind", [Interval, Everywhere])
def test_small_steps_of_phi_show_that_a_support_moves(kind):
    # two means within 6 standard errors, for each of two still ones: rate 8e-9
    x = jnp.broadcast_to(X, (10, 1))
    assert support_moves(jax.random.key(0), relbo.Pair(PAIR.model, kind(PAIR.proposal.m, PAIR.proposal.s)), x)
    still = linear_gaussian(jax.random.key(1), 2, jnp.asarray([0.3, -0.2, 0.5]))
    assert not support_moves(jax.random.key(0), still, jnp.ones((10, 3)))


class Truncated(Smooth):
    def log_joint(self, x, z):
        return jnp.where(jnp.abs(z) < 0.5, super().log_joint(x, z), -jnp.inf)


def test_dreg_refuses_an_edge():
    pair = relbo.Pair(Truncated(jnp.asarray(0.7)), PAIR.proposal)
    batch = relbo.Batch(jnp.broadcast_to(X, (20, 1)), jnp.arange(20))
    with pytest.raises(Exception, match="p has an edge inside the support of q"):
        jax.block_until_ready(jax.jit(DReG(2).estimate)(jax.random.key(0), pair, relbo.EmptyState.of(20), batch)[0])
