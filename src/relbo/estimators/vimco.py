r"""VIMCO: the multi-sample bound with a leave-one-out control variate.

With f_k = log p(x, z_k) - log q(z_k | x), L = log mean_k exp f_k and w = softmax f,

    c^p_k = w_k,    c^q_k = L - L_(-k) - w_k,

where L_(-k) is L with exp f_k replaced by the geometric or the arithmetic mean of the other weights. Both are
functions of the other draws alone, hence unbiased; the paper recommends the geometric one.

Reference:
    Mnih and Rezende (2016), "Variational inference for Monte Carlo objectives", https://arxiv.org/abs/1602.06725,
    equations 8 to 10.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo import bounds
from relbo._check import require
from relbo.estimators._score import AbstractWeightEstimator
from relbo.models.base import AbstractProposal
from relbo.types import Bound, Coefficients


class VIMCO(AbstractWeightEstimator):
    """Variational inference for Monte Carlo objectives.

    Args:
        num_samples: K >= 2, draws from q per datapoint.
        control: mean of the other weights that stands in for a draw's own, "geometric" or "arithmetic".
    """

    num_samples: int = eqx.field(static=True, default=5)
    control: Literal["geometric", "arithmetic"] = eqx.field(static=True, default="geometric")

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Mnih and Rezende 2016"
    fewest_samples: ClassVar[int] = 2

    def __check_init__(self) -> None:
        require(
            self.control in ("geometric", "arithmetic"),
            "VIMCO: control",
            "'geometric' or 'arithmetic'",
            self.control,
        )

    def weigh(self, log_w: Float[Array, "b k"]) -> tuple[Coefficients, Float[Array, " b"]]:
        """Normalised weights for the model, credit of each draw for the proposal."""
        normalised, bound = jax.nn.softmax(log_w, axis=-1), bounds.iwae(log_w)
        without = geometric_without(log_w) if self.control == "geometric" else arithmetic_without(log_w)
        return Coefficients(normalised, bound[:, None] - without - normalised), bound


def geometric_without(f: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """L_(-k), the bound with f_k replaced by the mean of the other log weights."""
    itself = jnp.eye(f.shape[-1], dtype=bool)
    # summed without f_k rather than less f_k, which may be -inf
    others = jnp.sum(jnp.where(itself, 0, f[:, None, :]), axis=-1) / (f.shape[-1] - 1)
    return bounds.iwae(jnp.where(itself, others[:, :, None], f[:, None, :]))


def arithmetic_without(f: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """L_(-k), the bound with w_k replaced by the mean of the other weights: the bound of the others alone."""
    size = f.shape[-1]
    others = jnp.where(jnp.eye(size, dtype=bool), -jnp.inf, f[:, None, :])
    return bounds.iwae(others) + jnp.log(jnp.asarray(size / (size - 1), f.dtype))
