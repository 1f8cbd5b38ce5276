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
from jaxtyping import Array, Float, PRNGKeyArray

from relbo import bounds
from relbo._check import is_int, require
from relbo._types import Batch, Bound, Coefficients, Draws, EmptyState, Info, Pair, Streams
from relbo.estimators._score import AbstractScoreEstimator, draw_iid, leave_one_out, plain_info
from relbo.models.base import AbstractProposal


class RLOO(AbstractScoreEstimator[EmptyState]):
    """REINFORCE with a leave-one-out baseline.

    Args:
        num_samples: K >= 2, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=2)

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Kool et al. 2019"

    def __check_init__(self) -> None:
        require(is_int(self.num_samples, at_least=2), "RLOO: num_samples", "an integer >= 2", self.num_samples)

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
        """Uniform weights for the model, centred log weights for the proposal."""
        f = log_p - log_q
        weights = Coefficients(model=jnp.full_like(f, 1 / self.num_samples), proposal=leave_one_out(f))
        return weights, state, plain_info(bounds.elbo(f), self.num_samples)
