r"""VRS with a wake step for phi: the proposal imitates what was accepted.

With z_1..z_K iid from r, theta ascends the resampled ELBO as in `vrs.py`, and

    c^q_k = 1/K,    that is, phi ascends E_r[log q(z | x)], lowering KL(r || q).

Since r lies between q and the posterior, this is the wake step of reweighted wake-sleep with r in the place of the
self-normalised weights, and without their bias towards q. A low T starves the phi-gradient of VRS, which vanishes
like e^{2T}; this one grows as r leaves q. It is not the gradient of the bound.

References:
    Grover et al. (2018), "Variational Rejection Sampling", https://arxiv.org/abs/1804.01712.
    Bornschein and Bengio (2015), "Reweighted wake-sleep", https://arxiv.org/abs/1406.2751.
"""

from typing import ClassVar

from jaxtyping import Array, Float

from relbo.estimators.records import Parts
from relbo.estimators.vrs import AbstractVRS
from relbo.types import Draws


class VRSWake(AbstractVRS):
    """Variational rejection sampling whose proposal is trained on the accepted draws; settings as `VRS`.

    Example:
        >>> estimator = relbo.VRSWake(num_samples=2, num_proposals=6, rate=0.5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    unbiased: ClassVar[bool] = False
    paper: ClassVar[str] = "Grover et al. 2018, with the wake step of Bornschein and Bengio 2015"

    __init__ = AbstractVRS.__init__

    def for_phi(self, draws: Draws, parts: Parts) -> Float[Array, "b k"]:
        """Uniform weights."""
        return parts.uniform
