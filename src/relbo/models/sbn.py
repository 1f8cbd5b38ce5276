r"""Sigmoid belief networks and their mirrored inference networks.

    p(x, h) = p(h_L) p(h_{L-1} | h_L) ... p(h_1 | h_2) p(x | h_1),     q(h | x) = q(h_1 | x) q(h_2 | h_1) ...

Every conditional is a vector of independent Bernoulli units whose logits are affine in the layer before, or tanh
layers of the same width in between. Binary values enter as 2h - 1, the data centred by their training mean; the
output bias starts at the logit of the pixel means, the top prior is learned from zero, weights are Glorot uniform.

References:
    Neal (1992), "Connectionist learning of belief networks".
    Grover et al. (2018), "Variational Rejection Sampling", section 5.2 and appendix.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import units
from relbo._check import checked_key, is_int, refuse, require
from relbo.models.base import AbstractBernoulliModel, AbstractBernoulliProposal, Layers
from relbo.models.layers import Conditional
from relbo.types import Pair
from relbo.units import Unit, log_bernoulli, uniform_noise


def _signed(h: Float[Array, " d"]) -> Float[Array, " d"]:
    return 2 * h - 1


class SBN(AbstractBernoulliModel):
    """The generative network p(x, h_1, ..., h_L); `downward[l]` gives layer l (x for l = 0) from layer l + 1."""

    downward: tuple[Conditional, ...]
    prior: Float[Array, " top"]
    """Logits of the top layer."""

    def conditionals(self, x: Float[Array, " d"], z: Layers) -> tuple[Float[Array, ""], Layers]:
        """Log p(x | h_1), and the logits of h_1 given h_2, ..., of h_L."""
        above = [_signed(h) for h in z]
        logits = [conditional.logits(h) for conditional, h in zip(self.downward[1:], above[1:], strict=True)]
        return self.downward[0].log_prob(x, above[0]), (*logits, self.prior)

    def log_joint(self, x: Float[Array, " d"], z: Layers) -> Float[Array, ""]:
        """Log p(x, h) in nats, as `conditionals` has it, each layer by `Conditional.log_prob`."""
        terms = [
            conditional.log_prob(value, _signed(above))
            for value, above, conditional in zip((x, *z[:-1]), z, self.downward, strict=True)
        ]
        return sum(terms, log_bernoulli(z[-1], self.prior))

    def check_x(self, x: PyTree[np.ndarray]) -> str | None:
        """Refuses what is no probability: beyond [0, 1] log p(x, h) would exceed 0."""
        for leaf in jax.tree.leaves(x):
            wrong = np.argwhere(~((leaf >= 0) & (leaf <= 1)))
            if wrong.size:
                value, row = leaf[tuple(wrong[0])], wrong[0][0]
                return (
                    f"hold numbers in [0, 1], each the probability of a 1, got {value} in row {row} (counted from 0); "
                    "divide bytes by 255, or binarise them"
                )
        return None

    def sample(self, key: PRNGKeyArray) -> tuple[Float[Array, " d"], Layers]:
        """Ancestral sampling from the top."""
        keys = jax.random.split(key, len(self.downward) + 1)

        def draw(k: PRNGKeyArray, logits: Array) -> Array:
            return jax.random.bernoulli(k, jax.nn.sigmoid(logits)).astype(logits.dtype)

        layers = [draw(keys[0], self.prior)]
        for k, conditional in zip(keys[1:], reversed(self.downward), strict=True):
            layers.append(draw(k, conditional.logits(_signed(layers[-1]))))
        x, *z = reversed(layers)
        return x, tuple(z)

    def mean_x(self, z: Layers) -> Float[Array, " d"]:
        """E[x | h_1], for pictures."""
        return jax.nn.sigmoid(self.downward[0].logits(_signed(z[0])))


class SBNProposal(AbstractBernoulliProposal):
    """The inference network q(h_1 | x) q(h_2 | h_1) ...; `upward[l]` gives the logits of h_{l+1}."""

    upward: tuple[Conditional, ...]
    data_mean: Float[Array, " d"]
    """Centres x; a constant, not trained."""

    def rollout(self, noise: tuple[Any, ...], x: Float[Array, " d"], unit: Unit) -> tuple[Layers, Layers]:
        """Runs the network upwards with the given unit; returns (values, logits)."""
        return self._continue(noise, self.condition(x), unit)

    def condition(self, x: Float[Array, " d"]) -> Float[Array, " h"]:
        """The logits of h_1, all that x decides."""
        return self.upward[0].logits(x - jax.lax.stop_gradient(self.data_mean))

    def sample_and_log_prob(self, key: PRNGKeyArray, condition: Float[Array, " h"]) -> tuple[Layers, Float[Array, ""]]:
        """Draws z and scores it, from the logits of h_1."""
        values, logits = self._continue(self.noise(key), condition, units.hard)
        return values, units.log_bernoulli_layers(values, logits)

    def log_prob(self, z: Layers, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Log q(h | x) in nats, as `rollout` has it, each layer but the first by `Conditional.log_prob`."""
        terms = [
            conditional.log_prob(value, _signed(below))
            for value, below, conditional in zip(z[1:], z[:-1], self.upward[1:], strict=True)
        ]
        return sum(terms, log_bernoulli(z[0], self.condition(x)))

    def _continue(self, noise: tuple[Any, ...], first: Float[Array, " h"], unit: Unit) -> tuple[Layers, Layers]:
        logits, values = [first], [unit(first, noise[0])]
        for layer_noise, conditional in zip(noise[1:], self.upward[1:], strict=True):
            logits.append(conditional.logits(_signed(values[-1])))
            values.append(unit(logits[-1], layer_noise))
        return tuple(values), tuple(logits)

    def noise(self, key: PRNGKeyArray) -> Layers:
        """Uniform noise for every unit."""
        biases = [conditional.output.bias for conditional in self.upward]
        ends = np.cumsum([b.size for b in biases])
        return tuple(jnp.split(uniform_noise(key, (int(ends[-1]),), biases[0].dtype), ends[:-1]))


