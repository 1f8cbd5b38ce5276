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

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo import bounds
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.estimators.base import check_num_samples, plain_info
from relbo.estimators.records import Tally, VRSInfo, VRSState
from relbo.estimators.score import AbstractScoreEstimator, independent_draws
from relbo.estimators.vrs import check_acceptance
from relbo.streams import Streams
from relbo.thresholds import AbstractThreshold, Quantile, Reading, as_threshold, look_up
from relbo.types import AnyPair, Batch, Draws, Info, Number, Weights
from relbo.view import AbstractView, Needs, check_needs


class VRSAll(AbstractScoreEstimator[VRSState]):
    """Rao-Blackwellised, self-normalised variational rejection sampling.

    Args:
        num_samples: N >= 2, proposals per datapoint.
        threshold: how T(x) is set, as for `VRS`.
        acceptance: the acceptance function.
        rate: short for `threshold=Rate(rate)`.

    Example:
        >>> estimator = relbo.VRSAll(num_samples=6, rate=0.5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True)
    threshold: AbstractThreshold
    acceptance: AbstractAcceptance

    unbiased: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs.DRAWS
    paper: ClassVar[str] = "Grover et al. 2018, Rao-Blackwellised as Casella and Robert 1996"

    def __init__(
        self,
        num_samples: int = 5,
        threshold: AbstractThreshold | Number | str | None = None,
        acceptance: AbstractAcceptance = Soft(),
        *,
        rate: Any = None,
    ) -> None:
        self.num_samples, self.acceptance = num_samples, acceptance
        self.threshold = as_threshold(threshold, rate, default=Quantile())

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 2)
        check_acceptance(self, self.acceptance)

    @property
    def bound(self) -> bounds.AbstractBound:
        """The R-ELBO."""
        return bounds.RS(1, self.threshold, self.acceptance)

    def init(self, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> VRSState:
        """Thresholds before the first step."""
        check_needs(self, pair)
        return VRSState(self.threshold.init(num_data), Tally.zero())

    def draw(self, streams: Streams, view: AbstractView, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """N proposals for each row, and thresholds that they do not influence."""
        reading = look_up(self.threshold, streams.other, view, state.thresholds, batch.index, self.acceptance)
        draws = independent_draws(streams, view, self.num_samples)
        log_w = log_odds_of(draws.log_p, draws.log_q, jnp.zeros(()))
        thresholds = self.threshold.update(state.thresholds, batch.index, reading.t, log_w, self.acceptance)
        return draws._replace(extra=reading), VRSState(thresholds, state.tally)

    def weigh(self, draws: Draws, state: VRSState, batch: Batch) -> tuple[Weights, VRSState, Info]:
        """The gradient of VRS with self-normalised expectations."""
        reading: Reading = draws.extra
        u = log_odds_of(draws.log_p, draws.log_q, reading.t[:, None])
        log_a = self.acceptance.log_prob(u)
        # an impossible z has weight zero and must not make the means NaN
        signal = jnp.where(jnp.isneginf(log_a), 0, draws.log_w - log_a)
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
                threshold=reading.t,
                age=reading.age,
                exhausted=~possible,
                num_used=plain.num_proposals,
                num_evaluated=jnp.sum(plain.num_proposals),
            ),
        )
        state = VRSState(state.thresholds, state.tally.add(~possible))
        return Weights(rho + slope * credit, (1 - slope) * credit), state, info


def mean_of_others(log_weight: Float[Array, "b k"], values: Float[Array, "b k"]) -> Float[Array, "b k"]:
    """For each i the self-normalised mean of the values at j != i; 0 where the others weigh nothing."""
    size = log_weight.shape[-1]
    others = jnp.where(jnp.eye(size, dtype=bool)[None], -jnp.inf, log_weight[:, None, :])
    total = logsumexp(others, axis=-1, keepdims=True)
    share = jnp.where(jnp.isfinite(total), jnp.exp(others - jnp.where(jnp.isfinite(total), total, 0)), 0)
    return jnp.sum(share * values[:, None, :], axis=-1)
