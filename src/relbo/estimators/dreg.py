r"""DReG: the doubly reparameterised gradient of the multi-sample bound, for continuous z.

With z_k = transform(noise_k, x; phi), f_k = log p(x, z_k) - log q(z_k | x) and w = softmax f,

    theta   sum_k w_k grad log p(x, z_k),
    phi     sum_k w_k^2 (df_k/dz_k) (dz_k/dphi).

Phi is not differentiated inside log q: that score term is reparameterised a second time, which turns w_k into w_k^2.
The signal-to-noise ratio then grows with K instead of falling.

References:
    Tucker et al. (2019), "Doubly reparameterized gradient estimators for Monte Carlo objectives",
    https://arxiv.org/abs/1810.04152.
    Rainforth et al. (2018), "Tighter variational bounds are not necessarily better".
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds
from relbo.estimators._score import log_densities, plain_info
from relbo.estimators._surrogate import AbstractNoiseEstimator, freeze, transform_noise
from relbo.models.base import AbstractProposal, AbstractReparameterizedProposal
from relbo.types import Batch, Bound, EmptyState, Info, Pair


class DReG(AbstractNoiseEstimator):
    """The doubly reparameterised gradient of the K-sample bound.

    Args:
        num_samples: K >= 1, draws per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=5)

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractReparameterizedProposal
    paper: ClassVar[str] = "Tucker et al. 2019"

    def surrogate(
        self, pair: Pair, draws: PyTree, state: EmptyState, batch: Batch
    ) -> tuple[Float[Array, " b"], EmptyState, Info]:
        """Log p at fixed z for theta, the log weight along the path for phi."""
        z = transform_noise(pair.proposal, draws, batch.x)
        log_p, _ = log_densities(pair, batch.x, freeze(z))
        constant_p, constant_q = log_densities(freeze(pair), batch.x, z)
        path = constant_p - constant_q
        log_w = jax.lax.stop_gradient(path)
        weights = jax.nn.softmax(log_w, axis=-1)
        values = jnp.sum(weights * log_p + jnp.square(weights) * path, axis=-1)
        return values, state, plain_info(bounds.iwae(log_w), self.num_samples)
