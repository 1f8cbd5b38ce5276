r"""RLOO: the score-function gradient of the ELBO with a leave-one-out baseline.

With f_k = log p(x, z_k) - log q(z_k | x) and z_1..z_K iid from q,

    c^p_k = 1/K,    c^q_k = (f_k - mean_{j != k} f_j) / K = (f_k - mean f) / (K - 1).

This is VRS at T = +inf, and the ablation against which VRS is to be judged.

References:
    Mnih and Rezende (2016), "Variational inference for Monte Carlo objectives", section 2.
    Kool et al. (2019), "Buy 4 REINFORCE samples, get a baseline for free!".
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from relbo import bounds
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.score import AbstractScoreEstimator, draw_from_q, leave_one_out
from relbo.types import Batch, Draws, EmptyState, Info, Weights
from relbo.view import Needs


class RLOO(AbstractScoreEstimator[EmptyState]):
    """REINFORCE with a leave-one-out baseline.

    Args:
        num_samples: K >= 2, draws from q per datapoint.

    Example:
        >>> estimator = relbo.RLOO(num_samples=4)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=2)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Kool et al. 2019"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 2)

    init = remember_nothing
    draw = draw_from_q

    def weigh(self, draws: Draws, state: EmptyState, batch: Batch) -> tuple[Weights, EmptyState, Info]:
        """Uniform weights for the model, centred log weights for the proposal."""
        log_w = draws.log_w
        uniform = jnp.full_like(log_w, 1 / self.num_samples)
        info = plain_info(bounds.elbo(log_w), self.num_samples)
        return Weights(model=uniform, proposal=leave_one_out(log_w)), state, info
