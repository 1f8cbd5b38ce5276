r"""DReG: the doubly reparameterised gradient of the multi-sample bound, for continuous z.

With z_k = transform(noise_k, x; phi), f_k = log p(x, z_k) - log q(z_k | x) and w = softmax f,

    theta   sum_k w_k grad log p(x, z_k),
    phi     sum_k w_k^2 (df_k/dz_k) (dz_k/dphi).

Phi is not differentiated inside log q: that score term is reparameterised a second time, which turns w_k into w_k^2.
The signal-to-noise ratio then grows with K instead of falling. That takes an integration by parts, which misses a
boundary term where p has an edge inside the support of q (`vrs_path.py`), so an impossible draw is refused.

References:
    Tucker et al. (2019), "Doubly reparameterized gradient estimators for Monte Carlo objectives",
    https://arxiv.org/abs/1810.04152.
    Rainforth et al. (2018), "Tighter variational bounds are not necessarily better".
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds
from relbo._check import refuse_if
from relbo.estimators.base import check_num_samples, normalised, plain_info, remember_nothing
from relbo.estimators.path import AbstractPathEstimator
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import AbstractView, Needs, freeze

EDGE = (
    "DReG: log p is -inf at a draw, so p has an edge inside the support of q, where its gradient in phi is biased. Use "
    "VIMCO, or a proposal with the support of p."
)


class DReG(AbstractPathEstimator[EmptyState]):
    """The doubly reparameterised gradient of the K-sample bound.

    Args:
        num_samples: K >= 1, draws per datapoint.

    Example:
        >>> estimator = relbo.DReG(num_samples=5)
        >>> gradient, _, info = estimator.estimate(key, gaussian, estimator.init(key, gaussian, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=5)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.PATH
    paper: ClassVar[str] = "Tucker et al. 2019"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    @property
    def bound(self) -> bounds.AbstractBound:
        """The K-sample bound."""
        return bounds.IS(self.num_samples)

    init = remember_nothing

    def draw(self, streams: Streams, view: AbstractView, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K noises for each datapoint."""
        return view.noise(streams.propose, self.num_samples), state

    def surrogate(self, view: AbstractView, draws: PyTree) -> tuple[Float[Array, " b"], Info]:
        """Log p at fixed z for theta, the log weight along the path for phi."""
        z = view.transform(draws)
        log_p, _ = view.log_densities(freeze(z))
        constant_p, constant_q = view.frozen().log_densities(z)
        edge = jnp.any(jnp.isneginf(constant_p))
        constant_p = refuse_if(constant_p, edge, EDGE)
        path = constant_p - constant_q
        log_w = jax.lax.stop_gradient(path)
        weights = normalised(log_w)
        values = jnp.sum(weights * log_p + jnp.square(weights) * path, axis=-1)
        return values, plain_info(bounds.iwae(log_w), self.num_samples)
