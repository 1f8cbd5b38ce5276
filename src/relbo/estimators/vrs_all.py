r"""VRS over all proposals: each counts by its acceptance probability, and nothing is rejected.

With z_1..z_N iid from q, a_i the acceptance probability and rho = a / sum a, the acceptance draws are averaged out
and expectations under r are self-normalised,

    E_r[h] ~ sum_i rho_i h_i,    Cov_r(A, h) ~ sum_i rho_i (A_i - A_(-i)) h_i,

    c^p_i = rho_i (1 + g'(u_i) (A_i - A_(-i))),    c^q_i = rho_i (1 - g'(u_i)) (A_i - A_(-i)),

where A_(-i) is the self-normalised mean of the *other* signals. With `Always()` this is RLOO, draw for draw.

Bias: a self-normalised mean over N proposals is off by about -E_q[a^2 (h - E_r h)] / (N Z_R^2), so the gradient is
biased by O(1/N) unless all a are equal. In return the cost is fixed and no acceptance noise is paid for.

References:
    Grover et al. (2018), "Variational Rejection Sampling", https://arxiv.org/abs/1804.01712.
    Casella and Robert (1996), "Rao-Blackwellisation of sampling schemes".
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo import bounds
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.estimators._resampled import VRSInfo, VRSState, check_acceptance
from relbo.estimators._score import AbstractScoreEstimator, check_num_samples, draw_iid, plain_info
from relbo.models.base import AbstractProposal
from relbo.rejection import LogProbs
from relbo.thresholds import AbstractThreshold, Quantile
from relbo.types import Batch, Bound, Coefficients, Draws, Info, Pair, Streams


class VRSAll(AbstractScoreEstimator[VRSState]):
    """Rao-Blackwellised, self-normalised variational rejection sampling.

    Args:
        num_samples: N >= 2, proposals per datapoint.
        threshold: how T(x) is set.
        acceptance: the acceptance function.
    """

    num_samples: int = eqx.field(static=True, default=5)
    threshold: AbstractThreshold = Quantile()
    acceptance: AbstractAcceptance = Soft()

    bound: ClassVar[Bound] = Bound.R_ELBO
    unbiased: ClassVar[bool] = False
    requires: ClassVar[type[AbstractProposal]] = AbstractProposal
    paper: ClassVar[str] = "Grover et al. 2018, Rao-Blackwellised as Casella and Robert 1996"

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 2)
        check_acceptance(self, self.threshold, self.acceptance)

    def start(self, key: PRNGKeyArray, pair: Pair, num_data: int) -> VRSState:
        """Thresholds before the first step."""
        return VRSState(self.threshold.init(num_data))

    def draw(self, streams: Streams, pair: Pair, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """N proposals for each row, and thresholds that they do not influence."""
        t, thresholds = self.threshold.lookup(streams.other, pair, state.thresholds, batch, self.acceptance)
        draws = draw_iid(streams.propose, pair.proposal, batch.x, self.num_samples)
        return draws._replace(extra=(t, self.threshold.age(thresholds, batch.index))), VRSState(thresholds)

    def coefficients(
        self, log_p: Float[Array, "b k"], log_q: Float[Array, "b k"], draws: Draws, state: VRSState, batch: Batch
    ) -> tuple[Coefficients, VRSState, Info]:
        """The gradient of VRS with self-normalised expectations."""
        t, age = draws.extra
        u = log_odds_of(log_p, log_q, t[:, None])
        log_a = self.acceptance.log_prob(u)
        # an impossible z has weight zero and must not make the means NaN
        signal = jnp.where(jnp.isneginf(log_a), 0, log_p - log_q - log_a)
        rho = jax.nn.softmax(log_a, axis=-1)
        credit = rho * (signal - mean_of_others(log_a, signal))
        slope = self.acceptance.slope(u)

        plain = plain_info(jnp.sum(rho * signal, axis=-1) + bounds.log_mean_exp(log_a), self.num_samples)
        possible = jnp.isfinite(logsumexp(log_a, axis=-1))
        info = plain._replace(
            bound=jnp.where(possible, plain.bound, jnp.nan),
            valid=possible,
            extra=VRSInfo(
                acceptance=jnp.mean(jnp.exp(log_a), axis=-1),
                threshold=t,
                age=age,
                exhausted=~possible,
                num_evaluated=jnp.sum(plain.num_proposals),
            ),
        )
        thresholds = self.threshold.follow(state.thresholds, batch, t, LogProbs(log_p, log_q), self.acceptance)
        return Coefficients(rho + slope * credit, (1 - slope) * credit), VRSState(thresholds), info


def mean_of_others(log_weight: Float[Array, "b k"], values: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """For each i the self-normalised mean of the values at j != i; 0 where the others weigh nothing."""
    size = log_weight.shape[-1]
    others = jnp.where(jnp.eye(size, dtype=bool)[None], -jnp.inf, log_weight[:, None, :])
    total = logsumexp(others, axis=-1, keepdims=True)
    share = jnp.where(jnp.isfinite(total), jnp.exp(others - jnp.where(jnp.isfinite(total), total, 0)), 0)
    return jnp.sum(share * values[:, None, :], axis=-1)
