r"""Estimators of Bernoulli proposals that work on logits.

For layers h_1..h_L with logits l_i(h_{i-1}; phi), every method here is an estimate gamma_i of the gradient of the
bound in the logits of each layer given the layers below, and

    phi   sum_i <gamma_i, grad l_i>,        theta   mean over draws of grad log p(x, h).

Since E[grad_phi log q] = 0, a gamma need only estimate the gradient of E[f(h)] with f = log p - log q held fixed. A
file supplies `signal`, for one datapoint and one noise; `_tuned.py` does the same with learned controls.
"""

import abc
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import bounds, units
from relbo.estimators._score import plain_info
from relbo.estimators._surrogate import AbstractSurrogateEstimator, State, draw_noise, each
from relbo.models.base import AbstractBernoulliProposal, AbstractProposal, Layers
from relbo.types import Batch, Bound, EmptyState, Info, Pair, Streams


class Signal(NamedTuple):
    """What one noise says about one datapoint."""

    gradient: Layers
    """gamma_i, the gradient in the logits of each layer, at the first of the draws below."""
    z: PyTree
    """(m, ...) draws from q, for theta; they may depend on each other."""
    log_w: Float[Array, " m"]
    """Their log p - log q."""


class AbstractLogitEstimator(AbstractSurrogateEstimator[State]):
    """An unbiased estimator of the ELBO that draws `Signal`s; supplies `surrogate`."""

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractBernoulliProposal

    def surrogate(
        self, pair: Pair, draws: Signal, state: State, batch: Batch
    ) -> tuple[Float[Array, " b"], State, Info]:
        """Linear in the logits and in log p."""

        def one(x: PyTree, signal: Signal) -> Array:
            first = jax.tree.map(lambda leaf: leaf[0], signal.z)
            _, logits = pair.proposal.rollout(first, x, units.replay)  # type: ignore[attr-defined]
            for_phi = sum(jnp.sum(g * logit) for g, logit in zip(signal.gradient, logits, strict=True))
            return for_phi + jnp.mean(jax.vmap(lambda z: pair.model.log_joint(x, z))(signal.z))

        values = jnp.mean(each(one, batch.x, draws), axis=-1)
        log_w = draws.log_w.reshape(values.shape[0], -1)
        return values, state, plain_info(bounds.elbo(log_w), log_w.shape[1])


class AbstractPlainLogitEstimator(AbstractLogitEstimator[EmptyState]):
    """A logit estimator that remembers nothing; a file supplies `signal`."""

    @abc.abstractmethod
    def signal(self, pair: Pair, x: PyTree, noise: Layers) -> Signal:
        """What one noise says about one datapoint."""

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> EmptyState:
        """Nothing is remembered."""
        return EmptyState.of(num_data)

    def draw(self, streams: Streams, pair: Pair, state: EmptyState, batch: Batch) -> tuple[Signal, EmptyState]:
        """K signals for each datapoint."""
        noise = draw_noise(streams.propose, pair.proposal, batch.x, self.num_samples)
        return each(lambda x, n: self.signal(pair, x, n), batch.x, noise), state


def hard_draw(pair: Pair, x: PyTree, noise: Layers) -> tuple[Layers, Layers, Float[Array, ""]]:
    """A draw from q, its logits and its log p - log q."""
    z, logits = pair.proposal.rollout(noise, x, units.hard)  # type: ignore[attr-defined]
    return z, logits, pair.model.log_joint(x, z) - units.log_bernoulli_layers(z, logits)


def continue_from(
    pair: Pair, x: PyTree, z: Layers, layer: int, value: Float[Array, " d"], noise: Layers, unit: units.Unit
) -> tuple[Layers, Float[Array, ""]]:
    """Puts `value` in at `layer` and makes the layers above anew by `unit`; returns this z and its log p - log q."""
    kept = (*z[:layer], value, *z[layer + 1 :])
    mixed = tuple(units.Mixed(jnp.asarray(i <= layer), v, n) for i, (v, n) in enumerate(zip(kept, noise, strict=True)))
    values, logits = pair.proposal.rollout(mixed, x, units.mixed(unit))  # type: ignore[attr-defined]
    return values, pair.model.log_joint(x, values) - units.log_bernoulli_layers(values, logits)


def stack(*draws: PyTree) -> PyTree:
    """Values along a new first axis."""
    return jax.tree.map(lambda *v: jnp.stack(v), *draws)
