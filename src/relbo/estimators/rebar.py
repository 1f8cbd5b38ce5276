r"""REBAR: the relaxed model as control variate of the score function.

The control of layer i (`control.py`) is the log weight with that layer and those above relaxed,

    c_i(y) = eta_i f(h_1, ..., h_{i-1}, sigmoid(y / tau_i), relaxed layers above),

with one scale eta_i and one temperature tau_i per layer, both learned. L layers take 2 L relaxed passes.

Reference:
    Tucker et al. (2017), "REBAR: low-variance, unbiased gradient estimates for discrete latent variable models",
    https://arxiv.org/abs/1703.07370. Defaults from its published code: temperature 0.5, scale 1, Adam with
    beta_2 = 0.99999. Its controls take ten times the step size of the model; here they have one of their own. Its
    baseline network is left out.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import bounds
from relbo.estimators import bernoulli
from relbo.estimators.bernoulli import Signal
from relbo.estimators.control import (
    Relaxation,
    TunedState,
    check_settings,
    draw_and_tune,
    layer_widths,
    relaxation,
    relaxed_weight,
)
from relbo.estimators.path import AbstractPathEstimator
from relbo.models.base import Layers
from relbo.streams import Streams
from relbo.types import AnyPair, Batch, Info, Number
from relbo.view import Needs, RowView, check_needs


class REBAR(AbstractPathEstimator[TunedState]):
    """The score function with a relaxed control; `log_joint` must take z inside (0, 1).

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: initial temperature of the relaxed units.
        learning_rate: Adam step size of temperature and scale; 0 leaves them as they are.
        second_moment_decay: Adam's beta_2.
        learn_temperature: whether the temperature is learned, and not the scale alone.

    Example:
        >>> estimator = relbo.REBAR(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)
    temperature: Number = 0.5
    learning_rate: float = eqx.field(static=True, default=1e-3)
    second_moment_decay: float = eqx.field(static=True, default=0.99999)
    learn_temperature: bool = eqx.field(static=True, default=True)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Tucker et al. 2017"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_settings(self, self.num_samples, self.temperature, self.learning_rate)

    def optimiser(self) -> optax.GradientTransformation:
        """What moves the controls."""
        return optax.adam(self.learning_rate, b2=self.second_moment_decay)

    def init(self, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> TunedState:
        """Untrained controls."""
        check_needs(self, pair)
        controls = relaxation(pair, len(layer_widths(pair, key)), self.temperature)
        return TunedState(controls, self.optimiser().init(controls))

    def draw(self, streams: Streams, view: RowView, state: TunedState, batch: Batch) -> tuple[Signal, TunedState]:
        """K signals for each datapoint, and one step of the controls."""
        return draw_and_tune(self.control, view, streams.propose, self.num_samples, state, self.optimiser())

    def surrogate(self, view: RowView, draws: Signal) -> tuple[Float[Array, " b"], Info]:
        """Linear in the logits and in log p."""
        return bernoulli.surrogate(view, draws)

    def control(
        self, controls: Relaxation, pair: Any, x: PyTree, z: Layers, layer: int, y: Float[Array, " d"], noise: Layers
    ) -> Float[Array, ""]:
        """The scaled log weight at relaxed units."""
        if not self.learn_temperature:
            controls = controls._replace(log_temperature=jax.lax.stop_gradient(controls.log_temperature))
        return relaxed_weight(controls, pair, x, z, layer, y, noise)
