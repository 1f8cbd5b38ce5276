"""Layers of the library's own networks: affine maps, and Bernoulli units whose logits one gives."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo.units import log_bernoulli_affine


class Affine(eqx.Module):
    """v W + b, with Glorot uniform weights and zero bias.

    The weights of one input lie in a row: then the gradient of W is one product of two matrices as they lie, and
    neither the logits' slopes, which are the largest array of a step, nor W are ever transposed.
    """

    matrix: Float[Array, "in out"]
    bias: Float[Array, " out"]

    @classmethod
    def glorot(cls, key: PRNGKeyArray, size_in: int, size_out: int) -> "Affine":
        """Weights uniform on +-sqrt(6 / (in + out))."""
        limit = (6 / (size_in + size_out)) ** 0.5
        matrix = jax.random.uniform(key, (size_out, size_in), minval=-limit, maxval=limit).T
        return cls(matrix, jnp.zeros(size_out, matrix.dtype))

    def apply(self, v: Float[Array, " in"]) -> Float[Array, " out"]:
        """The affine map of one vector."""
        return v @ self.matrix + self.bias


class Conditional(eqx.Module):
    """Bernoulli units given a layer: their logits are affine, after `num_hidden` tanh layers of the output's width."""

    hidden: tuple[Affine, ...]
    output: Affine

    @classmethod
    def glorot(cls, key: PRNGKeyArray, size_in: int, size_out: int, num_hidden: int) -> "Conditional":
        """Fresh weights."""
        keys = jax.random.split(key, num_hidden + 1)
        sizes = [size_in] + [size_out] * num_hidden
        hidden = tuple(Affine.glorot(k, s, size_out) for k, s in zip(keys[:-1], sizes, strict=False))
        return cls(hidden, Affine.glorot(keys[-1], sizes[-1], size_out))

    def logits(self, v: Float[Array, " in"]) -> Float[Array, " out"]:
        """The logits of the units."""
        return self.output.apply(self._inner(v))

    def log_prob(self, value: Float[Array, " out"], v: Float[Array, " in"]) -> Float[Array, ""]:
        """Log probability of the units' values in nats, differentiated faster than by way of `logits`."""
        return log_bernoulli_affine(value, self.output.matrix, self.output.bias, self._inner(v))

    def _inner(self, v: Float[Array, " in"]) -> Float[Array, " last"]:
        for layer in self.hidden:
            v = jnp.tanh(layer.apply(v))
        return v
