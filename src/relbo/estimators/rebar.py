r"""REBAR: the relaxed model as control variate of the score function.

The control of layer i (`_tuned.py`) is the log weight with that layer and those above relaxed,

    c_i(y) = eta_i f(h_1, ..., h_{i-1}, sigmoid(y / tau_i), relaxed layers above),

with one scale eta_i and one temperature tau_i per layer, both learned. L layers take 2 L relaxed passes.

Reference:
    Tucker et al. (2017), "REBAR: low-variance, unbiased gradient estimates for discrete latent variable models",
    https://arxiv.org/abs/1703.07370. Defaults from its published code: temperature 0.5, scale 1, Adam with
    beta_2 = 0.99999. Its controls take ten times the step size of the model; here they have one of their own. Its
    baseline network is left out.
"""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo.estimators._tuned import AbstractTunedEstimator, Relaxation, relaxed_weight
from relbo.models.base import Layers
from relbo.types import Pair


class REBAR(AbstractTunedEstimator):
    """The score function with a relaxed control; `log_joint` must take z inside (0, 1).

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: initial temperature of the relaxed units.
        learning_rate: Adam step size of temperature and scale; 0 leaves them as they are.
        second_moment_decay: Adam's beta_2.
        learn_temperature: whether the temperature is learned, and not the scale alone.
    """

    learn_temperature: bool = eqx.field(static=True, default=True)

    paper: ClassVar[str] = "Tucker et al. 2017"

    def controls(self, key: PRNGKeyArray, pair: Pair, widths: list[int]) -> Relaxation:
        """The initial temperature and scale 1."""
        return self.relaxation(pair, widths)

    def control(
        self, controls: Relaxation, pair: Pair, x: PyTree, z: Layers, layer: int, y: Float[Array, " d"], noise: Layers
    ) -> Float[Array, ""]:
        """The scaled log weight at relaxed units."""
        if not self.learn_temperature:
            controls = controls._replace(log_temperature=jax.lax.stop_gradient(controls.log_temperature))
        return relaxed_weight(controls, pair, x, z, layer, y, noise)
