r"""Concrete: binary units relaxed to (0, 1), with relaxed densities for the KL.

Every unit of q becomes s = sigmoid(y), y = (l + logistic noise) / tau, every unit of p likewise with its own
temperature, and the path derivative of

    log p(x | s) + sum_i log p_tau'(y_i | s_{i+1}) - log q_tau(y_i | s_{i-1}),
    log q_tau(y) = log tau + (l - tau y) - 2 softplus(l - tau y),

is taken in theta and phi. The densities are those of y, whose ratio is that of s but which do not overflow. It is a
true lower bound for the relaxed model; for the model with bits it is biased. Info reports the bound of the bits that
the same noise makes.

Reference:
    Maddison, Mnih and Teh (2017), "The Concrete distribution", https://arxiv.org/abs/1611.00712.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds, units
from relbo._check import is_number, require
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.bernoulli import hard_draw
from relbo.estimators.path import AbstractPathEstimator
from relbo.models.base import AbstractBernoulliModel, Layers
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info, Number
from relbo.view import Needs, RowView


class Concrete(AbstractPathEstimator[EmptyState]):
    """The pathwise gradient of the relaxed ELBO; the model must be an `AbstractBernoulliModel`.

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: tau of the proposal's units.
        model_temperature: tau' of the model's units.

    Example:
        >>> estimator = relbo.Concrete(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)
    temperature: Number = 2 / 3
    model_temperature: Number = 1 / 2

    unbiased: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs.BITS
    paper: ClassVar[str] = "Maddison et al. 2017"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)
        for name in ("temperature", "model_temperature"):
            value = getattr(self, name)
            require(is_number(value, above=0), f"Concrete: {name}", "a finite number > 0", value)

    init = remember_nothing

    def draw(self, streams: Streams, view: RowView, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K noises for each datapoint."""
        return view.noise(streams.propose, self.num_samples), state

    def surrogate(self, view: RowView, draws: PyTree) -> tuple[Float[Array, " b"], Info]:
        """The relaxed log weight."""
        if not isinstance(view.pair.model, AbstractBernoulliModel):
            raise ValueError(
                f"Concrete needs a model of type AbstractBernoulliModel, got {type(view.pair.model).__name__}. Derive "
                "the model from it, or use StraightThrough, which needs no relaxed density."
            )

        def one(pair: Any, x: PyTree, noise: Layers) -> Array:
            s, logits = pair.proposal.rollout(noise, x, units.relaxed(self.temperature))
            y = [units.logistic(logit, n) / self.temperature for logit, n in zip(logits, noise, strict=True)]
            value, model_logits = pair.model.conditionals(x, s)
            for at, model_logit, logit in zip(y, model_logits, logits, strict=True):
                value = value + log_density(at, model_logit, self.model_temperature)
                value = value - log_density(at, logit, self.temperature)
            return value

        log_w = view.frozen().each(lambda pair, x, noise: hard_draw(pair, x, noise)[2], draws)
        return jnp.mean(view.each(one, draws), axis=-1), plain_info(bounds.elbo(log_w), self.num_samples)


def log_density(y: Float[Array, " d"], logits: Float[Array, " d"], temperature: Number) -> Float[Array, ""]:
    """Log density of y = (logits + logistic noise) / temperature, summed over units."""
    gap = logits - temperature * y
    return jnp.sum(jnp.log(jnp.asarray(temperature, y.dtype)) + gap - 2 * jax.nn.softplus(gap))
