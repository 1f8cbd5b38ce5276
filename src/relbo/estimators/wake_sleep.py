r"""Wake-sleep: the model learns awake from data, the proposal asleep from the model's own dreams.

    theta   sum_k w_k grad log p(x, z_k),         z_k ~ q(z | x),    w = softmax_k(log p(x, z_k) - log q(z_k | x))
    phi     mean_k grad log q(z'_k | x'_k),       (x'_k, z'_k) ~ p(x, z)

At K = 1 this is the original algorithm; for K > 1 its wake phase is the reweighted one, which ascends the K-sample
bound without bias. The sleep phase lowers E_{p(x)} KL(p(z | x) || q(z | x)) over dreamt data: it is not the gradient
of the bound, and never looks at x. One dream is had for each draw; `model.sample` must dream x as the data are.

References:
    Hinton, Dayan, Frey and Neal (1995), "The wake-sleep algorithm for unsupervised neural networks".
    Bornschein and Bengio (2015), "Reweighted wake-sleep", https://arxiv.org/abs/1406.2751.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds
from relbo.estimators.base import check_num_samples, normalised, plain_info, remember_nothing
from relbo.estimators.path import AbstractPathEstimator
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import AbstractView, Needs, RowView


class WakeSleep(AbstractPathEstimator[EmptyState]):
    """Wake-sleep, with a reweighted wake phase for more than one draw.

    Args:
        num_samples: K >= 1, draws from q and dreams per datapoint.

    Example:
        >>> estimator = relbo.WakeSleep(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)

    unbiased: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Hinton et al. 1995"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    @property
    def bound(self) -> bounds.AbstractBound:
        """The K-sample bound."""
        return bounds.IS(self.num_samples)

    init = remember_nothing

    def draw(self, streams: Streams, view: AbstractView, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K draws from q, and K dreams."""
        return (view.draw(streams.propose, self.num_samples), view.dreams(streams.other, self.num_samples)), state

    def surrogate(self, view: RowView, draws: PyTree) -> tuple[Float[Array, " b"], Info]:
        """Weighted log p of the draws, plus mean log q of the dreams."""
        awake, (dreamt_x, dreamt_z) = draws
        log_p, log_q = view.log_densities(awake)
        log_w = jax.lax.stop_gradient(log_p - log_q)
        asleep = view.each(lambda pair, _, x, z: pair.proposal.log_prob(z, x), dreamt_x, dreamt_z)
        wake = jnp.sum(normalised(log_w) * log_p, axis=-1)
        return wake + jnp.mean(asleep, axis=-1), plain_info(bounds.iwae(log_w), self.num_samples)
