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

from relbo import bounds
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.score import AbstractScoreEstimator, draw_from_q
from relbo.types import Batch, Draws, EmptyState, Info, Weights
from relbo.view import Needs


class IWAE(AbstractScoreEstimator[EmptyState]):
    """The K-sample bound by the plain score function.

    Args:
        num_samples: K >= 1, draws from q per datapoint.

    Example:
        >>> estimator = relbo.IWAE(num_samples=5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=5)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Burda et al. 2016"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    @property
    def bound(self) -> bounds.AbstractBound:
        """The K-sample bound."""
        return bounds.IS(self.num_samples)

    init = remember_nothing
    draw = draw_from_q

    def weigh(self, draws: Draws, state: EmptyState, batch: Batch) -> tuple[Weights, EmptyState, Info]:
        """Normalised weights for the model, the whole bound for the proposal."""
        log_w = draws.log_w
        normalised, bound = jax.nn.softmax(log_w, axis=-1), bounds.iwae(log_w)
        return Weights(normalised, bound[:, None] - normalised), state, plain_info(bound, self.num_samples)
