r"""DisARM: ARM with its noise integrated out given the pair of draws.

With h = 1[u < sigmoid(l)] and its antithetic partner h' = 1[1 - u < sigmoid(l)],

    gamma = 1/2 (f(h) - f(h')) (-1)^{h'} 1[h != h'] sigmoid(|l|),

which is the mean of ARM's gamma given h and h', hence never worse: units where the two agree get no noise at all.

References:
    Dong, Mnih and Tucker (2020), "DisARM: an antithetic gradient estimator for binary latent variables",
    https://arxiv.org/abs/2006.10680.
    Yin, Ho and Zhou (2020) have it independently as U2G.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from relbo import bounds
from relbo.estimators import bernoulli
from relbo.estimators.base import check_num_samples, remember_nothing
from relbo.estimators.bernoulli import Signal, Vector
from relbo.estimators.path import AbstractPathEstimator
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import Needs, RowView


class DisARM(AbstractPathEstimator[EmptyState]):
    """Rao-Blackwellised ARM.

    Args:
        num_samples: K >= 1, antithetic sets of L + 1 draws per datapoint.

    Example:
        >>> estimator = relbo.DisARM(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Dong et al. 2020"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    init = remember_nothing

    def draw(self, streams: Streams, view: RowView, state: EmptyState, batch: Batch) -> tuple[Signal, EmptyState]:
        """K antithetic sets for each datapoint."""
        noise = view.noise(streams.propose, self.num_samples)
        return view.each(lambda pair, x, n: bernoulli.antithetic(pair, x, n, self.weight), noise), state

    def surrogate(self, view: RowView, draws: Signal) -> tuple[Float[Array, " b"], Info]:
        """Linear in the logits and in log p."""
        return bernoulli.surrogate(view, draws)

    def weight(self, logits: Vector, noise: Vector, value: Vector, partner: Vector) -> Vector:
        """Half of sigmoid(|l|), signed, where the draws differ."""
        return 0.5 * (value - partner) * jax.nn.sigmoid(jnp.abs(logits))
