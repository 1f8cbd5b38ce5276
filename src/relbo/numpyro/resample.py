r"""`resample`: draws from the resampled posterior r after any SVI fit, and what they are worth.

A draw of the guide is accepted with probability a(z) = w / (w + e^-T), w = p(x, z) / q(z). What is kept follows

    r(z) proportional to q(z) a(z),

which lies between q (T = +inf) and the posterior (T = -inf), closer to the posterior the more is rejected: KL(r || p)
falls with T (Grover et al. 2018, Theorem 1).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from relbo import bounds, rejection_batch
from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, Soft, log_odds_of
from relbo.estimators._score import draw_iid, log_densities
from relbo.numpyro.layout import WHOLE
from relbo.numpyro.losses import threshold_from
from relbo.numpyro.objective import as_typed_key
from relbo.numpyro.pair import build_batch, build_pair, from_rows
from relbo.numpyro.program import Program
from relbo.pareto import khat
from relbo.types import split_streams


class Resampled(NamedTuple):
    """Draws from r and what is known about them.

    A row is what was accepted or rejected by itself: a row of the plate of the local latents, or the whole program.
    """

    samples: dict[str, Array]
    """(num_samples, ...) values of the model's latent and deterministic sites, as `MCMC.get_samples()` has them."""
    acceptance: Float[Array, " b"]
    """(S-1)/(N-1) for each row: the unbiased estimate of the acceptance rate."""
    log_evidence: Float[Array, ""]
    """Estimate of log p(x) in nats, summed over rows. Its expectation lies *below* log p(x)."""
    log_evidence_error: Float[Array, ""]
    """Standard error of `log_evidence`, by the delta method."""
    kl: Float[Array, " b"]
    """Estimate of KL(r || p(z | x)) for each row, in nats. Its expectation lies *below* the true value."""
    ess: Float[Array, " b"]
    """Effective sample size of the draws, if weighed by what separates them from the posterior, p / (q a)."""
    ess_before: Float[Array, " b"]
    """The same for `num_draws` plain draws from the guide, weighed by p / q, as a share of num_samples."""
    pareto_k: Float[np.ndarray, " b"]
    """Shape of the tail of the weights p / (q a) of the draws; above 0.7 estimates from them are not to be trusted."""
    pareto_k_before: Float[np.ndarray, " b"]
    """The same for the weights p / q of plain draws from the guide."""
    num_proposals: Int[Array, " b"]
    """Draws from the guide that each row paid for, N."""
    exhausted: Bool[Array, " b"]
    """Rows that ran out of proposals; their samples are not from r."""
    threshold: Float[Array, " b"]
    """T of each row, in nats."""
    log_weights: Float[Array, "b s"]
    """Log p / (q a) of each draw, for estimates that weigh what is left."""

    def summary(self) -> str:
        """The figures as text, means over rows."""
        rows = self.acceptance.shape[0]
        exhausted = int(np.sum(self.exhausted))
        return "\n".join(
            [
                f"draws from r            {self.log_weights.shape[1]} for each of {rows} row(s), {exhausted} exhausted",
                f"acceptance rate         {np.mean(self.acceptance):.3f}",
                f"proposals               {int(np.sum(self.num_proposals))}",
                f"log evidence            {self.log_evidence:.3f} +- {self.log_evidence_error:.3f} (biased downwards)",
                f"KL(r || posterior)      {np.mean(self.kl):.4f} nats (biased downwards)",
                f"effective sample size   {np.mean(self.ess):.0f}, before {np.mean(self.ess_before):.0f}",
                f"largest Pareto k-hat    {np.max(self.pareto_k):.2f}, before {np.max(self.pareto_k_before):.2f}",
            ]
        )


