r"""VIMCO: the multi-sample bound with a leave-one-out control variate.

With f_k = log p(x, z_k) - log q(z_k | x), L = log mean_k exp f_k and w = softmax f,

    c^p_k = w_k,    c^q_k = L - L_(-k) - w_k,

where L_(-k) is L with exp f_k replaced by the geometric or the arithmetic mean of the other weights. Both are
functions of the other draws alone, hence unbiased; the paper recommends the geometric one. Where none of the others is
possible, w = 0, it is 0: a row counts if one of its draws is possible, so there the score of the only one has no mean
of 0, and any other control would be a bias.

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
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.score import AbstractScoreEstimator, draw_from_q
from relbo.types import Batch, Draws, EmptyState, Info, Weights
from relbo.view import Needs


class VIMCO(AbstractScoreEstimator[EmptyState]):
    """Variational inference for Monte Carlo objectives.

    Args:
        num_samples: K >= 2, draws from q per datapoint.
        control: mean of the other weights that stands in for a draw's own, "geometric" or "arithmetic".

    Example:
        >>> estimator = relbo.VIMCO(num_samples=5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=5)
    control: Literal["geometric", "arithmetic"] = eqx.field(static=True, default="geometric")

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Mnih and Rezende 2016"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 2)
        require(
            self.control in ("geometric", "arithmetic"),
            "VIMCO: control",
            "'geometric' or 'arithmetic'",
            self.control,
        )

    @property
    def bound(self) -> bounds.AbstractBound:
        """The K-sample bound."""
        return bounds.IS(self.num_samples)

    init = remember_nothing
    draw = draw_from_q

    def weigh(self, draws: Draws, state: EmptyState, batch: Batch) -> tuple[Weights, EmptyState, Info]:
        """Normalised weights for the model, credit of each draw for the proposal."""
        log_w = draws.log_w
        normalised, bound = jax.nn.softmax(log_w, axis=-1), bounds.iwae(log_w)
        without = geometric_without(log_w) if self.control == "geometric" else arithmetic_without(log_w)
        return Weights(normalised, bound[:, None] - without - normalised), state, plain_info(bound, self.num_samples)


def geometric_without(f: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """L_(-k), the bound with f_k replaced by the mean of the other log weights."""
    itself = jnp.eye(f.shape[-1], dtype=bool)
    # summed without f_k rather than less f_k, which may be -inf
    others = jnp.sum(jnp.where(itself, 0, f[:, None, :]), axis=-1) / (f.shape[-1] - 1)
    return or_nothing(bounds.iwae(jnp.where(itself, others[:, :, None], f[:, None, :])))


def arithmetic_without(f: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """L_(-k), the bound with w_k replaced by the mean of the other weights: the bound of the others alone."""
    size = f.shape[-1]
    others = jnp.where(jnp.eye(size, dtype=bool), -jnp.inf, f[:, None, :])
    return or_nothing(bounds.iwae(others) + jnp.log(jnp.asarray(size / (size - 1), f.dtype)))


def or_nothing(without: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """L_(-k), and no control at all where none of the other draws is possible and it would be -inf."""
    return jnp.where(jnp.isneginf(without), 0, without)
