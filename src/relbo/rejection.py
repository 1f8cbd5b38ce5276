r"""The rejection sampler (Algorithm 1 of the paper, with a budget), without stragglers.

Every row owns an endless stream of proposals (`relbo.streams`). It evaluates the first N and uses *all* that are
accepted among them. Only a row with fewer than S acceptances goes on, to exactly S. This stopping rule looks at
nothing but acceptances, so given their number K the accepted draws are iid from r(z) proportional to q(z) a(z), and
they depend neither on the other rows nor on the schedule of the late rounds. N = S is the paper's algorithm.

A row whose T is far too low would go on for ever. After its cap it *runs out*: either that is an error, or the row
falls back to T = +inf, which accepts every possible proposal, and takes the next S of its stream. These are iid from q
and independent of what made the row run out, so a step is unbiased for pi R-ELBO + (1 - pi) ELBO, a lower bound, with
pi the probability of not running out (held constant). Leaving such rows out would unlearn the hardest datapoints.

The first round is one evaluation of full width. Late rounds are a loop whose lanes the view of the pair plans
(`relbo.lanes`). Nothing is moved in memory: what counts is a mask over N + S places, N for the first round and S for
what came later.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", Algorithm 1, https://arxiv.org/abs/1804.01712.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from relbo._check import is_int, refuse_if, require
from relbo._tree import Begun, is_finite
from relbo.acceptance import AbstractAcceptance, in_one_axis, log_odds_of
from relbo.lanes import Places, place_of, running_sum
from relbo.streams import Streams, grid, log_uniform, stream_words
from relbo.types import Draws, LogProbs, Weights
from relbo.view import AbstractView, Proposals


class Accepted(NamedTuple):
    """What the sampler returns: N + S places for each row, and which of them hold accepted draws.

    Example:
        >>> streams, t = relbo.Streams(*jax.random.split(key, 3)), jnp.zeros(4)
        >>> found = draw_accepted(view, streams, t, relbo.Soft(), num_samples=3, max_rounds=1_000)
        >>> found.num_used.tolist(), bool(jnp.all(found.num_proposals >= 3))
        ([3, 3, 3, 3], True)
    """

    z: PyTree[Shaped[Array, "b k ..."]]
    """The first N proposals of each row, then S places for draws that were accepted later."""
    log_probs: LogProbs
    """(b, N + S) log densities."""
    used: Bool[Array, "b k"]
    """Places that hold an accepted draw: iid from r given their number."""
    num_used: Int[Array, " b"]
    """K, how many there are: from S to N for a row that finished in the first round, S for one that went on."""
    num_proposals: Int[Array, " b"]
    """N for a row that finished in the first round, else proposals up to its S-th acceptance (the cap if none came)."""
    exhausted: Bool[Array, " b"]
    """Rows that ran out. None of their draws is used, or those that came after T was set to +inf."""
    t: Float[Array, " b"]
    """T behind the draws that are used: +inf for rows that fell back."""
    num_tried: Int[Array, " b"]
    """`num_proposals`, without those before T was set to +inf."""
    position: Int[Array, "b k"]
    """Place of each draw in its row's stream."""
    num_evaluated: Int[Array, ""]
    """Proposals evaluated for the whole batch, the wasted ones included."""


class _Late(NamedTuple):
    """Progress of the late rounds: S places for each row, the j-th for its j-th acceptance."""

    kept: tuple[Proposals, Int[Array, "b s"]]
    """Accepted draws and their positions."""
    accepted: Int[Array, " b"]
    """Acceptances so far, at most S, those of the first round included."""
    drawn: Int[Array, " b"]
    fallen: Bool[Array, " b"]
    """Rows that ran out and have T = +inf since."""
    evaluated: Int[Array, ""]
    nan_p: Bool[Array, ""]
    nan_q: Bool[Array, ""]


