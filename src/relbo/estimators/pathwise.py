r"""Pathwise: the reparameterised gradient of the ELBO, for continuous z.

With z_k = transform(noise_k, x; phi),

    grad mean_k [log p(x, z_k) - log q(z_k | x)],

through z_k and, in phi, also through log q itself. The latter part has mean zero; without it (`drop_score`) the
gradient is still unbiased, and free of noise where q is the posterior.

References:
    Kingma and Welling (2014), "Auto-encoding variational Bayes", https://arxiv.org/abs/1312.6114.
    Roeder, Wu and Duvenaud (2017), "Sticking the landing", https://arxiv.org/abs/1703.09194.
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


class Pathwise(AbstractNoiseEstimator):
    """The reparameterised gradient of the ELBO.

    Args:
        num_samples: K >= 1, draws per datapoint.
        drop_score: leave out the derivative of log q in phi at fixed z ("sticking the landing").
    """

    num_samples: int = eqx.field(static=True, default=1)
    drop_score: bool = eqx.field(static=True, default=False)

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractReparameterizedProposal
    paper: ClassVar[str] = "Kingma and Welling 2014"

    def surrogate(
        self, pair: Pair, draws: PyTree, state: EmptyState, batch: Batch
    ) -> tuple[Float[Array, " b"], EmptyState, Info]:
        """The log weight along the path."""
        z = transform_noise(pair.proposal, draws, batch.x)
        scorer = freeze(pair.proposal) if self.drop_score else pair.proposal
        log_p, log_q = log_densities(Pair(pair.model, scorer), batch.x, z)
        log_w = log_p - log_q
        info = plain_info(bounds.elbo(jax.lax.stop_gradient(log_w)), self.num_samples)
        return jnp.mean(log_w, axis=-1), state, info
