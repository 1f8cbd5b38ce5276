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
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import bounds
from relbo.estimators._score import draw_iid, log_densities, plain_info
from relbo.estimators._surrogate import AbstractSurrogateEstimator, each
from relbo.models.base import AbstractProposal
from relbo.rejection import draw_grid
from relbo.types import Batch, Bound, EmptyState, Info, Pair, Streams


class WakeSleep(AbstractSurrogateEstimator[EmptyState]):
    """Wake-sleep, with a reweighted wake phase for more than one draw.

    Args:
        num_samples: K >= 1, draws from q and dreams per datapoint.
    """

    num_samples: int = eqx.field(static=True, default=1)

    bound: ClassVar[Bound] = Bound.IWAE
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Hinton et al. 1995"

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> EmptyState:
        """Nothing is remembered."""
        return EmptyState.of(num_data)

    def draw(self, streams: Streams, pair: Pair, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K draws from q, and K dreams."""
        awake = draw_iid(streams.propose, pair.proposal, batch.x, self.num_samples).z
        dreams = draw_grid(
            streams.other, lambda key, _: pair.model.sample(key), batch.x, batch.index.shape[0], self.num_samples
        )
        return (awake, dreams), state

    def surrogate(
        self, pair: Pair, draws: PyTree, state: EmptyState, batch: Batch
    ) -> tuple[Float[Array, " b"], EmptyState, Info]:
        """Weighted log p of the draws, plus mean log q of the dreams."""
        awake, (dreamt_x, dreamt_z) = draws
        log_p, log_q = log_densities(pair, batch.x, awake)
        log_w = jax.lax.stop_gradient(log_p - log_q)
        asleep = each(lambda _, x, z: pair.proposal.log_prob(z, x), batch.x, dreamt_x, dreamt_z)
        wake = jnp.sum(jax.nn.softmax(log_w, axis=-1) * log_p, axis=-1)
        return wake + jnp.mean(asleep, axis=-1), state, plain_info(bounds.iwae(log_w), self.num_samples)
