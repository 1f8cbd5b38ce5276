"""What ARM and DisARM share: an antithetic partner for each layer."""

import abc

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from relbo import units
from relbo.estimators._logits import AbstractPlainLogitEstimator, Signal, continue_from, hard_draw, stack
from relbo.models.base import Layers
from relbo.types import Pair

Vector = Float[Array, " d"]
"""One number for each unit of a layer."""


class AbstractAntitheticEstimator(AbstractPlainLogitEstimator):
    r"""An estimator that compares a draw with its antithetic partners, one for each layer.

    The draw is h_i = 1[u_i < sigmoid(l_i)]. Its partner for layer i keeps the layers below, has
    1[1 - u_i < sigmoid(l_i)] at layer i, and runs on upwards with the same noise. Both are draws from q, and

        gamma_i = (f(h) - f(partner_i)) weight(l_i, u_i, h_i, partner's h_i),

    for a `weight` that the file supplies. L layers cost L + 1 evaluations of f, all of them used for theta.
    """

    num_samples: int = eqx.field(static=True, default=1)

    @abc.abstractmethod
    def weight(self, logits: Vector, noise: Vector, value: Vector, partner: Vector) -> Vector:
        """What the difference of the two f is multiplied by, for one layer."""

    def signal(self, pair: Pair, x: PyTree, noise: Layers) -> Signal:
        """One draw and its L partners."""
        z, logits, log_w = hard_draw(pair, x, noise)
        gradient, draws, log_ws = [], [z], [log_w]
        for layer, (u, logit, value) in enumerate(zip(noise, logits, z, strict=True)):
            other = units.hard(logit, 1 - u)
            partner, partner_log_w = continue_from(pair, x, z, layer, other, noise, units.hard)
            gradient.append((log_w - partner_log_w) * self.weight(logit, u, value, other))
            draws.append(partner)
            log_ws.append(partner_log_w)
        return Signal(tuple(gradient), stack(*draws), stack(*log_ws))
