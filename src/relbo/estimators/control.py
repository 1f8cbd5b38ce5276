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

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import units
from relbo._check import is_number, is_real, require
from relbo.estimators.base import AbstractEstimator, check_num_samples
from relbo.estimators.bernoulli import Signal, continue_from, hard_draw, stack
from relbo.estimators.learned import adam_step, float_type
from relbo.models.base import Layers
from relbo.types import Number
from relbo.view import RowView

Control = Callable[[Any, Any, PyTree, Layers, int, Float[Array, " d"], Layers], Float[Array, ""]]
"""`(controls, pair, x, z, layer, y, noise) -> c_i(y)`, for the bits z below the layer; noise above it may be used."""


class Relaxation(NamedTuple):
    """Controls of f at relaxed units, one for each layer."""

    log_temperature: Float[Array, " layers"]
    scale: Float[Array, " layers"]


class TunedState(NamedTuple):
    """What a tuned estimator remembers between steps."""

    controls: Any
    """Parameters of the control variate."""
    optimiser: optax.OptState


def check_settings(estimator: AbstractEstimator, num_samples: int, temperature: Number, learning_rate: float) -> None:
    """Refuses settings that make no sense."""
    name = type(estimator).__name__
    check_num_samples(estimator, num_samples, 1)
    require(is_number(temperature, above=0), f"{name}: temperature", "a finite number > 0", temperature)
    ok = is_real(learning_rate) and learning_rate >= 0
    require(ok, f"{name}: learning_rate", "a number >= 0", learning_rate)


def layer_widths(pair: Any, key: PRNGKeyArray) -> list[int]:
    """Units of each layer of the proposal."""
    return [layer.shape[0] for layer in jax.eval_shape(pair.proposal.noise, key)]


def relaxation(pair: Any, num_layers: int, temperature: Number) -> Relaxation:
    """The initial temperature and scale 1, for every layer."""
    ones = jnp.ones(num_layers, float_type(pair))
    return Relaxation(jnp.log(jnp.asarray(temperature, ones.dtype) * ones), ones)


def draw_and_tune(
    control: Control,
    view: RowView,
    key: PRNGKeyArray,
    num_samples: int,
    state: TunedState,
    optimiser: optax.GradientTransformation,
) -> tuple[Signal, TunedState]:
    """K signals for each datapoint, under controls that they do not influence; then one step of the controls."""
    noise = view.noise(key, num_samples)

    def square(controls: Any) -> tuple[Array, Signal]:
        signals = view.each(lambda pair, x, n: signal(control, controls, pair, x, n), noise)
        squares = jnp.sum(jnp.stack([jnp.sum(jnp.square(g)) for g in signals.gradient]))
        return squares / signals.log_w.size, signals

    descent, signals = jax.grad(square, has_aux=True)(state.controls)
    return signals, TunedState(*adam_step(optimiser, descent, state.controls, state.optimiser))


def signal(control: Control, controls: Any, pair: Any, x: PyTree, noise: Layers) -> Signal:
    """One draw, and the control of every layer at y and at ytilde."""
    z, logits, log_w = hard_draw(pair, x, noise)
    gradient = []
    for i, (logit, h, u) in enumerate(zip(logits, z, noise, strict=True)):
        v = units.noise_given(logit, h, u)

        def free(at: Array, i: int = i, u: Array = u) -> Array:
            return control(controls, pair, x, z, i, units.logistic(at, u), noise)

        def given(at: Array, i: int = i, h: Array = h, v: Array = v) -> Array:
            return control(controls, pair, x, z, i, units.logistic_given(at, h, v), noise)

        value, slope_given = jax.value_and_grad(given)(logit)
        score = h - jax.nn.sigmoid(logit)
        gradient.append((log_w - value) * score + jax.grad(free)(logit) - slope_given)
    return Signal(tuple(gradient), stack(z), log_w[None])


def relaxed_weight(
    controls: Relaxation, pair: Any, x: PyTree, z: Layers, layer: int, y: Float[Array, " d"], noise: Layers
) -> Float[Array, ""]:
    """Scale * f at bits below `layer`, sigmoid(y / tau) at it, and relaxed units above it."""
    temperature = jnp.exp(controls.log_temperature[layer])
    soft = jax.nn.sigmoid(y / temperature)
    _, log_w = continue_from(pair, x, z, layer, soft, noise, units.relaxed(temperature))
    return controls.scale[layer] * log_w
