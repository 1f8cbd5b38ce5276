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

from relbo import bounds
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.score import AbstractScoreEstimator, draw_from_q
from relbo.types import Batch, Draws, EmptyState, Info, Weights
from relbo.view import Needs


class RWS(AbstractScoreEstimator[EmptyState]):
    """Reweighted wake-sleep, the proposal trained by its wake phase.

    Args:
        num_samples: K >= 1, draws from q per datapoint.

    Example:
        >>> estimator = relbo.RWS(num_samples=5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=5)

    unbiased: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Bornschein and Bengio 2015"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    @property
    def bound(self) -> bounds.AbstractBound:
        """The K-sample bound."""
        return bounds.IS(self.num_samples)

    init = remember_nothing
    draw = draw_from_q

    def weigh(self, draws: Draws, state: EmptyState, batch: Batch) -> tuple[Weights, EmptyState, Info]:
        """Normalised weights for both."""
        log_w = draws.log_w
        normalised = jax.nn.softmax(log_w, axis=-1)
        return Weights(normalised, normalised), state, plain_info(bounds.iwae(log_w), self.num_samples)
