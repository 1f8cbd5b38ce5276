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

from relbo import bounds
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.score import AbstractScoreEstimator, draw_from_q
from relbo.types import Batch, Draws, EmptyState, Info, Weights
from relbo.view import Needs


class REINFORCE(AbstractScoreEstimator[EmptyState]):
    """The score-function gradient without any control variate.

    Args:
        num_samples: K >= 1, draws from q per datapoint.

    Example:
        >>> estimator = relbo.REINFORCE(num_samples=4)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Williams 1992"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    init = remember_nothing
    draw = draw_from_q

    def weigh(self, draws: Draws, state: EmptyState, batch: Batch) -> tuple[Weights, EmptyState, Info]:
        """Uniform weights for the model, log weights for the proposal."""
        log_w = draws.log_w
        uniform = jnp.full_like(log_w, 1 / self.num_samples)
        info = plain_info(bounds.elbo(log_w), self.num_samples)
        return Weights(model=uniform, proposal=log_w / self.num_samples), state, info
