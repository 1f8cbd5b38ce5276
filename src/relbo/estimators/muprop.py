r"""MuProp: the score function with a first-order Taylor expansion as control variate.

With hbar the mean-field pass hbar_i = sigmoid(l_i(hbar_{i-1})), fbar = f(hbar) and s_i the total derivative of f in
hbar_i along that pass, the gradient in the logits l_i of the layer i, given the sampled layers below, is

    gamma_i = (f(h) - fbar - s_i (h_i - hbar_i)) (h_i - mu_i) + s_i mu_i (1 - mu_i),    mu_i = sigmoid(l_i(h_{i-1})).

The last term is E[s_i (h_i - hbar_i) (h_i - mu_i)], taken at the *sampled* layer below and not at the mean-field
one: so the estimate is unbiased at any depth.

Reference:
    Gu, Levine, Sutskever and Mnih (2016), "MuProp: unbiased backpropagation for stochastic neural networks",
    https://arxiv.org/abs/1511.05176.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds, units
from relbo.estimators import bernoulli
from relbo.estimators.base import check_num_samples, remember_nothing
from relbo.estimators.bernoulli import Signal, hard_draw, stack
from relbo.estimators.path import AbstractPathEstimator
from relbo.models.base import Layers
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import Needs, RowView


class MuProp(AbstractPathEstimator[EmptyState]):
    """The score function with the mean-field Taylor control variate; `log_joint` must take z inside (0, 1).

    Args:
        num_samples: K >= 1, draws per datapoint.

    Example:
        >>> estimator = relbo.MuProp(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Gu et al. 2016"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    init = remember_nothing

    def draw(self, streams: Streams, view: RowView, state: EmptyState, batch: Batch) -> tuple[Signal, EmptyState]:
        """K signals for each datapoint."""
        return view.each(self.signal, view.noise(streams.propose, self.num_samples)), state

    def surrogate(self, view: RowView, draws: Signal) -> tuple[Float[Array, " b"], Info]:
        """Linear in the logits and in log p."""
        return bernoulli.surrogate(view, draws)

    def signal(self, pair: Any, x: PyTree, noise: Layers) -> Signal:
        """One draw, one mean-field pass forward and back."""
        z, logits, log_w = hard_draw(pair, x, noise)

        def mean_field(offset: Layers) -> tuple[Array, Layers]:
            values, at = pair.proposal.rollout(offset, x, units.shifted)
            return pair.model.log_joint(x, values) - units.log_bernoulli_layers(values, at), values

        (f_bar, z_bar), slopes = jax.value_and_grad(mean_field, has_aux=True)(jax.tree.map(jnp.zeros_like, z))

        def gradient(h: Array, logit: Array, h_bar: Array, slope: Array) -> Array:
            mu = jax.nn.sigmoid(logit)
            return (log_w - f_bar - jnp.sum(slope * (h - h_bar))) * (h - mu) + slope * mu * (1 - mu)

        return Signal(jax.tree.map(gradient, z, logits, z_bar, slopes), stack(z), log_w[None])
