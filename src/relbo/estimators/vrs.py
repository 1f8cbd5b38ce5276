r"""VRS: both gradients of the resampled ELBO, with the signs that hold.

With z_1..z_K iid from r, u = log p - log q + T(x), g = log a and A = log p - log q - g(u),

    c^p_k = 1/K + g'(u_k) (A_k - mean A) / (K - 1),    c^q_k = (1 - g'(u_k)) (A_k - mean A) / (K - 1),

that is, for the paper's acceptance, grad_phi = Cov_r(A, a grad log q) and
grad_theta = E_r[grad log p] + Cov_r(A, (1 - a) grad log p). The paper's Theorem 2 prints two of these signs wrong
(docs/errata.md, E1 and E2). With `Always()` acceptance, or T = +inf, this is RLOO.

Every row evaluates N proposals and uses all K that are accepted; only a row with fewer than S goes on, to exactly S
(`relbo.rejection`). Given K the draws are iid from r, so both covariances are unbiased for every K >= S >= 2. The
bound in `Info` is mean A plus an estimate of log Z_R from the counts (`bounds.log_z_unbiased`): unbiased for the
R-ELBO too. A row that runs out of proposals takes the step at T = +inf, that is RLOO on fresh draws: then the gradients
are unbiased for a mixture of the R-ELBO and the ELBO, and the bound in `Info` errs upwards, by the more the more rows
run out: log Z_R then rests on the rows that did not.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", Theorem 2, https://arxiv.org/abs/1804.01712.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from relbo import bounds, rejection
from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, Soft, in_one_axis, log_odds_of
from relbo.estimators.base import check_num_samples
from relbo.estimators.records import Parts, Rejection, Tally, VRSInfo, VRSState
from relbo.estimators.score import AbstractScoreEstimator
from relbo.streams import Streams
from relbo.thresholds import AbstractThreshold, Quantile, as_threshold, look_up
from relbo.types import AnyPair, Batch, Draws, Info, Number, Weights
from relbo.view import AbstractView, Needs, check_needs


class AbstractVRS(AbstractScoreEstimator[VRSState]):
    """Variational rejection sampling, with the settings that `VRS` documents; a file supplies `for_phi`.

    A variant that needs a path weighs d/dz log w . dz/dphi, any other grad log q. The former takes the weights of `VRS`
    for grad log q from the step after its first impossible proposal on, since p has an edge there (`vrs_path.py`).

    Example:
        >>> class Raw(relbo.AbstractVRS):
        ...     unbiased, paper = False, "an example"
        ...     def for_phi(self, draws, parts):
        ...         return parts.centred
        >>> Raw(2, rate=0.5).num_samples
        2
    """

    num_samples: int = eqx.field(static=True)
    threshold: AbstractThreshold
    acceptance: AbstractAcceptance
    num_proposals: int = eqx.field(static=True)
    max_rounds: int = eqx.field(static=True)
    throw: bool = eqx.field(static=True)

    needs: ClassVar[Needs] = Needs.DRAWS

    def __init__(
        self,
        num_samples: int = 2,
        threshold: AbstractThreshold | Number | str | None = None,
        acceptance: AbstractAcceptance = Soft(),
        *,
        num_proposals: int | None = None,
        rate: Any = None,
        max_rounds: int = 1_000,
        throw: bool = False,
    ) -> None:
        self.num_samples, self.acceptance, self.max_rounds, self.throw = num_samples, acceptance, max_rounds, throw
        self.threshold = as_threshold(threshold, rate, default=Quantile())
        self.num_proposals = num_samples if num_proposals is None else num_proposals

    def __check_init__(self) -> None:
        name = type(self).__name__
        check_num_samples(self, self.num_samples, 2)
        enough = is_int(self.num_proposals, at_least=self.num_samples)
        expected = f"an integer >= num_samples = {self.num_samples}"
        require(enough, f"{name}: num_proposals", expected, self.num_proposals)
        require(is_int(self.max_rounds, at_least=1), f"{name}: max_rounds", "an integer >= 1", self.max_rounds)
        check_acceptance(self, self.acceptance)

    @property
    def bound(self) -> bounds.AbstractBound:
        """The R-ELBO."""
        return bounds.RS(1, self.threshold, self.acceptance)

    def init(self, key: PRNGKeyArray, pair: AnyPair, num_data: int) -> VRSState:
        """Thresholds before the first step."""
        check_needs(self, pair)
        edge = jnp.zeros((), bool) if self.needs is Needs.PATH else None
        return VRSState(self.threshold.init(num_data), Tally.zero(), edge)

    def draw(self, streams: Streams, view: AbstractView, state: VRSState, batch: Batch) -> tuple[Draws, VRSState]:
        """Accepted draws for each row, under thresholds that these draws do not influence."""
        with jax.named_scope("thresholds"):
            reading = look_up(self.threshold, streams.other, view, state.thresholds, batch.index, self.acceptance)
        draws = rejection.accepted_draws(
            view,
            streams,
            reading.t,
            self.acceptance,
            num_samples=self.num_samples,
            num_proposals=self.num_proposals,
            max_rounds=self.max_rounds,
            throw=self.throw,
            along_path=self.needs is Needs.PATH,
            by_score=False if state.edge is None else state.edge,
        )
        first = slice(self.num_proposals)  # iid from q whatever happens to them
        log_w = log_odds_of(draws.log_p[:, first], draws.log_q[:, first], jnp.zeros(()))
        accepted: rejection.Accepted = draws.extra
        with jax.named_scope("thresholds"):
            thresholds = self.threshold.update(state.thresholds, batch.index, accepted.t, log_w, self.acceptance)
        new_state = state._replace(thresholds=thresholds, tally=state.tally.add(accepted.exhausted))
        return draws._replace(extra=Rejection(reading, accepted)), new_state

    def weigh(self, draws: Draws, state: VRSState, batch: Batch) -> tuple[Weights, VRSState, Info]:
        """The corrected Theorem 2 for theta, `for_phi` for phi."""
        reading, accepted = draws.extra
        used, size = draws.used, self.num_proposals
        # the first round as the accept test has it, so that both are computed once; of a row that has fallen back since
        # none of it is used
        u = [
            log_odds_of(draws.log_p[:, part], draws.log_q[:, part], t[:, None])
            for part, t in ((slice(size), reading.t), (slice(size, None), accepted.t))
        ]
        log_a = [in_one_axis(self.acceptance.log_prob, one) for one in u]
        slope = jnp.concatenate([in_one_axis(self.acceptance.slope, one) for one in u], axis=1)
        signal = jnp.where(used, draws.log_w - jnp.concatenate(log_a, axis=1), 0)
        count = jnp.maximum(accepted.num_used, 2).astype(signal.dtype)[:, None]
        mean = jnp.sum(signal, axis=1, keepdims=True) / count
        parts = Parts(
            uniform=jnp.where(used, 1 / count, 0),
            slope=slope,
            centred=jnp.where(used, signal - mean, 0) / (count - 1),
            u=jnp.concatenate(u, axis=1),
        )
        for_phi = self.for_phi(draws, parts)
        if self.needs is Needs.PATH and state.edge is not None:  # this step's own draws must not decide on its form
            for_phi = jnp.where(state.edge, (1 - slope) * parts.centred, for_phi)
            state = state._replace(edge=state.edge | jnp.any(jnp.isneginf(draws.log_p[:, :size])))
        weights = Weights(parts.uniform + slope * parts.centred, for_phi)

        valid = accepted.num_used > 0
        log_z = jnp.where(
            accepted.exhausted,
            bounds.log_z_stopped(self.num_samples, accepted.num_tried),
            bounds.log_z_unbiased(accepted.num_used, accepted.num_tried, self.num_samples, self.num_proposals),
        ).astype(signal.dtype)
        info = Info(
            bound=jnp.where(valid, mean[:, 0] + log_z, jnp.nan),
            valid=valid,
            num_proposals=accepted.num_proposals,
            extra=VRSInfo(
                acceptance=jnp.mean(jnp.exp(log_a[0]), axis=-1),
                threshold=reading.t,
                age=reading.age,
                exhausted=accepted.exhausted,
                num_used=accepted.num_used,
                num_evaluated=accepted.num_evaluated,
                edge=state.edge,
            ),
        )
        return weights, state, info

    @abc.abstractmethod
    def for_phi(self, draws: Draws, parts: Parts) -> Float[Array, "b k"]:
        """The weights c^q."""


class VRS(AbstractVRS):
    """Variational rejection sampling, both gradients as the bound has them.

    Args:
        num_samples: S >= 2, accepted draws per datapoint at the least.
        threshold: how T(x) is set: a threshold, a number (T itself) or words such as "rate:0.5"; `Quantile()` if
            neither this nor `rate` is given.
        acceptance: the acceptance function.
        num_proposals: N >= S, proposals that every row evaluates; all accepted ones among them are used. By default S.
        rate: short for `threshold=Rate(rate)`.
        max_rounds: a row runs out after max_rounds * S proposals.
        throw: whether a row that runs out is an error; if not, it takes the step at T = +inf, on fresh draws from q,
            and is counted, and its T is raised, or solved anew at its next visit.

    Example:
        >>> estimator = relbo.VRS(num_samples=2, num_proposals=6, rate=0.5)
        >>> gradient, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    unbiased: ClassVar[bool] = True
    paper: ClassVar[str] = "Grover et al. 2018"

    __init__ = AbstractVRS.__init__  # not that of a data class, which type checkers would expect

    def for_phi(self, draws: Draws, parts: Parts) -> Float[Array, "b k"]:
        """The corrected Theorem 2."""
        return (1 - parts.slope) * parts.centred


def check_acceptance(estimator: Any, acceptance: Any) -> None:
    """Refuses what is not an acceptance."""
    require(
        isinstance(acceptance, AbstractAcceptance),
        f"{type(estimator).__name__}: acceptance",
        "an acceptance such as Soft(), Hard() or Always()",
        acceptance,
    )