def sbn(
    key: PRNGKeyArray,
    widths: Sequence[int],
    data_mean: Float[Array, " d"],
    *,
    num_hidden: int = 0,
) -> Pair:
    """A sigmoid belief network and its mirrored inference network.

    Args:
        key: randomness of the initial weights.
        widths: units of each stochastic layer, the one next to the data first.
        data_mean: mean of each binary observable over the training set.
        num_hidden: deterministic tanh layers inside each conditional; 0 is the paper's linear network.

    Returns:
        A `Pair` whose z is a tuple of one vector of 0s and 1s for each layer.

    Example:
        >>> pair = relbo.sbn(key, [5, 3], jnp.full(8, 0.5))
        >>> [layer.shape for layer in pair.proposal.sample(key, jnp.ones(8))]
        [(5,), (3,)]
    """
    checked_key(key, "sbn: key")
    require(
        isinstance(widths, Sequence) and 0 < len(widths) <= 100 and all(is_int(w, at_least=1) for w in widths),
        "sbn: widths",
        "a non-empty list of integers >= 1",
        widths,
    )
    require(is_int(num_hidden, at_least=0), "sbn: num_hidden", "an integer >= 0", num_hidden)
    is_array = isinstance(data_mean, jax.Array | np.ndarray | Sequence) and not isinstance(data_mean, str | bytes)
    require(is_array, "sbn: data_mean", "a vector with one mean per observable", data_mean)
    try:
        mean = jnp.asarray(data_mean)
    except (TypeError, ValueError):
        refuse("sbn: data_mean", "a vector with one mean per observable", data_mean)
    mean = mean.astype(jnp.result_type(float) if not jnp.issubdtype(mean.dtype, jnp.floating) else mean.dtype)
    require(
        mean.ndim == 1 and mean.size > 0,
        "sbn: data_mean",
        "a vector with one mean per observable",
        mean.shape,
    )
    is_share = isinstance(mean, jax.core.Tracer) or bool(jnp.all((mean >= 0) & (mean <= 1)))
    require(is_share, "sbn: data_mean", "means of 0s and 1s, so numbers in [0, 1]", data_mean)

    sizes = [mean.size, *widths]
    key_down, key_up = jax.random.split(key)
    keys_down, keys_up = jax.random.split(key_down, len(widths)), jax.random.split(key_up, len(widths))
    steps = list(zip(sizes[:-1], sizes[1:], strict=True))
    downward = [
        Conditional.glorot(k, above, below, num_hidden) for k, (below, above) in zip(keys_down, steps, strict=True)
    ]
    upward = [Conditional.glorot(k, below, above, num_hidden) for k, (below, above) in zip(keys_up, steps, strict=True)]

    share = jnp.clip(mean, 0.001, 0.999)
    downward[0] = eqx.tree_at(lambda c: c.output.bias, downward[0], jnp.log(share) - jnp.log1p(-share))
    pair = Pair(
        SBN(tuple(downward), jnp.zeros(widths[-1])),
        SBNProposal(tuple(upward), mean),
    )
    return jax.tree.map(lambda leaf: leaf.astype(mean.dtype), pair)
