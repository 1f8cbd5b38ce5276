r"""VRS whose phi ascends the plain ELBO on raw proposals, which are drawn anyway.

Theta ascends the resampled ELBO on the S accepted draws as in `vrs.py`. Phi takes the *first* S proposals of each
row, accepted or not, and ascends the plain ELBO by RLOO:

    c^q_j = (f_j - mean f) / (S - 1),    f = log p - log q,    z_j the j-th proposal, j <= S.

The number S is fixed before anything is drawn, so these are iid from q. The proposals up to the S-th acceptance are
not: where that stopping rule ends depends on them. Accepted and raw draws overlap, which couples the two gradients
but biases neither: theta's is the gradient of the R-ELBO, phi's that of the ELBO. With throw=False an exhausted row
is left out for both, and its raw proposals are then no longer a fair sample.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", https://arxiv.org/abs/1804.01712.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.estimators._resampled import AbstractResampledEstimator, VRSState
from relbo.estimators._score import leave_one_out
from relbo.models.base import AbstractProposal
from relbo.types import Batch, Bound, Coefficients, Draws, Info, Pair, Streams


class VRSRaw(AbstractResampledEstimator):
    """Variational rejection sampling whose proposal is trained on the raw proposals; settings as `VRS`."""

    bound: ClassVar[Bound] = Bound.R_ELBO
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Grover et al. 2018, with RLOO for phi"

    def draw(self, streams: Streams, pair: Pair, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """S accepted draws for each row, followed by its first S proposals."""
        draws, state = self.accept(streams, pair, state, batch)
        raw = draws.extra[-1].first_z
        return draws._replace(z=jax.tree.map(lambda *v: jnp.concatenate(v, axis=1), draws.z, raw)), state

    def coefficients(
        self, log_p: Float[Array, "b k"], log_q: Float[Array, "b k"], draws: Draws, state: VRSState, batch: Batch
    ) -> tuple[Coefficients, VRSState, Info]:
        """VRS for theta on the accepted draws, RLOO for phi on the raw ones."""
        s = self.num_samples
        weights, info = self.resampled(log_p[:, :s], log_q[:, :s], draws)
        raw = leave_one_out(log_p[:, s:] - log_q[:, s:])
        unused = jnp.zeros_like(raw)
        model = jnp.concatenate([weights.model, unused], axis=1)
        return Coefficients(model, jnp.concatenate([unused, raw], axis=1)), state, info
