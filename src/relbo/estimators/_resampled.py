r"""What every estimator with an accept/reject step shares: thresholds, accepted draws and the gradient for theta.

With z_1..z_S iid from r, u = log p - log q + T(x), g = log a and A = log p - log q - g(u),

    c^p_k = 1/S + g'(u_k) (A_k - mean A) / (S - 1),    c^q_k = (1 - g'(u_k)) (A_k - mean A) / (S - 1)

are the coefficients of both gradients of the resampled ELBO (`vrs.py`); the variants keep the first.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from relbo import bounds
from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.estimators._accepted import draw_accepted, mean_acceptance
from relbo.estimators._score import AbstractScoreEstimator, check_num_samples, leave_one_out
from relbo.estimators.base import AbstractEstimator
from relbo.thresholds import AbstractThreshold, Quantile
from relbo.types import Batch, Coefficients, Draws, Info, Pair, Streams


class VRSState(NamedTuple):
    """What VRS remembers between steps."""

    thresholds: Any
    """State of the threshold."""


class VRSInfo(NamedTuple):
    """What VRS tells about a step."""

    acceptance: Float[Array, " b"]
    """Mean acceptance probability of the first S proposals of each row: unbiased for Z_R."""
    threshold: Float[Array, " b"]
    """T used, in nats."""
    age: Int[Array, " b"]
    """Steps since T was renewed."""
    exhausted: Bool[Array, " b"]
    """Rows that were left out of the gradient for want of acceptances."""
    num_evaluated: Int[Array, ""]
    """Proposals evaluated for the batch, the wasted ones included."""


class AbstractResampledEstimator(AbstractScoreEstimator[VRSState]):
    """An estimator that draws from r, with the settings that `VRS` documents.

    A file supplies `draw` and `coefficients`, for which `accept` and `resampled` do the common part.
    """

    num_samples: int = eqx.field(static=True, default=2)
    threshold: AbstractThreshold = Quantile()
    acceptance: AbstractAcceptance = Soft()
    max_rounds: int = eqx.field(static=True, default=1_000)
    throw: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        name = type(self).__name__
        check_num_samples(self, self.num_samples, 2)
        require(is_int(self.max_rounds, at_least=1), f"{name}: max_rounds", "an integer >= 1", self.max_rounds)
        check_acceptance(self, self.threshold, self.acceptance)

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> VRSState:
        """Thresholds before the first step."""
        return VRSState(self.threshold.init(num_data))

    def accept(self, streams: Streams, pair: Pair, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """S accepted draws for each row, under thresholds that these draws do not influence."""
        t, thresholds = self.threshold.lookup(streams.other, pair, state.thresholds, batch, self.acceptance)
        age = self.threshold.age(thresholds, batch.index)
        accepted = draw_accepted(
            streams,
            pair,
            batch.x,
            t,
            self.acceptance,
            num_samples=self.num_samples,
            max_rounds=self.max_rounds,
            throw=self.throw,
        )
        thresholds = self.threshold.follow(thresholds, batch, t, accepted.first, self.acceptance)
        return Draws(accepted.z, (t, age, accepted), ~accepted.exhausted), VRSState(thresholds)

    def resampled(
        self, log_p: Float[Array, "b s"], log_q: Float[Array, "b s"], draws: Draws
    ) -> tuple[Coefficients, Info]:
        """Coefficients of both gradients of the resampled ELBO for the S accepted draws, and the step's Info."""
        t, age, accepted = draws.extra
        u = log_odds_of(log_p, log_q, t[:, None])
        signal = jax.lax.optimization_barrier(log_p - log_q - self.acceptance.log_prob(u))
        slope = self.acceptance.slope(u)
        centred = leave_one_out(signal)
        weights = Coefficients(model=1 / self.num_samples + slope * centred, proposal=(1 - slope) * centred)

        valid = ~accepted.exhausted
        log_z = bounds.log_z_unbiased(self.num_samples, accepted.num_proposals).astype(signal.dtype)
        info = Info(
            bound=jnp.where(valid, jnp.mean(signal, axis=-1) + log_z, jnp.nan),
            valid=valid,
            num_proposals=accepted.num_proposals,
            extra=VRSInfo(
                acceptance=mean_acceptance(accepted.first, t, self.acceptance),
                threshold=t,
                age=age,
                exhausted=accepted.exhausted,
                num_evaluated=accepted.num_evaluated,
            ),
        )
        return weights, info


def check_acceptance(estimator: AbstractEstimator, threshold: Any, acceptance: Any) -> None:
    """Refuses what is not a threshold, or not an acceptance."""
    name = type(estimator).__name__
    require(
        isinstance(threshold, AbstractThreshold),
        f"{name}: threshold",
        "a threshold such as Fixed(0.0), Quantile(0.9) or Rate(0.5)",
        threshold,
    )
    require(
        isinstance(acceptance, AbstractAcceptance),
        f"{name}: acceptance",
        "an acceptance such as Soft(), Hard() or Always()",
        acceptance,
    )
