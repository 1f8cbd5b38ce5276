r"""The rejection sampler (Algorithm 1), without stragglers.

Every row i owns an endless stream of proposals: the j-th uses a key that is a hash of (i, j), so it is the same
whoever asks for it and whenever. A row's draws are the *first* S accepted in its stream. Hence they are iid
from r(z) proportional to q(z) a(z), and they depend neither on the other rows nor on the schedule below.

Schedule. The first round evaluates S proposals of every row, none of which can be wasted. What is left is done in
rounds of a few fixed widths, always one compiled program: a row asks for as many lanes as it still misses draws,
or for a fixed fraction of what it has drawn so far if that is more (so that what it may overdraw is bounded by
that fraction), the rows that have drawn least are served first, and each round has the greatest width that the
demand fills.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", Algorithm 1, https://arxiv.org/abs/1804.01712.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree, Shaped, UInt32

from relbo._check import is_int, refuse_if, require
from relbo._hash import threefry
from relbo.types import Streams

OVERDRAW = 0.2
"""A row asks for at most this fraction of its proposals so far beyond the draws that it misses."""
SHARES, NARROWEST = (16, 4), 8
"""Rounds are 1/16 or 1/4 of the first one wide, and at least 8: each further width costs seconds of compilation."""

FEW = 256
"""Up to this size all pairs are compared instead of searched."""


class LogProbs(NamedTuple):
    """Log densities of one proposal."""

    log_p: Float[Array, "*s"]
    log_q: Float[Array, "*s"]


class Accepted(NamedTuple):
    """What the sampler returns."""

    z: PyTree[Shaped[Array, "b s ..."]]
    """The first S accepted proposals of each row, iid from r; undefined where `exhausted`."""
    num_proposals: Int[Array, " b"]
    """N, the proposals up to and including the S-th acceptance (the cap where `exhausted`)."""
    exhausted: Bool[Array, " b"]
    """Rows that drew max_rounds * S proposals without S acceptances."""
    first: LogProbs
    """(b, S) log densities of the first S proposals of each row: iid from q, accepted or not."""
    num_evaluated: Int[Array, ""]
    """Proposals evaluated for the whole batch, the wasted ones included."""
    log_probs: LogProbs | None = None
    """(b, S) log densities of the accepted draws."""
    position: Int[Array, "b s"] | None = None
    """Where in its row's stream each accepted draw stood; those below S are of the first round."""
    first_z: PyTree = ()
    """(b, S, ...) the first S proposals of each row themselves, iid from q."""


class _Progress(NamedTuple):
    kept: tuple[PyTree, LogProbs, Int[Array, "b s"]]
    """Accepted draws, their log densities and their positions."""
    accepted: Int[Array, " b"]
    drawn: Int[Array, " b"]
    evaluated: Int[Array, ""]
    nan_p: Bool[Array, ""]
    nan_q: Bool[Array, ""]


def row_keys(key: PRNGKeyArray, num_rows: int) -> Shaped[Array, "n ..."]:
    """The key of each row's stream."""
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(num_rows))


def stream_words(
    key: PRNGKeyArray, row: Int[Array, "*s"], position: Int[Array, "*s"]
) -> tuple[UInt32[Array, "*s"], UInt32[Array, "*s"]]:
    """Two random words for each place in the rows' streams, a hash of (row, position)."""
    root = jax.random.key_data(key).reshape(-1)[:2]
    return threefry(root, row.astype(jnp.uint32), position.astype(jnp.uint32))


def stream_keys(key: PRNGKeyArray, row: Int[Array, "*s"], position: Int[Array, "*s"]) -> Key[Array, "*s"]:
    """The key of each place in the rows' streams."""
    words = stream_words(key, row, position)
    size = jax.random.key_data(key).shape[-1] // 2  # other generators than the default have longer keys
    data = jnp.stack(words * size, axis=-1)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def log_uniform(word: UInt32[Array, "*s"], dtype: jnp.dtype) -> Float[Array, "*s"]:
    """Log U of a random word, U uniform on (0, 1)."""
    # from 32 bits: a 24-bit uniform is 0 once in 2^23 and would then accept anything
    return jnp.log(word.astype(dtype) + jnp.asarray(0.5, dtype)) - jnp.asarray(32 * 0.6931471805599453, dtype)


def draw_grid(key: PRNGKeyArray, propose: Callable, rows: PyTree, num_rows: int, num_samples: int) -> PyTree:
    """The first `num_samples` proposals of every row, (b, S, ...); what x alone decides is computed once per x."""
    keys = stream_keys(key, *grid(num_rows, num_samples))
    return jax.vmap(lambda ks, row: jax.vmap(lambda k: propose(k, row))(ks))(keys, rows)