def sample(
    view: AbstractView,
    streams: Streams,
    first: Proposals,
    t: Float[Array, " b"],
    acceptance: AbstractAcceptance,
    *,
    num_samples: int,
    max_rounds: int,
    throw: bool = True,
    fall_back: bool = False,
    widths: tuple[int, ...] | None = None,
) -> Accepted:
    """Goes on from the first N proposals of every row until each has S accepted draws.

    Args:
        view: the pair at a batch of x.
        streams: keys; `propose` and `accept` are used.
        first: the first N proposals of each row's stream, `view.draw(streams.propose, N)`, with log densities.
        t: threshold of each row.
        acceptance: the acceptance function.
        num_samples: S <= N, accepted draws per row at the least.
        max_rounds: a row runs out after max_rounds * S proposals (and never before N).
        throw: raise when a row runs out; else flag it in `exhausted`. A NaN log density always raises.
        fall_back: a row that runs out takes S further draws at T = +inf; it may draw as many proposals for that as it
            had before, and if so many are impossible it is left without draws.
        widths: widths of the late rounds, narrowest first; by default chosen for the batch. They change the cost, not
            the draws.

    Returns:
        An `Accepted`.

    Example:
        >>> streams, t = relbo.Streams(*jax.random.split(key, 3)), jnp.zeros(4)
        >>> z = view.draw(streams.propose, 5)
        >>> first = relbo.view.Proposals(z, view.log_densities(z))
        >>> found = sample(view, streams, first, t, relbo.Soft(), num_samples=2, max_rounds=1_000)
        >>> bool(jnp.all(found.num_used >= 2))
        True
    """
    require(is_int(num_samples, at_least=1), "num_samples", "an integer >= 1", num_samples)
    require(is_int(max_rounds, at_least=1), "max_rounds", "an integer >= 1", max_rounds)
    num_rows, budget = first.log_probs.log_p.shape
    require(budget >= num_samples, "num_proposals", f"at least num_samples = {num_samples}", budget)
    cap = min(max(max_rounds * num_samples, budget), 2**30 - 1)
    last = 2 * cap if fall_back else cap

    def is_accepted(row: Array, position: Array, log_probs: LogProbs, t: Array) -> Array:
        u = log_odds_of(*log_probs, t.astype(log_probs.log_p.dtype))
        log_a = in_one_axis(acceptance.log_prob, u).reshape(-1)
        # a uniform number of half precision has too few values
        wide = log_a.dtype if jnp.finfo(log_a.dtype).bits >= 32 else jnp.dtype(jnp.float32)
        word = stream_words(streams.accept, row.reshape(-1), position.reshape(-1))[0]
        return (log_uniform(word, wide) <= log_a.astype(wide)).reshape(u.shape)

    in_first = is_accepted(*grid(num_rows, budget), first.log_probs, t[:, None])
    num_first = jnp.sum(in_first, axis=1, dtype=jnp.int32)
    next_round = view.rounds(streams.propose, view.late_width(num_samples, budget), widths)
    slot = jnp.arange(num_samples, dtype=jnp.int32)[None]

    def limit(late: _Late) -> Int[Array, " b"]:
        return jnp.where(late.fallen, last, cap).astype(jnp.int32)

    def missing(late: _Late) -> Int[Array, " b"]:
        return jnp.where(late.drawn < limit(late), num_samples - late.accepted, 0)

    def give_up(late: _Late) -> _Late:
        falls = (late.accepted < num_samples) & (late.drawn >= cap) & ~late.fallen & fall_back
        return late._replace(fallen=late.fallen | falls, accepted=jnp.where(falls, 0, late.accepted))

    def one_round(late: _Late) -> _Late:
        lanes, found = next_round(missing(late), late.drawn, limit(late))
        live = lanes.live()
        t_now = jnp.where(late.fallen, jnp.inf, t)
        accept = is_accepted(lanes.row, lanes.position, found.log_probs, t_now[lanes.row]) & live
        # all moves of draws are gathers: a scatter is a loop over its rows on a CPU.
        # Of the round's acceptances, row i won numbers before[i] + 1 to after[i].
        count = running_sum(accept.astype(jnp.int32))
        total = jnp.concatenate([jnp.zeros(1, jnp.int32), count])
        before, after = total[lanes.start], total[lanes.start + lanes.served]
        accepted = jnp.minimum(late.accepted + after - before, num_samples)
        number = before[:, None] + slot - late.accepted[:, None] + 1
        source = jnp.minimum(place_of(number, count, side="left"), count.size - 1)
        is_new = (slot >= late.accepted[:, None]) & (slot < accepted[:, None])

        def put(kept: Array, new: Array) -> Array:
            return jnp.where(is_new.reshape(is_new.shape + (1,) * (kept.ndim - 2)), new[source], kept)

        after_round = _Late(
            kept=jax.tree.map(put, late.kept, (found, lanes.position)),
            accepted=accepted,
            drawn=late.drawn + lanes.served,
            fallen=late.fallen,
            evaluated=late.evaluated + lanes.num_evaluated,
            nan_p=late.nan_p | jnp.any(jnp.isnan(found.log_probs.log_p) & live),
            nan_q=late.nan_q | jnp.any(jnp.isnan(found.log_probs.log_q) & live),
        )
        return give_up(after_round)

    nan_t = jnp.any(jnp.isnan(t))

    def unfinished(late: _Late) -> Bool[Array, ""]:
        return jnp.any(missing(late) > 0) & ~late.nan_p & ~late.nan_q & ~nan_t

    start = _Late(
        kept=(
            jax.tree.map(lambda v: jnp.zeros((num_rows, num_samples, *v.shape[2:]), v.dtype), first),
            jnp.zeros((num_rows, num_samples), jnp.int32),
        ),
        accepted=jnp.minimum(num_first, num_samples),
        drawn=jnp.full(num_rows, budget, jnp.int32),
        fallen=jnp.zeros(num_rows, bool),
        evaluated=jnp.asarray(num_rows * budget, jnp.int32),
        nan_p=jnp.any(jnp.isnan(first.log_probs.log_p)),
        nan_q=jnp.any(jnp.isnan(first.log_probs.log_q)),
    )
    with jax.named_scope("late_rounds"):
        late = jax.lax.while_loop(unfinished, one_round, give_up(start))
    (later, position) = late.kept
    without = late.accepted < num_samples
    exhausted = without | late.fallen
    went_on = num_first < num_samples
    in_late = (slot >= jnp.where(late.fallen, 0, num_first)[:, None]) & (slot < late.accepted[:, None])
    used = jnp.concatenate([in_first & ~late.fallen[:, None], in_late], axis=1) & ~without[:, None]
    stopped = jnp.where(without, late.drawn, position[:, -1] + 1)
    num_proposals = jnp.where(went_on, stopped, budget).astype(jnp.int32)
    places = jax.tree.map(lambda *v: jnp.concatenate(v, axis=1), first, later)
    result = Accepted(
        z=places.z,
        log_probs=places.log_probs,
        used=used,
        num_used=jnp.sum(used, axis=1, dtype=jnp.int32),
        num_proposals=num_proposals,
        exhausted=exhausted,
        t=jnp.where(late.fallen, jnp.inf, t),
        num_tried=num_proposals - jnp.where(late.fallen, cap, 0),
        position=jnp.concatenate([grid(num_rows, budget)[1], position], axis=1),
        num_evaluated=late.evaluated,
    )
    return _refuse_failures(result, late, num_samples, max_rounds, throw=throw)


