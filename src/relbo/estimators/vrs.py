r"""VRS: both gradients of the resampled ELBO, with the signs that hold.

With z_1..z_S iid from r, u = log p - log q + T(x), g = log a and A = log p - log q - g(u),

    c^p_k = 1/S + g'(u_k) (A_k - mean A) / (S - 1),    c^q_k = (1 - g'(u_k)) (A_k - mean A) / (S - 1),

that is, for the paper's acceptance, grad_phi = Cov_r(A, a grad log q) and
grad_theta = E_r[grad log p] + Cov_r(A, (1 - a) grad log p). The paper's Theorem 2 prints two of these signs wrong
(docs/errata.md, E1 and E2). With `Always()` acceptance, or T = +inf, this is RLOO.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", Theorem 2, https://arxiv.org/abs/1804.01712.
"""

from typing import ClassVar

from relbo.estimators._accepted import draw_accepted as draw_accepted
from relbo.estimators._accepted import mean_acceptance as mean_acceptance
from relbo.estimators._resampled import VRSInfo as VRSInfo
from relbo.estimators._resampled import VRSState as VRSState
from relbo.estimators._reuse import AbstractAcceptedEstimator
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class VRS(AbstractAcceptedEstimator):
    """Variational rejection sampling, both gradients as the bound has them.

    Args:
        num_samples: S >= 2, accepted draws per datapoint.
        threshold: how T(x) is set.
        acceptance: the acceptance function.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not, it is left out of the gradient and counted.
    """

    bound: ClassVar[Bound] = Bound.R_ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Grover et al. 2018"

    def adjust(self, weights: Coefficients) -> Coefficients:
        """The corrected Theorem 2 as it is."""
        return weights
