r"""ARM: augment, REINFORCE, merge.

With h = 1[u < sigmoid(l)] and its antithetic partner h' = 1[1 - u < sigmoid(l)],

    gamma = (f(h') - f(h)) (u - 1/2),    u uniform on (0, 1),

one layer at a time, the layers above following each of the two. `DisARM` is better at the same price.

Reference:
    Yin and Zhou (2019), "ARM: augment-REINFORCE-merge gradient for stochastic binary networks",
    https://arxiv.org/abs/1807.11143.
"""

from typing import ClassVar

from relbo.estimators._antithetic import AbstractAntitheticEstimator, Vector


class ARM(AbstractAntitheticEstimator):
    """Augment-REINFORCE-merge.

    Args:
        num_samples: K >= 1, antithetic sets of L + 1 draws per datapoint.
    """

    paper: ClassVar[str] = "Yin and Zhou 2019"

    def weight(self, logits: Vector, noise: Vector, value: Vector, partner: Vector) -> Vector:
        """1/2 - u."""
        return 0.5 - noise