def accepted_draws(
    view: AbstractView,
    streams: Streams,
    t: Float[Array, " b"],
    acceptance: AbstractAcceptance,
    *,
    num_samples: int,
    num_proposals: int,
    max_rounds: int,
    throw: bool = True,
    along_path: bool = False,
    by_score: bool | Bool[Array, ""] = False,
) -> Draws:
    """Accepted draws with the way to a gradient; `extra` is the `Accepted`. Rows that run out raise or fall back.

    The first round is evaluated once: its values serve the accept test, its pull-back the gradient. What was accepted
    later is evaluated again, in blocks, as many as there are. The gradient is that of `view.scored` or, `along_path`,
    of `view.along`; to rows that reject nothing, T = +inf, the latter adds - sum_k grad log q(z_k | x) / N over their
    first N proposals, which has mean 0. Where `by_score` holds the gradient is that of `view.scored` all the same.

    Example:
        >>> streams, t = relbo.Streams(*jax.random.split(key, 3)), jnp.zeros(4)
        >>> settings = {"num_samples": 2, "num_proposals": 5, "max_rounds": 1_000}
        >>> draws = accepted_draws(view, streams, t, relbo.Soft(), **settings)
        >>> bool(jnp.all(jnp.sum(draws.used, axis=1) >= 2))
        True
    """
    if along_path:
        z, first, pull_first = view.along(view.noise(streams.propose, num_proposals), by_score=by_score)
    else:
        with jax.named_scope("propose"):
            z = view.draw(streams.propose, num_proposals)
        with jax.named_scope("score"):
            first, pull_first = view.scored(z)
    first = view.settled(first, streams.accept)
    accepted = sample(
        view,
        streams,
        Proposals(z, first),
        t,
        acceptance,
        num_samples=num_samples,
        max_rounds=max_rounds,
        throw=throw,
        fall_back=not throw,
    )

    def pull_back(weights: Weights) -> Any:
        in_first = Weights(*[c[:, :num_proposals] for c in weights])
        # where nothing is rejected the c^p of a row add up to its weight in the mean
        rejects_nothing = jnp.isposinf(t) & jnp.logical_not(by_score)
        whole = jnp.where(rejects_nothing, jnp.sum(weights.model, axis=1) / num_proposals, 0)
        score = jnp.broadcast_to(-whole[:, None], in_first.proposal.shape)
        with jax.named_scope("pull_back"):
            grads = pull_first(in_first, score) if along_path else pull_first(in_first)
        # a rejected z may have an infinite derivative, and 0 times that is NaN: then all that has a weight is redone
        finite = is_finite(grads)
        late = jnp.arange(accepted.used.shape[1]) >= num_proposals
        todo = ((weights.model != 0) | (weights.proposal != 0)) & (late[None] | ~finite)
        start, places = Begun(grads, finite), accepted.z
        if along_path:
            kept = jax.lax.cond(finite, lambda: grads, lambda: _score(view, z, score))
            start = Begun(kept, jnp.ones((), bool))
            places = Places(streams.propose, accepted.position, accepted.z, by_score)
        with jax.named_scope("late_gradient"):
            return view.gradient(places, weights, todo, start, view.late_width(num_samples, num_proposals))

    return Draws(accepted.z, *accepted.log_probs, accepted.used, pull_back, accepted)


