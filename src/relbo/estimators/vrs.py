r"""VRS: both gradients of the resampled ELBO, with the signs that hold.

With z_1..z_S iid from r, u = log p - log q + T(x), g = log a and A = log p - log q - g(u),

    c^p_k = 1/S + g'(u_k) (A_k - mean A) / (S - 1),    c^q_k = (1 - g'(u_k)) (A_k - mean A) / (S - 1),

that is, for the paper's acceptance, grad_phi = Cov_r(A, a grad log q) and
grad_theta = E_r[grad log p] + Cov_r(A, (1 - a) grad log p). The paper's Theorem 2 prints two of these signs wrong
(docs/errata.md, E1 and E2). With `Always()` acceptance, or T = +inf, this is RLOO.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", Theorem 2, https://arxiv.org/abs/1804.01712.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from relbo import bounds, rejection, rejection_batch
from relbo._check import is_int, require
from relbo._types import Batch, Bound, Coefficients, Draws, Info, Pair, Streams
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.estimators._score import AbstractScoreEstimator, leave_one_out
from relbo.models.base import AbstractProposal
from relbo.thresholds import AbstractThreshold, Quantile


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


class VRS(AbstractScoreEstimator[VRSState]):
    """Variational rejection sampling.

    Args:
        num_samples: S >= 2, accepted draws per datapoint.
        threshold: how T(x) is set.
        acceptance: the acceptance function.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not, it is left out of the gradient and counted.
    """

    num_samples: int = eqx.field(static=True, default=2)
    threshold: AbstractThreshold = Quantile()
    acceptance: AbstractAcceptance = Soft()
    max_rounds: int = eqx.field(static=True, default=1_000)
    throw: bool = eqx.field(static=True, default=True)

    bound: ClassVar[Bound] = Bound.R_ELBO
    unbiased: ClassVar[bool] = True
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Grover et al. 2018"

    def __check_init__(self) -> None:
        require(is_int(self.num_samples, at_least=2), "VRS: num_samples", "an integer >= 2", self.num_samples)
        require(is_int(self.max_rounds, at_least=1), "VRS: max_rounds", "an integer >= 1", self.max_rounds)
        require(
            isinstance(self.threshold, AbstractThreshold),
            "VRS: threshold",
            "a threshold such as Fixed(0.0), Quantile(0.9) or Rate(0.5)",
            self.threshold,
        )
        require(
            isinstance(self.acceptance, AbstractAcceptance),
            "VRS: acceptance",
            "an acceptance such as Soft(), Hard() or Always()",
            self.acceptance,
        )

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> VRSState:
        """Thresholds before the first step."""
        return VRSState(self.threshold.init(num_data))

    def draw(self, streams: Streams, pair: Pair, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
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
        return Draws(accepted.z, (t, age, accepted)), VRSState(thresholds)

    def coefficients(
        self,
        log_p: Float[Array, "b k"],
        log_q: Float[Array, "b k"],
        draws: Draws,
        state: VRSState,
        batch: Batch,
    ) -> tuple[Coefficients, VRSState, Info]:
        """The corrected Theorem 2, with a leave-one-out covariance."""
        t, age, accepted = draws.extra
        u = log_odds_of(log_p, log_q, t[:, None])
        signal = log_p - log_q - self.acceptance.log_prob(u)
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
        return weights, state, info


def draw_accepted(
    streams: Streams,
    pair: Pair,
    x: PyTree,
    t: Float[Array, " b"],
    acceptance: AbstractAcceptance,
    *,
    num_samples: int,
    max_rounds: int,
    throw: bool = True,
) -> rejection.Accepted:
    """`num_samples` draws from r(z | x) for each datapoint, under thresholds `t`."""
    if rejection_batch.is_batched(pair):
        return rejection_batch.sample(
            streams, pair, x, t, acceptance, num_samples=num_samples, max_rounds=max_rounds, throw=throw
        )

    def propose(key: PRNGKeyArray, row: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        return pair.proposal.sample_and_log_prob(key, row[0])

    def log_accept(row: tuple[PyTree, Array], draw: tuple[PyTree, Array]) -> tuple[Array, rejection.LogProbs]:
        (x, t), (z, log_q) = row, draw
        log_p = pair.model.log_joint(x, z)
        return acceptance.log_prob(log_odds_of(log_p, log_q, t)), rejection.LogProbs(log_p, log_q)

    accepted = rejection.sample(
        streams, (x, t), propose, log_accept, num_samples=num_samples, max_rounds=max_rounds, throw=throw
    )
    z, _ = accepted.z
    return accepted._replace(z=z)


def mean_acceptance(
    first: rejection.LogProbs, t: Float[Array, " b"], acceptance: AbstractAcceptance
) -> Float[Array, " b"]:
    """Mean acceptance probability of each row's first S proposals."""
    return jnp.mean(jnp.exp(acceptance.log_prob(log_odds_of(first.log_p, first.log_q, t[:, None]))), axis=-1)