def grid(num_rows: int, num_samples: int) -> tuple[Int[Array, "b s"], Int[Array, "b s"]]:
    """Row and position of the first `num_samples` places of every row's stream."""
    rows, positions = jnp.indices((num_rows, num_samples), jnp.int32)
    return rows, positions


def running_sum(v: Int[Array, " n"]) -> Int[Array, " n"]:
    """Sums up to and including each place."""
    if v.size > FEW:
        return jnp.cumsum(v, dtype=jnp.int32)
    place = jnp.arange(v.size)  # one pass over all pairs is faster than a logarithmic number of passes
    return jnp.sum(jnp.where(place[:, None] >= place[None], v[None], 0), axis=1, dtype=jnp.int32)


def place_of(value: Int[Array, "*s"], steps: Int[Array, " n"], *, side: str) -> Int[Array, "*s"]:
    """`jnp.searchsorted`, by comparison with all where they are few."""
    return jnp.searchsorted(steps, value, side=side, method="compare_all" if steps.size <= FEW else "scan")


def widths_for(num_rows: int, num_samples: int) -> tuple[int, ...]:
    """Round widths for a batch, narrowest first."""
    return tuple(max(num_rows * num_samples // share, NARROWEST * SHARES[0] // share) for share in SHARES)


def sample(
    streams: Streams,
    rows: PyTree[Shaped[Array, "b ..."]],
    propose: Callable[[PRNGKeyArray, PyTree], PyTree],
    log_accept: Callable[[PyTree, PyTree], tuple[Array, LogProbs]],
    *,
    num_samples: int,
    max_rounds: int,
    throw: bool = True,
    widths: tuple[int, ...] | None = None,
) -> Accepted:
    """Draws `num_samples` accepted proposals for every row.

    Args:
        streams: keys; `propose` and `accept` are used.
        rows: what `propose` and `log_accept` need for each row, for instance (x, T).
        propose: `(key, row) -> z`, a draw from q.
        log_accept: `(row, z) -> (log a(z), LogProbs)`.
        num_samples: S, accepted draws per row.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: raise when a row gives up; else only flag it in `exhausted`. A NaN log density always raises.
        widths: round widths, narrowest first; by default chosen for the batch. They change the cost, not the draws.

    Returns:
        An `Accepted`.
    """
    require(is_int(num_samples, at_least=1), "num_samples", "an integer >= 1", num_samples)
    require(is_int(max_rounds, at_least=1), "max_rounds", "an integer >= 1", max_rounds)
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    widths = widths_for(num_rows, num_samples) if widths is None else widths
    cap = max_rounds * num_samples

    def is_accepted(row: Array, position: Array, log_a: Array) -> Array:
        return log_uniform(stream_words(streams.accept, row, position)[0], log_a.dtype) <= log_a

    def first_round() -> tuple[_Progress, LogProbs, PyTree]:
        z = draw_grid(streams.propose, propose, rows, num_rows, num_samples)
        log_a, first = jax.vmap(lambda row, zs: jax.vmap(lambda v: log_accept(row, v))(zs))(rows, z)
        lanes, positions = grid(num_rows, num_samples)
        accept = is_accepted(lanes, positions, log_a)
        # all moves of draws are gathers: a scatter is a loop over its rows on a CPU
        won = jnp.sum(accept, axis=1, dtype=jnp.int32)
        ahead = jnp.argsort(~accept, axis=1, stable=True)  # the accepted ones, in order, then the others
        progress = _Progress(
            kept=jax.tree.map(lambda v: v[lanes, ahead], (z, first, positions)),
            accepted=won,
            drawn=jnp.full(num_rows, num_samples, jnp.int32),
            evaluated=jnp.asarray(num_rows * num_samples, jnp.int32),
            nan_p=jnp.any(jnp.isnan(first.log_p)),
            nan_q=jnp.any(jnp.isnan(first.log_q)),
        )
        return progress, first, z

    def demand(progress: _Progress) -> Int[Array, " b"]:
        missing = num_samples - progress.accepted
        wish = jnp.maximum(missing, (OVERDRAW * progress.drawn.astype(jnp.float32)).astype(jnp.int32))
        return jnp.where(missing > 0, jnp.minimum(wish, cap - progress.drawn), 0)

    def evaluate(width: int, row: Array, keys: Array) -> tuple[PyTree, Array, LogProbs]:
        # the first `width` lanes; the others are filled with nothing
        def pad(leaf: Array) -> Array:
            return jnp.pad(leaf, [(0, widths[-1] - width)] + [(0, 0)] * (leaf.ndim - 1))

        own = jax.tree.map(lambda leaf: leaf[row[:width]], rows)
        z = jax.vmap(propose)(keys[:width], own)
        return jax.tree.map(pad, (z, *jax.vmap(log_accept)(own, z)))

    def one_round(progress: _Progress) -> _Progress:
        wish = demand(progress)
        chosen = jnp.sum(jnp.sum(wish, dtype=jnp.int32) >= jnp.asarray(widths[1:], jnp.int32))
        width = jnp.asarray(widths, jnp.int32)[chosen]
        order = jnp.argsort(jnp.where(wish > 0, progress.drawn, cap + 1))
        ends = running_sum(wish[order])
        limit = jnp.minimum(ends[-1], width)
        start = (ends - wish[order])[jnp.argsort(order)]  # first lane of each row
        served = jnp.clip(limit - start, 0, wish)

        lane = jnp.arange(widths[-1], dtype=jnp.int32)
        row = order[jnp.minimum(place_of(lane, ends, side="right"), num_rows - 1)].astype(jnp.int32)
        position = progress.drawn[row] + lane - start[row]
        keys = stream_keys(streams.propose, row, position)
        branches = [lambda r, k, w=w: evaluate(w, r, k) for w in widths]
        z, log_a, log_probs = jax.lax.switch(chosen, branches, row, keys)
        live = lane < limit
        accept = is_accepted(row, position, log_a)  # nothing is taken from lanes that are not live

        # of the round's acceptances, row i won numbers before[i] + 1 to after[i]
        count = running_sum(accept.astype(jnp.int32))
        total = jnp.concatenate([jnp.zeros(1, jnp.int32), count])
        before, after = total[jnp.minimum(start, limit)], total[jnp.minimum(start, limit) + served]
        accepted = jnp.minimum(progress.accepted + after - before, num_samples)
        slot = jnp.arange(num_samples, dtype=jnp.int32)[None]
        number = before[:, None] + slot - progress.accepted[:, None] + 1
        source = jnp.minimum(place_of(number, count, side="left"), widths[-1] - 1)
        is_new = (slot >= progress.accepted[:, None]) & (slot < accepted[:, None])

        def put(kept: Array, new: Array) -> Array:
            return jnp.where(is_new.reshape(is_new.shape + (1,) * (kept.ndim - 2)), new[source], kept)

        return _Progress(
            kept=jax.tree.map(put, progress.kept, (z, log_probs, position)),
            accepted=accepted,
            drawn=progress.drawn + served,
            evaluated=progress.evaluated + width,
            nan_p=progress.nan_p | jnp.any(jnp.isnan(log_probs.log_p) & live),
            nan_q=progress.nan_q | jnp.any(jnp.isnan(log_probs.log_q) & live),
        )

    def unfinished(progress: _Progress) -> Bool[Array, ""]:
        return jnp.any(demand(progress) > 0) & ~progress.nan_p & ~progress.nan_q

    progress, first, first_z = first_round()
    progress = jax.lax.while_loop(unfinished, one_round, progress)
    exhausted = progress.accepted < num_samples
    z, log_probs, position = progress.kept
    num_proposals = jnp.where(exhausted, cap, position[:, -1] + 1).astype(jnp.int32)
    result = Accepted(z, num_proposals, exhausted, first, progress.evaluated, log_probs, position, first_z)
    return refuse_failures(result, progress.nan_p, progress.nan_q, num_samples, max_rounds, throw=throw)


def refuse_failures(
    result: Accepted,
    nan_p: Bool[Array, ""],
    nan_q: Bool[Array, ""],
    num_samples: int,
    max_rounds: int,
    *,
    throw: bool,
) -> Accepted:
    """Raises for NaN log densities and, with `throw`, for rows that gave up."""
    problems = {
        "log p is NaN: model.log_joint(x, z) must return a number or -inf for every proposal.": nan_p,
        "log q is NaN: proposal.log_prob(z, x) must return a number for every proposal.": nan_q,
    }
    if throw:
        problems[
            f"Rejection sampling was exhausted: a row drew max_rounds * num_samples = {max_rounds} * {num_samples} "
            f"proposals without {num_samples} acceptances. Raise the threshold T (or gamma, or the target rate) so "
            "that more is accepted, increase max_rounds, or pass throw=False to leave such rows out of the gradient."
        ] = jnp.any(result.exhausted)
    # what passes a check is new to the compiler: the first round is left out, so that its evaluation can be shared
    checked = result._replace(first=LogProbs(*[jnp.zeros(())] * 2), first_z=())
    for message, condition in problems.items():
        checked = refuse_if(checked, condition, message)
    return checked._replace(first=result.first, first_z=result.first_z)