def draw_accepted(
    view: AbstractView,
    streams: Streams,
    t: Float[Array, " b"],
    acceptance: AbstractAcceptance,
    *,
    num_samples: int,
    max_rounds: int,
    throw: bool = True,
    widths: tuple[int, ...] | None = None,
) -> Accepted:
    """The paper's algorithm for those who want draws and no gradient: exactly S accepted draws, in S places.

    Example:
        >>> streams, t = relbo.Streams(*jax.random.split(key, 3)), jnp.zeros(4)
        >>> found = draw_accepted(view, streams, t, relbo.Soft(), num_samples=3, max_rounds=1_000)
        >>> found.z[0].shape
        (4, 3, 3)
    """
    z = view.draw(streams.propose, num_samples)
    first = Proposals(z, view.log_densities(z))
    accepted = sample(
        view,
        streams,
        first,
        t,
        acceptance,
        num_samples=num_samples,
        max_rounds=max_rounds,
        throw=throw,
        widths=widths,
    )
    place = jnp.argsort(~accepted.used, axis=1, stable=True)[:, :num_samples]
    row = jnp.arange(t.shape[0])[:, None]

    def compact(tree: Any) -> Any:
        return jax.tree.map(lambda v: v[row, place], tree)

    return accepted._replace(z=compact(accepted.z), log_probs=compact(accepted.log_probs), used=compact(accepted.used))


def _score(view: AbstractView, z: PyTree, weights: Float[Array, "b k"]) -> Any:
    """The weighted gradient of log q at fixed z alone, finite also where log p has no derivative."""
    _, pull = eqx.filter_vjp(lambda pair: view.at(pair).log_densities(z).log_q, view.pair)
    return pull(weights)[0]


def _refuse_failures(result: Accepted, late: _Late, num_samples: int, max_rounds: int, *, throw: bool) -> Accepted:
    nan_t = jnp.any(jnp.isnan(result.t))
    problems = {
        "log p is NaN: model.log_joint(x, z) must return a number or -inf for every proposal.": late.nan_p,
        "log q is NaN: proposal.log_prob(z, x) must return a number for every proposal.": late.nan_q,
        "log p or log q is NaN at one of the draws behind T: model.log_joint(x, z) must return a number or -inf, and "
        "proposal.log_prob(z, x) a number, for every draw.": nan_t,
    }
    if throw:
        problems[
            f"Rejection sampling was exhausted: a row drew max_rounds * num_samples = {max_rounds} * {num_samples} "
            f"proposals without {num_samples} acceptances. Raise the threshold T (or gamma, or the target rate) so "
            "that more is accepted, increase max_rounds, or pass throw=False to go on without the accepted draws."
        ] = jnp.any(result.exhausted) & ~(late.nan_p | late.nan_q | nan_t)  # which stop the search: say what did
    used = result.used
    for message, condition in problems.items():
        used = refuse_if(used, condition, message)
    return result._replace(used=used)
