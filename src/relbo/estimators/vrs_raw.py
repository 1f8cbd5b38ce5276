r"""VRS whose phi ascends the plain ELBO on raw proposals, which are drawn anyway.

Theta ascends the resampled ELBO on the accepted draws as in `vrs.py`. Phi takes the *first* N proposals of each row,
accepted or not, and ascends the plain ELBO by RLOO:

    c^q_j = (f_j - mean f) / (N - 1),    f = log p - log q,    z_j the j-th proposal, j <= N.

The number N is fixed before anything is drawn, so these are iid from q. The proposals up to the S-th acceptance are
not: where that stopping rule ends depends on them. Accepted and raw draws overlap, which couples the two gradients
but biases neither: theta's is the gradient of the R-ELBO, phi's that of the ELBO. That also holds where a row runs
out: its theta-gradient then comes from fresh draws at T = +inf, its phi-gradient from the raw proposals as ever.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", https://arxiv.org/abs/1804.01712.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.estimators.records import Parts
from relbo.estimators.score import leave_one_out
from relbo.estimators.vrs import AbstractVRS
from relbo.types import Draws


class VRSRaw(AbstractVRS):
    """Variational rejection sampling whose proposal is trained on the raw proposals; settings as `VRS`.

    Example:
        >>> estimator = relbo.VRSRaw(num_samples=2, num_proposals=6, rate=0.5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    unbiased: ClassVar[bool] = False
    paper: ClassVar[str] = "Grover et al. 2018, with RLOO for phi"

    __init__ = AbstractVRS.__init__

    def for_phi(self, draws: Draws, parts: Parts) -> Float[Array, "b k"]:
        """RLOO on the first N places, whatever they hold."""
        raw = leave_one_out(draws.log_w[:, : self.num_proposals])
        return jnp.pad(raw, [(0, 0), (0, parts.uniform.shape[1] - self.num_proposals)])
