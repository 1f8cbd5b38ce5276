"""What a user writes: a model and a proposal, for one x and one z at a time.

Batches come from `jax.vmap`. Both x and z may be any pytree of arrays.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo import units

Layers = tuple[Float[Array, " _"], ...]
"""One vector for each stochastic layer, the one next to x first."""


class AbstractModel(eqx.Module):
    """The joint density p_theta(x, z); its arrays are theta.

    Example:
        >>> class Coin(relbo.AbstractModel):
        ...     def log_joint(self, x, z):
        ...         return jnp.log(0.5) + jax.scipy.stats.norm.logpdf(x, z)
        ...     def sample(self, key):
        ...         z = jax.random.bernoulli(key).astype(float)
        ...         return z + jax.random.normal(key), z
        >>> Coin().log_joint(0.0, 1.0).shape
        ()
    """

    @abc.abstractmethod
    def log_joint(self, x: PyTree, z: PyTree) -> Float[Array, ""]:
        """Log p(x, z) in nats; it may be unnormalised, and -inf where z is impossible."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        """Draws (x, z) from the model."""

    def num_features(self) -> int:
        """Numbers in one x; `sample` tells, without being run. A model that cannot draw x says it here."""
        x, _ = jax.eval_shape(self.sample, jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(x))

    def check_x(self, x: PyTree[np.ndarray]) -> str | None:
        """What is wrong with datapoints, as a sentence goes on after "must"; None if the model takes them all.

        `x` has the rows first. By default NaN is refused; a model with a range of x, or to which NaN means that a
        number is missing, says so here.
        """
        for leaf in jax.tree.leaves(x):
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and np.isnan(leaf).any():
                row = np.argwhere(np.isnan(leaf))[0][0]
                return f"hold no NaN, got one in row {row} (counted from 0); remove the row, or override check_x"
        return None


class AbstractBernoulliModel(AbstractModel):
    """A model whose z = (h_1, ..., h_L) are layers of Bernoulli units, each given those above it.

    A subclass supplies `conditionals`; the joint density follows. `Concrete` needs it to relax the model's units too.

    Example:
        >>> isinstance(pair.model, relbo.AbstractBernoulliModel)
        True
        >>> log_p, logits = pair.model.conditionals(x[0], (jnp.zeros(3),))
    """

    @abc.abstractmethod
    def conditionals(self, x: PyTree, z: Layers) -> tuple[Float[Array, ""], Layers]:
        """Log p(x | z), and the logits of each layer given the layers above; z may lie inside (0, 1)."""

    def log_joint(self, x: PyTree, z: Layers) -> Float[Array, ""]:
        """Log p(x, h) in nats."""
        log_p, logits = self.conditionals(x, z)
        return log_p + units.log_bernoulli_layers(z, logits)


class AbstractProposal(eqx.Module):
    """The proposal q_phi(z | x), normalised; its arrays are phi.

    Which z are possible must not depend on phi. A uniform density on (m - s, m + s) with parameters m and s has a
    moving support: scores, and gradients along the path with a part left out, miss what happens at its ends, and of
    all estimators `Pathwise()` alone is right. Take a q that is positive wherever p is. `relbo variance` tells.

    Example:
        >>> class Fair(relbo.AbstractProposal):
        ...     def sample(self, key, x):
        ...         return jax.random.bernoulli(key).astype(float)
        ...     def log_prob(self, z, x):
        ...         return jnp.log(0.5)
        >>> float(Fair().sample(key, 0.0)) in (0.0, 1.0)
        True
    """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, x: PyTree) -> PyTree:
        """Draws z from q(z | x)."""

    @abc.abstractmethod
    def log_prob(self, z: PyTree, x: PyTree) -> Float[Array, ""]:
        """Log q(z | x) in nats."""

    def condition(self, x: PyTree) -> PyTree:
        """All that q(z | x) needs of x, by default x; a proposal whose work on x is dear does it here, once per x."""
        return x

    def sample_and_log_prob(self, key: PRNGKeyArray, condition: PyTree) -> tuple[PyTree, Float[Array, ""]]:
        """Draws z and its log q(z | x) from what `condition(x)` returned; replaced together with it."""
        z = self.sample(key, condition)
        return z, self.log_prob(z, condition)


class AbstractBatchPair(eqx.Module):
    """Model and proposal of a program that runs for all rows of a batch together, like one written in NumPyro.

    Its arrays are theta and phi. It takes the place of a `Pair` wherever an estimator, a threshold or the sampler
    asks for one. Draw j of the batch gives each row its own j-th proposal.

    Example:
        >>> issubclass(relbo.AbstractBatchPair, relbo.Pair)  # it takes a pair's place, and is none
        False
    """

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, x: PyTree, positions: Int[Array, " k"]) -> PyTree:
        """Independent draws from q for every row, (b, k, ...): those at the given positions of the rows' streams."""

    @abc.abstractmethod
    def log_densities(self, x: PyTree, z: PyTree) -> tuple[Float[Array, "b k"], Float[Array, "b k"]]:
        """Log p(x_i, z_ik) and log q(z_ik | x_i) of k draws for each row, differentiable at fixed z."""

    @property
    @abc.abstractmethod
    def num_features(self) -> int:
        """How many numbers `features` makes of one row."""

    @abc.abstractmethod
    def features(self, x: PyTree) -> Float[Array, "b d"]:
        """What is observed in each row, for baselines that are functions of x."""

    @property
    @abc.abstractmethod
    def has_path(self) -> bool:
        """Whether the draws are a differentiable function of noise, by `noise` and `transform`."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, x: PyTree, positions: Int[Array, " k"]) -> PyTree:
        """What is random in `draw` at the same key and positions, of any shape that `transform` takes."""

    @abc.abstractmethod
    def transform(self, noise: PyTree, x: PyTree) -> PyTree:
        """The draws that the noise makes, (b, k, ...), differentiable in phi."""


class AbstractReparameterizedProposal(AbstractProposal):
    """A proposal that is a differentiable function of noise, z = transform(noise, x); sampling follows.

    Example:
        >>> proposal = gaussian.proposal
        >>> bool(jnp.allclose(proposal.transform(proposal.noise(key), x[0]), proposal.sample(key, x[0])))
        True
    """

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray) -> PyTree:
        """Noise for one z, of a law that depends neither on x nor on phi."""

    @abc.abstractmethod
    def transform(self, noise: PyTree, x: PyTree) -> PyTree:
        """The z that the noise makes, differentiable in phi."""

    def sample(self, key: PRNGKeyArray, x: PyTree) -> PyTree:
        """Draws z from q(z | x)."""
        return self.transform(self.noise(key), x)


class AbstractBernoulliProposal(AbstractProposal):
    """A proposal made of layers of Bernoulli units, z = (h_1, ..., h_L); all that path-wise estimators need.

    A subclass supplies `rollout` and `noise`; sampling and scoring follow from them.

    Example:
        >>> isinstance(pair.proposal, relbo.AbstractBernoulliProposal)
        True
        >>> pair.proposal.sample(key, x[0])[0].shape
        (3,)
    """

    @abc.abstractmethod
    def rollout(self, noise: tuple[Any, ...], x: PyTree, unit: units.Unit) -> tuple[Layers, Layers]:
        """Runs the network upwards, `unit(logits, noise)` deciding each layer; returns (values, logits).

        What the noise of a layer is only the unit knows: hand it on as it is.
        """

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray) -> Layers:
        """Uniform noise on (0, 1) for every unit."""

    def sample(self, key: PRNGKeyArray, x: PyTree) -> Layers:
        """Draws z from q(z | x)."""
        return self.rollout(self.noise(key), x, units.hard)[0]

    def log_prob(self, z: Layers, x: PyTree) -> Float[Array, ""]:
        """Log q(z | x), the logits being those at z itself."""
        values, logits = self.rollout(z, x, units.replay)
        return units.log_bernoulli_layers(values, logits)
