r"""What REBAR and RELAX share: a reparameterised control variate, tuned by descending the squared gradient.

A unit's bit is h = 1[y > 0] with y = l - logit(u) logistic. For layer i let ytilde be y given the bit, as a
differentiable function of l (`units.logistic_given`), and c_i any function of y_i, of the bits below and of noise.
Then

    gamma_i = (f(h) - c_i(ytilde_i)) (h_i - mu_i) + d/dl c_i(y_i) - d/dl c_i(ytilde_i),    mu_i = sigmoid(l_i),

is unbiased for every c_i, since c_i(ytilde_i) and c_i(y_i) have the same law. So c_i may be anything that makes
gamma small: its parameters descend sum_i |gamma_i|^2, whose gradient is that of the variance. ytilde is made from the
same noise as y, so that both are equal in value and only their derivatives differ.

References:
    Tucker et al. (2017), "REBAR", https://arxiv.org/abs/1703.07370.
    Grathwohl et al. (2018), "Backpropagation through the void", https://arxiv.org/abs/1711.00123.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import units
from relbo._check import is_real, require
from relbo.estimators._learned import adam_step, float_type
from relbo.estimators._logits import AbstractLogitEstimator, Signal, continue_from, hard_draw, stack
from relbo.estimators._surrogate import draw_noise, each
from relbo.models.base import Layers
from relbo.types import Batch, Pair, Streams


class Relaxation(NamedTuple):
    """Controls of f at relaxed units, one for each layer."""

    log_temperature: Float[Array, " layers"]
    scale: Float[Array, " layers"]


class TunedState(NamedTuple):
    """What a tuned estimator remembers between steps."""

    controls: Any
    """Parameters of the control variate."""
    optimiser: optax.OptState


class AbstractTunedEstimator(AbstractLogitEstimator[TunedState]):
    """A logit estimator with a learned control; a file supplies `controls` and `control`.

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: initial temperature of the relaxed units.
        learning_rate: Adam step size of the controls; 0 leaves them as they are.
        second_moment_decay: Adam's beta_2.
    """

    num_samples: int = eqx.field(static=True, default=1)
    temperature: float = eqx.field(static=True, default=0.5)
    learning_rate: float = eqx.field(static=True, default=1e-3)
    second_moment_decay: float = eqx.field(static=True, default=0.99999)

    @abc.abstractmethod
    def controls(self, key: PRNGKeyArray, pair: Pair, widths: list[int]) -> Any:
        """Controls before the first step, for layers of the given widths."""

    @abc.abstractmethod
    def control(
        self, controls: Any, pair: Pair, x: PyTree, z: Layers, layer: int, y: Float[Array, " d"], noise: Layers
    ) -> Float[Array, ""]:
        """c_i(y), for the given layer and the bits z below it; `noise` above it may be used."""

    def __check_init__(self) -> None:
        name = type(self).__name__
        require(
            is_real(self.temperature) and 0 < self.temperature < float("inf"),
            f"{name}: temperature",
            "a finite number > 0",
            self.temperature,
        )
        require(
            is_real(self.learning_rate) and self.learning_rate >= 0,
            f"{name}: learning_rate",
            "a number >= 0",
            self.learning_rate,
        )

    def optimiser(self) -> optax.GradientTransformation:
        """What moves the controls."""
        return optax.adam(self.learning_rate, b2=self.second_moment_decay)

    def relaxation(self, pair: Pair, widths: list[int]) -> Relaxation:
        """The initial temperature and scale 1, for every layer."""
        ones = jnp.ones(len(widths), float_type(pair))
        return Relaxation(jnp.log(self.temperature * ones), ones)

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> TunedState:
        """Untrained controls."""
        shapes = jax.eval_shape(pair.proposal.noise, key)  # type: ignore[attr-defined]
        controls = self.controls(key, pair, [layer.shape[0] for layer in shapes])
        return TunedState(controls, self.optimiser().init(controls))

    def draw(self, streams: Streams, pair: Pair, state: TunedState, batch: Batch) -> tuple[Signal, TunedState]:
        """K signals for each datapoint, under controls that they do not influence; then one step of the controls."""
        noise = draw_noise(streams.propose, pair.proposal, batch.x, self.num_samples)

        def square(controls: Any) -> tuple[Array, Signal]:
            signals = each(lambda x, n: self.signal(controls, pair, x, n), batch.x, noise)
            squares = sum(jnp.sum(jnp.square(g)) for g in signals.gradient)
            return squares / signals.log_w.size, signals

        descent, signals = jax.grad(square, has_aux=True)(state.controls)
        return signals, TunedState(*adam_step(self.optimiser(), descent, state.controls, state.optimiser))

    def signal(self, controls: Any, pair: Pair, x: PyTree, noise: Layers) -> Signal:
        """One draw, and the control of every layer at y and at ytilde."""
        z, logits, log_w = hard_draw(pair, x, noise)
        gradient = []
        for i, (logit, h, u) in enumerate(zip(logits, z, noise, strict=True)):
            v = units.noise_given(logit, h, u)

            def free(at: Array, i: int = i, u: Array = u) -> Array:
                return self.control(controls, pair, x, z, i, units.logistic(at, u), noise)

            def given(at: Array, i: int = i, h: Array = h, v: Array = v) -> Array:
                return self.control(controls, pair, x, z, i, units.logistic_given(at, h, v), noise)

            value, slope_given = jax.value_and_grad(given)(logit)
            score = h - jax.nn.sigmoid(logit)
            gradient.append((log_w - value) * score + jax.grad(free)(logit) - slope_given)
        return Signal(tuple(gradient), stack(z), log_w[None])


def relaxed_weight(
    relaxation: Relaxation, pair: Pair, x: PyTree, z: Layers, layer: int, y: Float[Array, " d"], noise: Layers
) -> Float[Array, ""]:
    """Scale * f at bits below `layer`, sigmoid(y / tau) at it, and relaxed units above it."""
    temperature = jnp.exp(relaxation.log_temperature[layer])
    soft = jax.nn.sigmoid(y / temperature)
    _, log_w = continue_from(pair, x, z, layer, soft, noise, units.relaxed(temperature))
    return relaxation.scale[layer] * log_w
