r"""ARM: augment, REINFORCE, merge.

With h = 1[u < sigmoid(l)] and its antithetic partner h' = 1[1 - u < sigmoid(l)],

    gamma = (f(h') - f(h)) (u - 1/2),    u uniform on (0, 1),

one layer at a time, the layers above following each of the two. `DisARM` is better at the same price.

Reference:
    Yin and Zhou (2019), "ARM: augment-REINFORCE-merge gradient for stochastic binary networks",
    https://arxiv.org/abs/1807.11143.
"""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from relbo import bounds
from relbo.estimators import bernoulli
from relbo.estimators.base import check_num_samples, remember_nothing
from relbo.estimators.bernoulli import Signal, Vector
from relbo.estimators.path import AbstractPathEstimator
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import Needs, RowView


class ARM(AbstractPathEstimator[EmptyState]):
    """Augment-REINFORCE-merge.

    Args:
        num_samples: K >= 1, antithetic sets of L + 1 draws per datapoint.

    Example:
        >>> estimator = relbo.ARM(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Yin and Zhou 2019"
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
        """1/2 - u."""
        return 0.5 - noise
