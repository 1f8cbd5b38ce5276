r"""VRS with a wake step for phi: the proposal imitates what was accepted.

With z_1..z_S iid from r, theta ascends the resampled ELBO as in `vrs.py`, and

    c^q_k = 1/S,    that is, phi ascends E_r[log q(z | x)], lowering KL(r || q).

Since r lies between q and the posterior, this is the wake step of reweighted wake-sleep with r in the place of the
self-normalised weights, and without their bias towards q. A low T starves the phi-gradient of VRS, which vanishes
like e^{2T}; this one grows as r leaves q. It is not the gradient of the bound.

References:
    Grover et al. (2018), "Variational Rejection Sampling", https://arxiv.org/abs/1804.01712.
    Bornschein and Bengio (2015), "Reweighted wake-sleep", https://arxiv.org/abs/1406.2751.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo._types import Batch, Bound, Coefficients, Draws, Info, Pair, Streams
from relbo.estimators._resampled import AbstractResampledEstimator, VRSState
from relbo.models.base import AbstractProposal


class VRSWake(AbstractResampledEstimator):
    """Variational rejection sampling whose proposal is trained on the accepted draws; settings as `VRS`."""

    bound: ClassVar[Bound] = Bound.R_ELBO
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Grover et al. 2018, with the wake step of Bornschein and Bengio 2015"

    def draw(self, streams: Streams, pair: Pair, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """S accepted draws for each row."""
        return self.accept(streams, pair, state, batch)

    def coefficients(
        self, log_p: Float[Array, "b k"], log_q: Float[Array, "b k"], draws: Draws, state: VRSState, batch: Batch
    ) -> tuple[Coefficients, VRSState, Info]:
        """Theta as VRS, uniform weights for phi."""
        weights, info = self.resampled(log_p, log_q, draws)
        return weights._replace(proposal=jnp.full_like(log_q, 1 / self.num_samples)), state, info
