r"""RWS: reweighted wake-sleep with two wake phases ("wake-wake").

With w = softmax_k(log p(x, z_k) - log q(z_k | x)) and z_1..z_K iid from q,

    c^p_k = w_k,    c^q_k = w_k.

The model ascends the K-sample bound, without bias. The proposal ascends E_{p(z | x)}[log q(z | x)], by importance
sampling: it lowers KL(p || q) and not the gap of the bound, so as a gradient of the bound it is biased.

References:
    Bornschein and Bengio (2015), "Reweighted wake-sleep", https://arxiv.org/abs/1406.2751.
    Le et al. (2019), "Revisiting reweighted wake-sleep", https://arxiv.org/abs/1805.10469.
"""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float

from relbo import bounds
from relbo.estimators._score import AbstractWeightEstimator
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class RWS(AbstractWeightEstimator):
    """Reweighted wake-sleep, the proposal trained by its wake phase.

    Args:
        num_samples: K >= 1, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=5)

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Bornschein and Bengio 2015"
    fewest_samples: ClassVar[int] = 1

    def weigh(self, log_w: Float[Array, "b k"]) -> tuple[Coefficients, Float[Array, " b"]]:
        """Normalised weights for both."""
        normalised = jax.nn.softmax(log_w, axis=-1)
        return Coefficients(normalised, normalised), bounds.iwae(log_w)
