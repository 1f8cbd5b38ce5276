r"""REINFORCE: the plain score-function gradient of the ELBO.

With f_k = log p(x, z_k) - log q(z_k | x) and z_1..z_K iid from q,

    c^p_k = 1/K,    c^q_k = f_k / K.

It is the yardstick of variance that every other estimator of the ELBO tries to beat.

References:
    Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
    Ranganath, Gerrish and Blei (2014), "Black box variational inference", https://arxiv.org/abs/1401.0118.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo import bounds
from relbo.estimators._score import AbstractWeightEstimator
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class REINFORCE(AbstractWeightEstimator):
    """The score-function gradient without any control variate.

    Args:
        num_samples: K >= 1, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=1)

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Williams 1992"
    fewest_samples: ClassVar[int] = 1

    def weigh(self, log_w: Float[Array, "b k"]) -> tuple[Coefficients, Float[Array, " b"]]:
        """Uniform weights for the model, log weights for the proposal."""
        uniform = jnp.full_like(log_w, 1 / self.num_samples)
        return Coefficients(model=uniform, proposal=log_w / self.num_samples), bounds.elbo(log_w)
