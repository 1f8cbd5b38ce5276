"""The rejection sampler put to a pair: accepted draws under thresholds T(x)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from relbo import rejection, rejection_batch
from relbo._check import one_number_each
from relbo.acceptance import AbstractAcceptance, log_odds_of
from relbo.types import Pair, Streams


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

    def propose(key: PRNGKeyArray, row: tuple[PyTree, PyTree, Array]) -> tuple[PyTree, Array]:
        return pair.proposal.sample_and_log_prob_given(key, row[1])

    def log_accept(row: tuple[PyTree, PyTree, Array], draw: tuple[PyTree, Array]) -> tuple[Array, rejection.LogProbs]:
        (x, _, t), (z, log_q) = row, draw
        log_p = pair.model.log_joint(x, z)
        one_number_each(log_p, log_q)
        return acceptance.log_prob(log_odds_of(log_p, log_q, t)), rejection.LogProbs(log_p, log_q)

    conditions = jax.vmap(pair.proposal.condition)(x)
    accepted = rejection.sample(
        streams, (x, conditions, t), propose, log_accept, num_samples=num_samples, max_rounds=max_rounds, throw=throw
    )
    return accepted._replace(z=accepted.z[0], first_z=accepted.first_z[0])  # log q was only for the sampler


def mean_acceptance(
    first: rejection.LogProbs, t: Float[Array, " b"], acceptance: AbstractAcceptance
) -> Float[Array, " b"]:
    """Mean acceptance probability of each row's first S proposals."""
    return jnp.mean(jnp.exp(acceptance.log_prob(log_odds_of(first.log_p, first.log_q, t[:, None]))), axis=-1)
