"""What a user writes: a model and a proposal, for one x and one z at a time.

Batches come from `jax.vmap`. Both x and z may be any pytree of arrays.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import units

Layers = tuple[Float[Array, " _"], ...]
"""One vector for each stochastic layer, the one next to x first."""


class AbstractModel(eqx.Module):
    """The joint density p_theta(x, z); its arrays are theta."""

    always_finite: ClassVar[bool] = False
    """Whether log p and its gradient are finite at every z that q can draw: what the accept test computed can then
    serve the gradient too, also where z is rejected and its weight is 0."""

    @abc.abstractmethod
    def log_joint(self, x: PyTree, z: PyTree) -> Float[Array, ""]:
        """Log p(x, z) in nats; it may be unnormalised, and -inf where z is impossible."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        """Draws (x, z) from the model."""


class AbstractBernoulliModel(AbstractModel):
    """A model whose z = (h_1, ..., h_L) are layers of Bernoulli units, each given those above it.

    A subclass supplies `conditionals`; the joint density follows. `Concrete` needs it to relax the model's units too.
    """

    @abc.abstractmethod
    def conditionals(self, x: PyTree, z: Layers) -> tuple[Float[Array, ""], Layers]:
        """Log p(x | z), and the logits of each layer given the layers above; z may lie inside (0, 1)."""

    def log_joint(self, x: PyTree, z: Layers) -> Float[Array, ""]:
        """Log p(x, h) in nats."""
        log_p, logits = self.conditionals(x, z)
        return log_p + units.log_bernoulli_layers(z, logits)


class AbstractProposal(eqx.Module):
    """The proposal q_phi(z | x), normalised; its arrays are phi."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, x: PyTree) -> PyTree:
        """Draws z from q(z | x)."""

    @abc.abstractmethod
    def log_prob(self, z: PyTree, x: PyTree) -> Float[Array, ""]:
        """Log q(z | x) in nats."""

    def sample_and_log_prob(self, key: PRNGKeyArray, x: PyTree) -> tuple[PyTree, Float[Array, ""]]:
        """Draws z and its log q(z | x); a proposal that can share work between the two replaces this."""
        z = self.sample(key, x)
        return z, self.log_prob(z, x)

    def condition(self, x: PyTree) -> PyTree:
        """All that q(z | x) needs of x, by default x; a proposal whose work on x is dear does it here, once per x."""
        return x

    def sample_and_log_prob_given(self, key: PRNGKeyArray, condition: PyTree) -> tuple[PyTree, Float[Array, ""]]:
        """Draws z and its log q(z | x) from what `condition(x)` returned; replaced together with it."""
        return self.sample_and_log_prob(key, condition)


class AbstractBatchModel(AbstractModel):
    """A model that is best evaluated for all rows of a batch together, like a program written for whole batches."""

    @abc.abstractmethod
    def log_joint_batch(self, x: PyTree, z: PyTree) -> Float[Array, "b k"]:
        """Log p(x_i, z_ik) of K draws for each of the b rows."""

    @abc.abstractmethod
    def observation_size(self) -> int:
        """How many numbers one x has, for baselines that are functions of x."""


class AbstractBatchProposal(AbstractProposal):
    """A proposal that is best drawn and scored for all rows of a batch together."""

    @abc.abstractmethod
    def sample_batch(self, key: PRNGKeyArray, x: PyTree, num_samples: int) -> PyTree:
        """K independent draws from q(z | x_i) for each row, (b, K, ...)."""

    @abc.abstractmethod
    def log_prob_batch(self, z: PyTree, x: PyTree) -> Float[Array, "b k"]:
        """Log q(z_ik | x_i) of K draws for each of the b rows."""


class AbstractReparameterizedProposal(AbstractProposal):
    """A proposal that is a differentiable function of noise, z = transform(noise, x); sampling follows."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray) -> PyTree:
        """Noise for one z, of a law that depends neither on x nor on phi."""

    @abc.abstractmethod
    def transform(self, noise: PyTree, x: PyTree) -> PyTree:
        """The z that the noise makes, differentiable in phi."""

    def sample(self, key: PRNGKeyArray, x: PyTree) -> PyTree:
        """Draws z from q(z | x)."""
        return self.transform(self.noise(key), x)


class AbstractBatchReparameterizedProposal(AbstractBatchProposal, AbstractReparameterizedProposal):
    """A differentiable function of noise that is best computed for all rows of a batch together."""

    @abc.abstractmethod
    def noise_batch(self, key: PRNGKeyArray, x: PyTree, num_samples: int) -> PyTree:
        """Noise for K draws of all rows, of any shape that `transform_batch` takes."""

    @abc.abstractmethod
    def transform_batch(self, noise: PyTree, x: PyTree) -> PyTree:
        """The draws that the noise makes, (b, K, ...), differentiable in phi."""


class AbstractBernoulliProposal(AbstractProposal):
    """A proposal made of layers of Bernoulli units, z = (h_1, ..., h_L); all that path-wise estimators need.

    A subclass supplies `rollout` and `noise`; sampling and scoring follow from them.
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

    def sample_and_log_prob(self, key: PRNGKeyArray, x: PyTree) -> tuple[Layers, Float[Array, ""]]:
        """Draws z and scores it with the logits of the same pass."""
        values, logits = self.rollout(self.noise(key), x, units.hard)
        return values, units.log_bernoulli_layers(values, logits)
