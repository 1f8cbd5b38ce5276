r"""The rejection sampler for pairs that can only be run for all rows of a batch together.

The j-th proposal of the batch gives each row its own j-th proposal; a row keeps the *first* S that it accepts, and
what is proposed to it afterwards is thrown away. Rows are independent given their x, so each row's draws are iid
from r(z) proportional to q(z) a(z), as with `relbo.rejection`; only the cost differs, since every round proposes
for finished rows too: the batch pays for its slowest row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, log_odds_of
from relbo.models.base import AbstractBatchModel, AbstractBatchProposal
from relbo.rejection import Accepted, LogProbs, log_uniform, refuse_failures
from relbo.types import Pair, Streams


class _Progress(NamedTuple):
    z: PyTree
    accepted: Int[Array, " b"]
    """So far, also beyond those that are kept."""
    num_proposals: Int[Array, " b"]
    rounds: Int[Array, ""]
    nan_p: Bool[Array, ""]
    nan_q: Bool[Array, ""]


def is_batched(pair: Pair) -> bool:
    """Whether both halves of the pair are evaluated for all rows together."""
    return isinstance(pair.model, AbstractBatchModel) and isinstance(pair.proposal, AbstractBatchProposal)


def fresh_log_weights_batch(key: PRNGKeyArray, pair: Any, x: PyTree, num_draws: int) -> Float[Array, "b n"]:
    """Log w = log p - log q of `num_draws` draws from q for every row; -inf where log p is."""
    z = pair.proposal.sample_batch(key, x, num_draws)
    log_p, log_q = pair.model.log_joint_batch(x, z), pair.proposal.log_prob_batch(z, x)
    return jax.lax.stop_gradient(log_odds_of(log_p, log_q, jnp.zeros(())))


def sample(
    streams: Streams,
    pair: Pair,
    x: PyTree,
    t: Float[Array, " b"],
    acceptance: AbstractAcceptance,
    *,
    num_samples: int,
    max_rounds: int,
    throw: bool = True,
) -> Accepted:
    """Draws `num_samples` accepted proposals for every row, in rounds of `num_samples` whole-batch proposals.

    Args:
        streams: keys; `propose` and `accept` are used.
        pair: an `AbstractBatchModel` and an `AbstractBatchProposal`.
        x: the batch that they take.
        t: threshold of each row.
        acceptance: the acceptance function.
        num_samples: S, accepted draws per row.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: raise when a row gives up; else only flag it in `exhausted`. A NaN log density always raises.

    Returns:
        An `Accepted`.
    """
    require(is_int(num_samples, at_least=1), "num_samples", "an integer >= 1", num_samples)
    require(is_int(max_rounds, at_least=1), "max_rounds", "an integer >= 1", max_rounds)
    model: Any = pair.model
    proposal: Any = pair.proposal
    num_rows = t.shape[0]
    lanes = jnp.broadcast_to(jnp.arange(num_rows)[:, None], (num_rows, num_samples))

    def propose(key_propose: PRNGKeyArray, key_accept: PRNGKeyArray) -> tuple[PyTree, Array, LogProbs]:
        z = proposal.sample_batch(key_propose, x, num_samples)
        log_p, log_q = model.log_joint_batch(x, z), proposal.log_prob_batch(z, x)
        log_a = acceptance.log_prob(log_odds_of(log_p, log_q, t[:, None].astype(log_p.dtype)))
        accept = log_uniform(jax.random.bits(key_accept, log_a.shape, jnp.uint32), log_a.dtype) <= log_a
        return z, accept, LogProbs(log_p, log_q)

    def absorb(progress: _Progress, z: PyTree, accept: Array, log_probs: LogProbs) -> _Progress:
        rank = progress.accepted[:, None] + jnp.cumsum(accept, axis=1, dtype=jnp.int32)
        slot = jnp.where(accept & (rank <= num_samples), rank - 1, num_samples)
        position = progress.rounds * num_samples + jnp.arange(1, num_samples + 1, dtype=jnp.int32)
        last = jnp.where(slot == num_samples - 1, lanes, num_rows)
        return _Progress(
            z=jax.tree.map(lambda kept, new: kept.at[lanes, slot].set(new, mode="drop"), progress.z, z),
            accepted=rank[:, -1],
            num_proposals=progress.num_proposals.at[last].set(jnp.broadcast_to(position, lanes.shape), mode="drop"),
            rounds=progress.rounds + 1,
            nan_p=progress.nan_p | jnp.any(jnp.isnan(log_probs.log_p)),
            nan_q=progress.nan_q | jnp.any(jnp.isnan(log_probs.log_q)),
        )

    def unfinished(progress: _Progress) -> Bool[Array, ""]:
        missing = jnp.any(progress.accepted < num_samples)
        return missing & (progress.rounds < max_rounds) & ~progress.nan_p & ~progress.nan_q

    def next_round(progress: _Progress) -> _Progress:
        keys = (jax.random.fold_in(key, progress.rounds) for key in (key_more, key_accept))
        return absorb(progress, *propose(*keys))

    # the first round draws what an estimator without rejection would draw from the same key; later ones have a root
    # of their own, since the proposal is free to fold numbers into the key that it is given
    key_accept, key_more = jax.random.split(streams.accept)
    first_z, accept, first = propose(streams.propose, jax.random.fold_in(key_accept, 0))
    nothing = _Progress(
        z=jax.tree.map(jnp.zeros_like, first_z),
        accepted=jnp.zeros(num_rows, jnp.int32),
        num_proposals=jnp.full(num_rows, max_rounds * num_samples, jnp.int32),
        rounds=jnp.zeros((), jnp.int32),
        nan_p=jnp.zeros((), bool),
        nan_q=jnp.zeros((), bool),
    )
    progress = absorb(nothing, first_z, accept, first)
    progress = jax.lax.while_loop(unfinished, next_round, progress)
    result = Accepted(
        z=progress.z,
        num_proposals=progress.num_proposals,
        exhausted=progress.accepted < num_samples,
        first=first,
        num_evaluated=progress.rounds * num_rows * num_samples,
        first_z=first_z,
    )
    return refuse_failures(result, progress.nan_p, progress.nan_q, num_samples, max_rounds, throw=throw)
