r"""RELAX: REBAR's control plus a free network.

The control of layer i (`control.py`) is

    c_i(y) = eta_i f(h_1, ..., h_{i-1}, sigmoid(y / tau_i), relaxed layers above) + rho_i(x, h_1, ..., h_{i-1}, y),

with rho_i a network of two tanh layers that starts at zero: at first this is REBAR.

Reference:
    Grathwohl et al. (2018), "Backpropagation through the void", https://arxiv.org/abs/1711.00123. Defaults from its
    published code: two layers of 200 tanh units, temperature 0.5, scale 1, Adam with beta_2 = 0.99999 and, for the
    controls, a step size of 1e-3.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import bounds
from relbo._check import is_int, require
from relbo._tree import flat
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
from relbo.estimators.learned import Perceptron, float_type
from relbo.estimators.path import AbstractPathEstimator
from relbo.models.base import Layers
from relbo.streams import Streams
from relbo.types import AnyPair, Batch, Info, Number
from relbo.view import Needs, RowView, check_needs, num_features


class RELAXControls(NamedTuple):
    """REBAR's controls and the networks."""

    relaxation: Relaxation
    networks: tuple[Perceptron, ...]
    """rho_i, one for each layer."""


class RELAX(AbstractPathEstimator[TunedState]):
    """The score function with a relaxed and a learned control; `log_joint` must take z inside (0, 1).

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: initial temperature of the relaxed units.
        learning_rate: Adam step size of all controls; 0 leaves them as they are.
        second_moment_decay: Adam's beta_2.
        width: tanh units in each of the two layers of a network.

    Example:
        >>> estimator = relbo.RELAX(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)
    temperature: Number = 0.5
    learning_rate: float = eqx.field(static=True, default=1e-3)
    second_moment_decay: float = eqx.field(static=True, default=0.99999)
    width: int = eqx.field(static=True, default=200)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Grathwohl et al. 2018"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_settings(self, self.num_samples, self.temperature, self.learning_rate)
        require(is_int(self.width, at_least=1), "RELAX: width", "an integer >= 1", self.width)

    def optimiser(self) -> optax.GradientTransformation:
        """What moves the controls."""
        return optax.adam(self.learning_rate, b2=self.second_moment_decay)

    def init(self, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> TunedState:
        """Untrained controls."""
        check_needs(self, pair)
        widths = layer_widths(pair, key)
        sizes = [num_features(pair) + sum(widths[: i + 1]) for i in range(len(widths))]
        keys = jax.random.split(key, len(widths))
        hidden, dtype = [self.width, self.width], float_type(pair)
        networks = tuple(Perceptron.create(k, size, hidden, dtype) for k, size in zip(keys, sizes, strict=True))
        controls = RELAXControls(relaxation(pair, len(widths), self.temperature), networks)
        return TunedState(controls, self.optimiser().init(controls))

    def draw(self, streams: Streams, view: RowView, state: TunedState, batch: Batch) -> tuple[Signal, TunedState]:
        """K signals for each datapoint, and one step of the controls."""
        return draw_and_tune(self.control, view, streams.propose, self.num_samples, state, self.optimiser())

    def surrogate(self, view: RowView, draws: Signal) -> tuple[Float[Array, " b"], Info]:
        """Linear in the logits and in log p."""
        return bernoulli.surrogate(view, draws)

    def control(
        self,
        controls: RELAXControls,
        pair: Any,
        x: PyTree,
        z: Layers,
        layer: int,
        y: Float[Array, " d"],
        noise: Layers,
    ) -> Float[Array, ""]:
        """The scaled log weight at relaxed units, plus the network."""
        free = controls.networks[layer].value(flat((x, z[:layer], y), y.dtype))
        return relaxed_weight(controls.relaxation, pair, x, z, layer, y, noise) + free
