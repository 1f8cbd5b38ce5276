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

from relbo.estimators._reuse import AbstractAcceptedEstimator
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class VRSWake(AbstractAcceptedEstimator):
    """Variational rejection sampling whose proposal is trained on the accepted draws; settings as `VRS`."""

    bound: ClassVar[Bound] = Bound.R_ELBO
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Grover et al. 2018, with the wake step of Bornschein and Bengio 2015"

    def adjust(self, weights: Coefficients) -> Coefficients:
        """Theta as VRS, uniform weights for phi."""
        return weights._replace(proposal=jnp.full_like(weights.proposal, 1 / self.num_samples))
