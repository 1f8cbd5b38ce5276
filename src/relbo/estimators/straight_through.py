r"""Straight-through: the derivative of the mean in the place of a derivative of the sample.

    h = 1[u < sigmoid(l)] forwards,    dh/dl = sigmoid'(l) backwards,

and phi ascends f = log p(x, h) - log q(h | x) along that path. Theta's gradient is that of the ELBO; phi's is
biased, unless f is linear in each unit. (The direct derivative of log q in phi has mean zero and is left out.)

Reference:
    Bengio, Leonard and Courville (2013), "Estimating or propagating gradients through stochastic neurons for
    conditional computation", https://arxiv.org/abs/1308.3432.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds, units
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.path import AbstractPathEstimator
from relbo.models.base import Layers
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import Needs, RowView, freeze


class StraightThrough(AbstractPathEstimator[EmptyState]):
    """The straight-through gradient of the ELBO; `log_joint` must be differentiable in z.

    Args:
        num_samples: K >= 1, draws per datapoint.

    Example:
        >>> estimator = relbo.StraightThrough(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)

    unbiased: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Bengio et al. 2013"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    init = remember_nothing

    def draw(self, streams: Streams, view: RowView, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K noises for each datapoint."""
        return view.noise(streams.propose, self.num_samples), state

    def surrogate(self, view: RowView, draws: PyTree) -> tuple[Float[Array, " b"], Info]:
        """The log weight along the straight-through path."""

        def one(pair: Any, x: PyTree, noise: Layers) -> Array:
            constant = freeze(pair.proposal)
            hard, _ = constant.rollout(noise, x, units.hard)
            z, _ = pair.proposal.rollout(hard, x, units.straight)
            return pair.model.log_joint(x, z) - constant.log_prob(z, x)

        log_w = view.each(one, draws)
        return jnp.mean(log_w, axis=-1), plain_info(bounds.elbo(jax.lax.stop_gradient(log_w)), self.num_samples)
