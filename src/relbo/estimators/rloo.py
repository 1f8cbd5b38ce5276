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
from jaxtyping import Array, Float

from relbo import bounds
from relbo.estimators._score import AbstractWeightEstimator, leave_one_out
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class RLOO(AbstractWeightEstimator):
    """REINFORCE with a leave-one-out baseline.

    Args:
        num_samples: K >= 2, draws from q per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=2)

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Kool et al. 2019"
    fewest_samples: ClassVar[int] = 2

    def weigh(self, log_w: Float[Array, "b k"]) -> tuple[Coefficients, Float[Array, " b"]]:
        """Uniform weights for the model, centred log weights for the proposal."""
        # not a constant, which a compiler would move out of sums: VRS that rejects nothing is to be rounded alike
        uniform = jnp.where(jnp.isnan(log_w), jnp.full_like(log_w, jnp.nan), 1 / self.num_samples)
        return Coefficients(model=uniform, proposal=leave_one_out(log_w)), bounds.elbo(log_w)
