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

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds, units
from relbo._check import is_real, require
from relbo.estimators._logits import hard_draw
from relbo.estimators._score import plain_info
from relbo.estimators._surrogate import AbstractNoiseEstimator, each, freeze
from relbo.models.base import AbstractBernoulliModel, AbstractBernoulliProposal, AbstractProposal, Layers
from relbo.types import Batch, Bound, EmptyState, Info, Pair


class Concrete(AbstractNoiseEstimator):
    """The pathwise gradient of the relaxed ELBO; the model must be an `AbstractBernoulliModel`.

    Args:
        num_samples: K >= 1, draws per datapoint.
        temperature: tau of the proposal's units.
        model_temperature: tau' of the model's units.
    """

    num_samples: int = eqx.field(static=True, default=1)
    temperature: float = eqx.field(static=True, default=2 / 3)
    model_temperature: float = eqx.field(static=True, default=1 / 2)

    bound: ClassVar[Bound] = Bound.ELBO
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractBernoulliProposal
    paper: ClassVar[str] = "Maddison et al. 2017"

    def __check_init__(self) -> None:
        for name in ("temperature", "model_temperature"):
            value = getattr(self, name)
            require(is_real(value) and 0 < value < float("inf"), f"Concrete: {name}", "a finite number > 0", value)

    def surrogate(
        self, pair: Pair, draws: PyTree, state: EmptyState, batch: Batch
    ) -> tuple[Float[Array, " b"], EmptyState, Info]:
        """The relaxed log weight."""
        if not isinstance(pair.model, AbstractBernoulliModel):
            raise ValueError(
                f"Concrete needs a model of type AbstractBernoulliModel, got {type(pair.model).__name__}. Derive the "
                "model from it, or use StraightThrough, which needs no relaxed density."
            )
        constant = freeze(pair)

        def one(x: PyTree, noise: Layers) -> Array:
            s, logits = pair.proposal.rollout(noise, x, units.relaxed(self.temperature))  # type: ignore[attr-defined]
            y = [units.logistic(logit, n) / self.temperature for logit, n in zip(logits, noise, strict=True)]
            value, model_logits = pair.model.conditionals(x, s)  # type: ignore[attr-defined]
            for at, model_logit, logit in zip(y, model_logits, logits, strict=True):
                value = value + log_density(at, model_logit, self.model_temperature)
                value = value - log_density(at, logit, self.temperature)
            return value

        log_w = each(lambda x, noise: hard_draw(constant, x, noise)[2], batch.x, draws)
        values = jnp.mean(each(one, batch.x, draws), axis=-1)
        return values, state, plain_info(bounds.elbo(log_w), self.num_samples)


def log_density(y: Float[Array, " d"], logits: Float[Array, " d"], temperature: float) -> Float[Array, ""]:
    """Log density of y = (logits + logistic noise) / temperature, summed over units."""
    gap = logits - temperature * y
    return jnp.sum(jnp.log(jnp.asarray(temperature, y.dtype)) + gap - 2 * jax.nn.softplus(gap))
