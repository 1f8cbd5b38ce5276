r"""A linear Gaussian model with a diagonal Gaussian proposal: a small VAE whose evidence is known.

    z ~ N(0, I),    x | z ~ N(W z + b, diag(s)^2),    q(z | x) = N(V x + c, diag(e^d)^2)

    log p(x) = log N(x; b, W W^T + diag(s)^2)

Reference:
    Tipping and Bishop (1999), "Probabilistic principal component analysis".
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo._check import is_int, require
from relbo.models.base import AbstractModel, AbstractReparameterizedProposal
from relbo.models.layers import Affine
from relbo.types import Pair


def log_normal(value: Float[Array, " d"], mean: Float[Array, " d"], log_scale: Float[Array, " d"]) -> Float[Array, ""]:
    """Log density of independent normal variables."""
    standard = (value - mean) * jnp.exp(-log_scale)
    half_log_two_pi = 0.9189385332046727
    return -jnp.sum(0.5 * jnp.square(standard) + log_scale + half_log_two_pi)


class LinearGaussian(AbstractModel):
    """The generative model; `decoder` is W and b, `log_scale` is log s."""

    decoder: Affine
    log_scale: Float[Array, " d"]

    def log_joint(self, x: Float[Array, " d"], z: Float[Array, " latent"]) -> Float[Array, ""]:
        """Log p(x, z) in nats."""
        zeros = jnp.zeros_like(z)
        return log_normal(z, zeros, zeros) + log_normal(x, self.decoder.apply(z), self.log_scale)

    def sample(self, key: PRNGKeyArray) -> tuple[Float[Array, " d"], Float[Array, " latent"]]:
        """Draws (x, z)."""
        key_z, key_x = jax.random.split(key)
        z = jax.random.normal(key_z, self.decoder.matrix.shape[:1], self.log_scale.dtype)
        x = self.decoder.apply(z)
        return x + jnp.exp(self.log_scale) * jax.random.normal(key_x, x.shape, x.dtype), z

    def log_evidence(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Log p(x), in closed form."""
        weight = self.decoder.matrix.T
        covariance = weight @ weight.T + jnp.diag(jnp.exp(2 * self.log_scale))
        return jnp.asarray(jax.scipy.stats.multivariate_normal.logpdf(x, self.decoder.bias, covariance))


class DiagonalGaussian(AbstractReparameterizedProposal):
    """The proposal; `encoder` is V and c, `log_scale` is d."""

    encoder: Affine
    log_scale: Float[Array, " latent"]

    def noise(self, key: PRNGKeyArray) -> Float[Array, " latent"]:
        """Standard normal noise."""
        return jax.random.normal(key, self.log_scale.shape, self.log_scale.dtype)

    def transform(self, noise: Float[Array, " latent"], x: Float[Array, " d"]) -> Float[Array, " latent"]:
        """Mean plus scaled noise."""
        return self.encoder.apply(x) + jnp.exp(self.log_scale) * noise

    def log_prob(self, z: Float[Array, " latent"], x: Float[Array, " d"]) -> Float[Array, ""]:
        """Log q(z | x) in nats."""
        return log_normal(z, self.encoder.apply(x), self.log_scale)


def linear_gaussian(key: PRNGKeyArray, num_latents: int, data_mean: Float[Array, " d"]) -> Pair:
    """A linear Gaussian model and a diagonal Gaussian proposal.

    Args:
        key: randomness of the initial weights.
        num_latents: length of z.
        data_mean: mean of the data, where the model's mean starts.

    Returns:
        A `Pair` whose z is one vector.

    Example:
        >>> pair = relbo.linear_gaussian(key, 2, jnp.zeros(4))
        >>> pair.proposal.sample(key, jnp.ones(4)).shape
        (2,)
    """
    require(is_int(num_latents, at_least=1), "linear_gaussian: num_latents", "an integer >= 1", num_latents)
    mean = jnp.asarray(data_mean)
    require(
        mean.ndim == 1 and mean.size > 0 and jnp.issubdtype(mean.dtype, jnp.floating),
        "linear_gaussian: data_mean",
        "a vector of floating-point numbers",
        (mean.shape, mean.dtype),
    )
    key_down, key_up = jax.random.split(key)
    decoder = Affine(Affine.glorot(key_down, num_latents, mean.size).matrix, mean)
    pair = Pair(
        LinearGaussian(decoder, jnp.zeros(mean.size)),
        DiagonalGaussian(Affine.glorot(key_up, mean.size, num_latents), jnp.zeros(num_latents)),
    )
    return jax.tree.map(lambda leaf: leaf.astype(mean.dtype), pair)
