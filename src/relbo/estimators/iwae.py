r"""IWAE: the score-function gradient of the multi-sample bound, without control variate.

With f_k = log p(x, z_k) - log q(z_k | x), L = log mean_k exp f_k and w = softmax f,

    c^p_k = w_k,    c^q_k = L - w_k.

L weighs the score of the joint draw, and -w_k is what L itself owes to q. Every draw gets the same credit L, which
is why the noise grows with K; `VIMCO` mends it, and for a reparameterised proposal `DReG` does.

Reference:
    Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", https://arxiv.org/abs/1509.00519.
"""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float

from relbo import bounds
from relbo.estimators._score import AbstractWeightEstimator
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class IWAE(AbstractWeightEstimator):
    """The K-sample bound by the plain score function.

    Args:
        num_samples: K >= 1, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=5)

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Burda et al. 2016"
    fewest_samples: ClassVar[int] = 1

    def weigh(self, log_w: Float[Array, "b k"]) -> tuple[Coefficients, Float[Array, " b"]]:
        """Normalised weights for the model, the whole bound for the proposal."""
        normalised, bound = jax.nn.softmax(log_w, axis=-1), bounds.iwae(log_w)
        return Coefficients(normalised, bound[:, None] - normalised), bound
