r"""Bernoulli layers: what the estimators that work on logits share.

For layers h_1..h_L with logits l_i(h_{i-1}; phi), every method here is an estimate gamma_i of the gradient of the
bound in the logits of each layer given the layers below, and

    phi   sum_i <gamma_i, grad l_i>,        theta   mean over draws of grad log p(x, h).

Since E[grad_phi log q] = 0, a gamma need only estimate the gradient of E[f(h)] with f = log p - log q held fixed. A
method is a function from one datapoint and one noise to a `Signal`; `control.py` does the same with learned controls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds, units
from relbo.estimators.base import plain_info
from relbo.models.base import Layers
from relbo.types import Info
from relbo.view import RowView

Vector = Float[Array, " d"]
"""One number for each unit of a layer."""


class Signal(NamedTuple):
    """What one noise says about one datapoint."""

    gradient: Layers
    """gamma_i, the gradient in the logits of each layer, at the first of the draws below."""
    z: PyTree
    """(m, ...) draws from q, for theta; they may depend on each other."""
    log_w: Float[Array, " m"]
    """Their log p - log q."""


def surrogate(view: RowView, signals: Signal) -> tuple[Float[Array, " b"], Info]:
    """Linear in the logits and in log p: its gradient is what the signals say, for phi and for theta."""
    log_w = signals.log_w.reshape(signals.log_w.shape[0], -1)
    bound = bounds.elbo(log_w)
    # rows with an impossible draw are left out, and 0 times their infinite signals would be NaN
    signals = jax.tree.map(
        lambda leaf: jnp.where(jnp.isneginf(bound).reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf), signals
    )

    def one(pair: Any, x: PyTree, signal: Signal) -> Array:
        first = jax.tree.map(lambda leaf: leaf[0], signal.z)
        _, logits = pair.proposal.rollout(first, x, units.replay)
        for_phi = sum(jnp.sum(g * logit) for g, logit in zip(signal.gradient, logits, strict=True))
        return for_phi + jnp.mean(jax.vmap(lambda z: pair.model.log_joint(x, z))(signal.z))

    values = jnp.mean(view.each(one, signals), axis=-1)
    return values, plain_info(bound, log_w.shape[1])


def hard_draw(pair: Any, x: PyTree, noise: Layers) -> tuple[Layers, Layers, Float[Array, ""]]:
    """A draw from q, its logits and its log p - log q."""
    z, logits = pair.proposal.rollout(noise, x, units.hard)
    return z, logits, pair.model.log_joint(x, z) - units.log_bernoulli_layers(z, logits)


def continue_from(
    pair: Any, x: PyTree, z: Layers, layer: int, value: Float[Array, " d"], noise: Layers, unit: units.Unit
) -> tuple[Layers, Float[Array, ""]]:
    """Puts `value` in at `layer` and makes the layers above anew by `unit`; returns this z and its log p - log q."""
    kept = (*z[:layer], value, *z[layer + 1 :])
    mixed = tuple(units.Mixed(jnp.asarray(i <= layer), v, n) for i, (v, n) in enumerate(zip(kept, noise, strict=True)))
    values, logits = pair.proposal.rollout(mixed, x, units.mixed(unit))
    return values, pair.model.log_joint(x, values) - units.log_bernoulli_layers(values, logits)


def antithetic(
    pair: Any, x: PyTree, noise: Layers, weight: Callable[[Vector, Vector, Vector, Vector], Vector]
) -> Signal:
    r"""Compares a draw with its antithetic partners, one for each layer.

    The draw is h_i = 1[u_i < sigmoid(l_i)]. Its partner for layer i keeps the layers below, has
    1[1 - u_i < sigmoid(l_i)] at layer i, and runs on upwards with the same noise. Both are draws from q, and

        gamma_i = (f(h) - f(partner_i)) weight(l_i, u_i, h_i, partner's h_i).

    L layers cost L + 1 evaluations of f, all of them used for theta.
    """
    z, logits, log_w = hard_draw(pair, x, noise)
    gradient, draws, log_ws = [], [z], [log_w]
    for layer, (u, logit, value) in enumerate(zip(noise, logits, z, strict=True)):
        other = units.hard(logit, 1 - u)
        partner, partner_log_w = continue_from(pair, x, z, layer, other, noise, units.hard)
        gradient.append((log_w - partner_log_w) * weight(logit, u, value, other))
        draws.append(partner)
        log_ws.append(partner_log_w)
    return Signal(tuple(gradient), stack(*draws), stack(*log_ws))


def stack(*draws: PyTree) -> PyTree:
    """Values along a new first axis."""
    return jax.tree.map(lambda *v: jnp.stack(v), *draws)
