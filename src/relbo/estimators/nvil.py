r"""NVIL: a learned, input-dependent baseline, and a signal of running zero mean and unit variance.

For K draws from q, with f_k = log p(x, z_k) - log q(z_k | x), L = log mean_k exp f_k and w = softmax f, the score
function of the K-sample bound has signal L - w_k (`iwae.py`). NVIL subtracts and divides what it has learned,

    c^p_k = w_k,    c^q_k = (L - w_k - C(x) - c) / max(1, sigma),

C a small network fitted to the signal, c and sigma^2 running mean and variance of what it leaves. At K = 1 this is
the paper's estimator of the ELBO; for K > 1 it is the multi-sample NVIL that VIMCO was compared with.

C, c and sigma are those of the steps before, so the expected phi-gradient is the exact one divided by
max(1, sigma): the right direction but another length, hence `unbiased = False`. (The paper renews c and sigma with
the very batch that they centre, which adds a small bias of direction; here only the first step does so, as it has no
other. Uncentred, it would be so large that Adam remembered it for a thousand steps.)

References:
    Mnih and Gregor (2014), "Neural variational inference and learning in belief networks",
    https://arxiv.org/abs/1402.0030, Algorithm 1: 100 tanh units, decay 0.8.
    Mnih and Rezende (2016), "Variational inference for Monte Carlo objectives", section 2.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from relbo import bounds
from relbo._check import is_int, is_real, require
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.learned import Perceptron, adam_step, float_type
from relbo.estimators.score import AbstractScoreEstimator, independent_draws
from relbo.streams import Streams
from relbo.types import AnyPair, Batch, Draws, Info, Weights
from relbo.view import AbstractView, Needs, num_features


class NVILState(NamedTuple):
    """What NVIL remembers between steps."""

    baseline: Perceptron
    """C(x)."""
    optimiser: optax.OptState
    mean: Float[Array, ""]
    """c, running mean of the signal minus C(x), in nats."""
    variance: Float[Array, ""]
    """sigma^2, its running variance."""
    has_begun: Bool[Array, ""]
    """Whether mean and variance are those of earlier steps."""


class NVIL(AbstractScoreEstimator[NVILState]):
    """Neural variational inference and learning.

    Args:
        num_samples: K >= 1, draws from q per datapoint.
        width: tanh units of the baseline network.
        decay: weight of the past in the running mean and variance, in [0, 1).
        learning_rate: Adam step size of the baseline.

    Example:
        >>> estimator = relbo.NVIL(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)
    width: int = eqx.field(static=True, default=100)
    decay: float = eqx.field(static=True, default=0.8)
    learning_rate: float = eqx.field(static=True, default=1e-3)

    unbiased: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Mnih and Gregor 2014"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)
        require(is_int(self.width, at_least=1), "NVIL: width", "an integer >= 1", self.width)
        require(is_real(self.decay) and 0 <= self.decay < 1, "NVIL: decay", "a number in [0, 1)", self.decay)
        require(
            is_real(self.learning_rate) and self.learning_rate > 0,
            "NVIL: learning_rate",
            "a number > 0",
            self.learning_rate,
        )

    @property
    def bound(self) -> bounds.AbstractBound:
        """The K-sample bound."""
        return bounds.IS(self.num_samples)

    def init(self, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> NVILState:
        """A baseline that is zero everywhere."""
        remember_nothing(self, key, pair, num_data)  # refuses what does not suit; the baseline needs no rows
        dtype = float_type(pair)
        baseline = Perceptron.create(key, num_features(pair), [self.width], dtype)
        zero = jnp.zeros((), dtype)
        return NVILState(baseline, optax.adam(self.learning_rate).init(baseline), zero, zero, jnp.zeros((), bool))

    def draw(self, streams: Streams, view: AbstractView, state: NVILState, batch: Batch) -> tuple[Draws, NVILState]:
        """K draws from q, and what the baseline sees of x."""
        draws = independent_draws(streams, view, self.num_samples)
        return draws._replace(extra=view.features(draws.log_p.dtype)), state

    def weigh(self, draws: Draws, state: NVILState, batch: Batch) -> tuple[Weights, NVILState, Info]:
        """The signal, centred and scaled by what was learned before this step."""
        log_w = draws.log_w
        normalised, bound = jax.nn.softmax(log_w, axis=-1), bounds.iwae(log_w)
        signal = bound[:, None] - normalised

        features = draws.extra
        baseline, pull_back = jax.vjp(lambda network: jax.vmap(network.value)(features), state.baseline)
        residual = signal - baseline[:, None]
        # a row without any possible draw, which is left out, says nothing
        is_row = jnp.broadcast_to(~jnp.isneginf(bound)[:, None], residual.shape)
        now = jnp.stack([jnp.mean(residual, where=is_row), jnp.var(residual, where=is_row)])
        before = jnp.where(state.has_begun, jnp.stack([state.mean, state.variance]), now)
        centred = (residual - before[0]) / jnp.maximum(1, jnp.sqrt(before[1]))

        descent = jnp.where(is_row[:, 0], -jnp.mean(centred, axis=1), 0) / log_w.shape[0]  # of half the squares' mean
        (gradient,) = pull_back(descent)
        network, optimiser = adam_step(optax.adam(self.learning_rate), gradient, state.baseline, state.optimiser)
        old = jnp.stack([state.mean, state.variance])
        mean, variance = jnp.where(jnp.any(is_row), self.decay * before + (1 - self.decay) * now, old)
        state = NVILState(network, optimiser, mean, variance, state.has_begun | jnp.any(is_row))
        return Weights(normalised, centred), state, plain_info(bound, self.num_samples)
