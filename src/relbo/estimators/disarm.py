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

import jax
import jax.numpy as jnp

from relbo.estimators._antithetic import AbstractAntitheticEstimator, Vector


class DisARM(AbstractAntitheticEstimator):
    """Rao-Blackwellised ARM.

    Args:
        num_samples: K >= 1, antithetic sets of L + 1 draws per datapoint.
    """

    paper: ClassVar[str] = "Dong et al. 2020"

    def weight(self, logits: Vector, noise: Vector, value: Vector, partner: Vector) -> Vector:
        """Half of sigmoid(|l|), signed, where the draws differ."""
        return 0.5 * (value - partner) * jax.nn.sigmoid(jnp.abs(logits))
