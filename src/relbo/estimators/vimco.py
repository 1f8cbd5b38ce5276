r"""VIMCO: the multi-sample bound with a leave-one-out control variate.

With f_k = log p(x, z_k) - log q(z_k | x), L = log mean_k exp f_k and w = softmax f,

    c^p_k = w_k,    c^q_k = L - L_(-k) - w_k,

where L_(-k) is L with f_k replaced by the geometric mean of the other weights.

Reference:
    Mnih and Rezende (2016), "Variational inference for Monte Carlo objectives", https://arxiv.org/abs/1602.06725,
    equations 8 to 10.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo import bounds
from relbo._check import is_int, require
from relbo._types import Batch, Bound, Coefficients, Draws, EmptyState, Info, Pair, Streams
from relbo.estimators._score import AbstractScoreEstimator, draw_iid, plain_info
from relbo.models.base import AbstractProposal


class VIMCO(AbstractScoreEstimator[EmptyState]):
    """Variational inference for Monte Carlo objectives.

    Args:
        num_samples: K >= 2, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=5)

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Mnih and Rezende 2016"

    def __check_init__(self) -> None:
        require(is_int(self.num_samples, at_least=2), "VIMCO: num_samples", "an integer >= 2", self.num_samples)

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> EmptyState:
        """Nothing is remembered."""
        return EmptyState()

    def draw(self, streams: Streams, pair: Pair, state: EmptyState, batch: Batch) -> tuple[Draws, EmptyState]:
        """K draws from q."""
        return draw_iid(streams.propose, pair.proposal, batch.x, self.num_samples), state

    def coefficients(
        self,
        log_p: Float[Array, "b k"],
        log_q: Float[Array, "b k"],
        draws: Draws,
        state: EmptyState,
        batch: Batch,
    ) -> tuple[Coefficients, EmptyState, Info]:
        """Normalised weights for the model, credit of each draw for the proposal."""
        f = log_p - log_q
        normalised = jax.nn.softmax(f, axis=-1)
        bound = bounds.iwae(f)
        credit = bound[:, None] - bound_without(f)
        return Coefficients(normalised, credit - normalised), state, plain_info(bound, self.num_samples)


def bound_without(f: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """L_(-k), the bound with f_k replaced by the mean of the other log weights."""
    size = f.shape[-1]
    others = (jnp.sum(f, axis=-1, keepdims=True) - f) / (size - 1)
    replaced = jnp.where(jnp.eye(size, dtype=bool), others[:, :, None], f[:, None, :])
    return bounds.iwae(replaced)