def resample(
    key: Array,
    model: Any,
    guide: Any,
    params: dict[str, Any],
    data: Any = (),
    *,
    rate: float | None = None,
    gamma: float | None = None,
    threshold: float | None = None,
    num_samples: int = 1_000,
    num_draws: int = 1_000,
    max_rounds: int = 1_000,
    throw: bool = True,
    acceptance: AbstractAcceptance | None = None,
    plate: str | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Resampled:
    """Draws from r, whoever trained the guide.

    Rows of the plate of the local latents are accepted one by one. With latents outside of that plate, draws of all
    latents are accepted or rejected as a whole, since r is then a distribution of all of them together.

    Args:
        key: randomness.
        model: the NumPyro model.
        guide: its guide, already fitted.
        params: what `svi.run(...).params` or `svi.get_params(state)` returned.
        data: positional arguments of model and guide: a tuple, or the one argument.
        rate: acceptance rate to aim at, in (0, 1): the smaller, the closer r is to the posterior.
        gamma: T is the gamma quantile of log q - log p instead.
        threshold: T itself, in nats, instead.
        num_samples: S >= 2, draws to return.
        num_draws: plain draws from the guide behind T and the figures "before".
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not it is flagged in `exhausted`.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        plate: the row plate, as for `EstimatorELBO`.
        kwargs: keyword arguments of model and guide.

    Returns:
        A `Resampled`.
    """
    require(is_int(num_samples, at_least=2), "num_samples", "an integer >= 2", num_samples)
    require(is_int(num_draws, at_least=2), "num_draws", "an integer >= 2", num_draws)
    args, kwargs = data if isinstance(data, tuple) else (data,), kwargs or {}
    acceptance = Soft() if acceptance is None else acceptance
    rule = threshold_from(gamma, rate, threshold, num_draws=num_draws, every=1)
    key_program, key_pilot, key_sample = jax.random.split(as_typed_key(key), 3)
    program = Program(model, guide, args, kwargs, key_program, params, plate)
    if program.layout.shared:
        program = Program(model, guide, args, kwargs, key_program, params, WHOLE)
    _refuse_minibatch(program)
    batch = build_batch(program, 1)

    @jax.jit
    def draw(params: dict[str, Any], key_pilot: Array, key_sample: Array) -> tuple[Array, dict[str, Any]]:
        pair = build_pair(program, params, {}, 1)
        pilot = draw_iid(key_pilot, pair.proposal, batch.x, num_draws).z
        log_w = log_odds_of(*log_densities(pair, batch.x, pilot), jnp.zeros(()))
        t = jax.vmap(lambda f: rule.from_log_weights(f, acceptance))(log_w)
        accepted = rejection_batch.sample(
            split_streams(key_sample),
            pair,
            batch.x,
            t,
            acceptance,
            num_samples=num_samples,
            max_rounds=max_rounds,
            throw=throw,
        )
        log_p, log_q = log_densities(pair, batch.x, accepted.z)
        signal = bounds.signal(log_p - log_q, t, acceptance)
        local = jax.tree.map(lambda v: v[0], from_rows(program, accepted.z, 1))
        samples = jax.vmap(lambda v: program.sites(params, v))(local)
        log_z = bounds.log_z_counted(num_samples, accepted.num_proposals).astype(signal.dtype)
        return log_w, dict(
            samples=samples,
            acceptance=jnp.exp(log_z),
            log_evidence=jnp.sum(bounds.log_mean_exp(signal) + log_z),
            log_evidence_error=jnp.sqrt(jnp.sum(_relative_variance(signal) + (1 - jnp.exp(log_z)) / num_samples)),
            kl=bounds.kl_from_signal(signal),
            ess=bounds.effective_sample_size(signal),
            ess_before=bounds.effective_sample_size(log_w) * (num_samples / num_draws),
            num_proposals=accepted.num_proposals,
            exhausted=accepted.exhausted,
            threshold=t,
            log_weights=signal,
        )

    log_w, figures = draw(params, key_pilot, key_sample)
    # fitting tails is a matter of a few hundred numbers, and done on the host
    return Resampled(
        **figures,
        pareto_k=np.array([khat(row) for row in np.asarray(figures["log_weights"])]),
        pareto_k_before=np.array([khat(row) for row in np.asarray(log_w)]),
    )


def _relative_variance(signal: Float[Array, "b s"]) -> Float[Array, " b"]:
    """Variance of the mean of exp A over its square; that of (S-1)/(N-1), independent of it, is (1 - Z) / S."""
    weights = jnp.exp(signal - jnp.max(signal, axis=1, keepdims=True))
    return jnp.var(weights, axis=1) / jnp.mean(weights, axis=1) ** 2 / signal.shape[1]


def _refuse_minibatch(program: Program) -> None:
    # a scaled likelihood is that of no posterior; rows that are weighed one by one do not mind
    for name, (num_rows, num_data) in program.sizes.items():
        if num_rows != num_data and name != program.layout.plate:
            raise ValueError(
                f"resample needs all of the data to weigh a draw, got plate {name!r} subsampled to {num_rows} of "
                f"{num_data} rows. Call it without subsampling."
            )
