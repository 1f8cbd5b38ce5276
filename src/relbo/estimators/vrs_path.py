r"""VRS along the path: the gradient of the resampled ELBO for z that are a differentiable function of noise.

With z_1..z_K iid from r, z = transform(noise, x; phi), u = log w + T(x), g = log a and A = log w - g(u), theta is as in
`vrs.py` and

    grad_phi = sum_k c_k (d/dz log w(z_k)) (dz_k/dphi),
    c_k = (1 - g'(u_k))^2 / K + (g'(u_k) (1 - g'(u_k)) - g''(u_k)) (A_k - mean A) / (K - 1),

the phi inside log w held fixed. For the paper's acceptance the weights are those of a^2 + 2 (A - E A) a (1 - a). It
follows from the score form, Cov_r(A, (1 - g') grad log q) = E_q[h grad log q] / Z_R with h = (A - E_r A) a (1 - g'), by
E_q[h grad_phi log q] = E_q[(dh/dz) (dz/dphi)], since dA = (1 - g') d log w and da = a g' d log w. It is unbiased for
every K >= 2, needs a smooth acceptance, and is exactly 0 in every sample where q is the posterior. It is not always
quieter than the score form: in few dimensions, or far from the posterior, that one may win (`relbo variance` measures
both).

Integrating by parts asks for an h that is smooth along the path. Where p has an edge inside the support of q, as a
uniform, truncated or bounded density has under a Gaussian q, h jumps to 0 there and the form above misses a boundary
term, at every T. So from the step after the first impossible proposal, log p = -inf, the weights are those of `vrs.py`,
for grad log q, to the end of the run. A step's own draws must not decide on its form: given their number the accepted
draws are iid from r whether or not an impossible one was seen beside them, so where the path form were used it would
keep its error. A jump of p between two values that are not 0 raises no flag, and leaves the gradient biased: use `VRS`.

Rows that reject nothing, T = +inf, also get - sum_k grad_phi log q(z_k) / N over their N proposals, so for them this is
`Pathwise()`. Its mean is 0. It is there for the start of a run: of a guide that is far too narrow, d/dz log w is mostly
noise, z's distance from the mean in units of s^2, which the term takes away again. Near the posterior it is the noise,
but there T is finite. A row that runs out of proposals, and falls back to T = +inf, goes without.

References:
    Grover et al. (2018), "Variational Rejection Sampling", https://arxiv.org/abs/1804.01712.
    Jankowiak and Phan (2024), "Reparameterized variational rejection sampling", https://arxiv.org/abs/2309.14612.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo.acceptance import in_one_axis
from relbo.estimators.records import Parts
from relbo.estimators.vrs import AbstractVRS
from relbo.types import Draws
from relbo.view import Needs


class VRSPath(AbstractVRS):
    """Variational rejection sampling along the path of z; settings as `VRS`.

    Example:
        >>> estimator = relbo.VRSPath(num_samples=2, num_proposals=6, rate=0.5)
        >>> gradient, _, info = estimator.estimate(key, gaussian, estimator.init(key, gaussian, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.PATH
    paper: ClassVar[str] = "Jankowiak and Phan 2024, for any acceptance"

    __init__ = AbstractVRS.__init__

    def __check_init__(self) -> None:
        self.acceptance.curvature(jnp.zeros(()))  # refused at once where there is none

    def for_phi(self, draws: Draws, parts: Parts) -> Float[Array, "b k"]:
        """Weights of d/dz log w . dz/dphi."""
        kept = 1 - parts.slope
        bend = parts.slope * kept - in_one_axis(self.acceptance.curvature, parts.u)
        return kept**2 * parts.uniform + bend * parts.centred
