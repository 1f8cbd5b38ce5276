r"""RELAX: REBAR's control plus a free network.

The control of layer i (`_tuned.py`) is

    c_i(y) = eta_i f(h_1, ..., h_{i-1}, sigmoid(y / tau_i), relaxed layers above) + rho_i(x, h_1, ..., h_{i-1}, y),

with rho_i a network of two tanh layers that starts at zero: at first this is REBAR.

Reference:
    Grathwohl et al. (2018), "Backpropagation through the void", https://arxiv.org/abs/1711.00123. Defaults from its
    published code: two layers of 200 tanh units, temperature 0.5, scale 1, Adam with beta_2 = 0.99999 and, for the
    controls, a step size of 1e-3.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo._check import is_int, require
from relbo.estimators._learned import Perceptron, flat, float_type, observation_size
from relbo.estimators._tuned import AbstractTunedEstimator, Relaxation, relaxed_weight
from relbo.models.base import Layers
from relbo.types import Pair


class RELAXControls(NamedTuple):
    """REBAR's controls and the networks."""

    relaxation: Relaxation
    networks: tuple[Perceptron, ...]
    """rho_i, one for each layer."""


class RELAX(AbstractTunedEstimator):
    """The score function with a relaxed and a learned control; `log_joint` must take z inside (0, 1).

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: initial temperature of the relaxed units.
        learning_rate: Adam step size of all controls; 0 leaves them as they are.
        second_moment_decay: Adam's beta_2.
        width: tanh units in each of the two layers of a network.
    """

    width: int = eqx.field(static=True, default=200)

    paper: ClassVar[str] = "Grathwohl et al. 2018"

    def __check_init__(self) -> None:
        require(is_int(self.width, at_least=1), "RELAX: width", "an integer >= 1", self.width)

    def controls(self, key: PRNGKeyArray, pair: Pair, widths: list[int]) -> RELAXControls:
        """The initial temperature, scale 1, and networks that are zero."""
        sizes = [observation_size(pair.model) + sum(widths[: i + 1]) for i in range(len(widths))]
        keys = jax.random.split(key, len(widths))
        hidden, dtype = [self.width, self.width], float_type(pair)
        networks = tuple(Perceptron.create(k, size, hidden, dtype) for k, size in zip(keys, sizes, strict=True))
        return RELAXControls(self.relaxation(pair, widths), networks)

    def control(
        self,
        controls: RELAXControls,
        pair: Pair,
        x: PyTree,
        z: Layers,
        layer: int,
        y: Float[Array, " d"],
        noise: Layers,
    ) -> Float[Array, ""]:
        """The scaled log weight at relaxed units, plus the network."""
        free = controls.networks[layer].value(flat((x, z[:layer], y), y.dtype))
        return relaxed_weight(controls.relaxation, pair, x, z, layer, y, noise) + free
