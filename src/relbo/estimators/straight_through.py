r"""Straight-through: the derivative of the mean in the place of a derivative of the sample.

    h = 1[u < sigmoid(l)] forwards,    dh/dl = sigmoid'(l) backwards,

and phi ascends f = log p(x, h) - log q(h | x) along that path. Theta's gradient is that of the ELBO; phi's is
biased, unless f is linear in each unit. (The direct derivative of log q in phi has mean zero and is left out.)

Reference:
    Bengio, Leonard and Courville (2013), "Estimating or propagating gradients through stochastic neurons for
    conditional computation", https://arxiv.org/abs/1308.3432.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds, units
from relbo.estimators._score import plain_info
from relbo.estimators._surrogate import AbstractNoiseEstimator, each, freeze
from relbo.models.base import AbstractBernoulliProposal, AbstractProposal, Layers
from relbo.types import Batch, Bound, EmptyState, Info, Pair


class StraightThrough(AbstractNoiseEstimator):
    """The straight-through gradient of the ELBO; `log_joint` must be differentiable in z.

    Args:
        num_samples: K >= 1, draws per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=1)

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractBernoulliProposal
    paper: ClassVar[str] = "Bengio et al. 2013"

    def surrogate(
        self, pair: Pair, draws: PyTree, state: EmptyState, batch: Batch
    ) -> tuple[Float[Array, " b"], EmptyState, Info]:
        """The log weight along the straight-through path."""
        constant = freeze(pair).proposal

        def one(x: PyTree, noise: Layers) -> Array:
            hard, _ = constant.rollout(noise, x, units.hard)  # type: ignore[attr-defined]
            z, _ = pair.proposal.rollout(hard, x, units.straight)  # type: ignore[attr-defined]
            return pair.model.log_joint(x, z) - constant.log_prob(z, x)

        log_w = each(one, batch.x, draws)
        info = plain_info(bounds.elbo(jax.lax.stop_gradient(log_w)), self.num_samples)
        return jnp.mean(log_w, axis=-1), state, info
