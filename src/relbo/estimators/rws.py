r"""RWS: reweighted wake-sleep, with the wake update of the proposal.

With f_k = log p(x, z_k) - log q(z_k | x), z_1..z_K iid from q and w = softmax f,

    c^p_k = w_k,    c^q_k = w_k.

The model ascends the K-sample bound; the proposal descends a self-normalised estimate of KL(p(z | x) || q(z | x)),
which is not the gradient of that bound.

Reference:
    Bornschein and Bengio (2015), "Reweighted Wake-Sleep", https://arxiv.org/abs/1406.2751, equations 8 and 10.
"""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from relbo import bounds
from relbo._check import is_int, require
from relbo._types import Batch, Bound, Coefficients, Draws, EmptyState, Info, Pair, Streams
from relbo.estimators._score import AbstractScoreEstimator, draw_iid, plain_info
from relbo.models.base import AbstractProposal


class RWS(AbstractScoreEstimator[EmptyState]):
    """Reweighted wake-sleep, wake-wake.

    Args:
        num_samples: K >= 2, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=5)

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Bornschein and Bengio 2015"

    def __check_init__(self) -> None:
        require(is_int(self.num_samples, at_least=2), "RWS: num_samples", "an integer >= 2", self.num_samples)

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
        """Normalised weights for both."""
        f = log_p - log_q
        normalised = jax.nn.softmax(f, axis=-1)
        return Coefficients(normalised, normalised), state, plain_info(bounds.iwae(f), self.num_samples)
