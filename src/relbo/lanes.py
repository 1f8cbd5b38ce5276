r"""Lane plans: which places of the rows' streams a late round of the sampler evaluates.

A place is (row, position in the row's stream). A round has a fixed number of lanes, one place each; those of one row
lie side by side, so that counting acceptances row by row is a difference of running sums.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Shaped

from relbo.types import LogProbs

SHARES, NARROWEST = (16, 4), 8
"""Rounds are 1/16 or 1/4 of S draws per row wide, and at least 8: each further width costs seconds of compilation."""
BLOCKS = 8
"""The gradient of late draws is taken in blocks of 1/8 of S draws per row: about what is late at a rate of 0.9."""
OVERDRAW = 0.2
"""A row asks for at most this fraction of its proposals so far beyond the draws that it misses."""
FEW = 256
"""Up to this size all pairs are compared instead of searched."""


class Lanes(NamedTuple):
    """The places that a round evaluates."""

    row: Int[Array, " w"]
    position: Int[Array, " w"]
    start: Int[Array, " b"]
    """First lane of each row."""
    served: Int[Array, " b"]
    """How many lanes from there on are the row's own; the others evaluate what nobody asked for."""
    num_evaluated: Int[Array, ""]

    def live(self) -> Bool[Array, " w"]:
        """Lanes that somebody asked for."""
        lane = jnp.arange(self.row.size, dtype=jnp.int32)
        return (lane >= self.start[self.row]) & (lane < (self.start + self.served)[self.row])


class Proposals(NamedTuple):
    """Draws from q and their log densities."""

    z: PyTree[Shaped[Array, "..."]]
    log_probs: LogProbs


Round = Callable[[Int[Array, " b"], Int[Array, " b"], Int[Array, " b"]], tuple[Lanes, Proposals]]
"""One late round: from the draws that each row misses, has drawn and may draw, to what is proposed next."""


class Places(NamedTuple):
    """Draws by where they stand in their rows' streams, for gradients that go through their noise."""

    key: PRNGKeyArray
    """The stream of proposals."""
    position: Int[Array, "b k"]
    z: PyTree[Shaped[Array, "b k ..."]]
    """The draws themselves."""
    by_score: bool | Bool[Array, ""] = False
    """Whether c^q weighs grad log q at fixed z instead."""


def widths_for(num_rows: int, num_samples: int) -> tuple[int, ...]:
    """Round widths for a batch, narrowest first."""
    return tuple(max(num_rows * num_samples // share, NARROWEST * SHARES[0] // share) for share in SHARES)


def missing_places(
    missing: Int[Array, " b"], drawn: Int[Array, " b"], cap: Int[Array, " b"], widths: tuple[int, ...]
) -> tuple[Lanes, Int[Array, ""]]:
    """Only places that are missing.

    A row asks for as many lanes as it still misses draws, or for a fixed fraction of what it has drawn so far if that
    is more: what it may overdraw is bounded by that fraction. Rows that have drawn least are served first, and the
    round has the greatest width that the demand fills.

    Args:
        missing: how many accepted draws each row still misses.
        drawn: how many proposals it has drawn.
        cap: how many each may draw.
        widths: possible widths, narrowest first.

    Returns:
        The lanes, and which of the widths they fill.
    """
    num_rows = missing.shape[0]
    wish = jnp.maximum(missing, (OVERDRAW * drawn.astype(jnp.float32)).astype(jnp.int32))
    wish = jnp.where(missing > 0, jnp.minimum(wish, cap - drawn), 0)
    chosen = jnp.sum(jnp.sum(wish, dtype=jnp.int32) >= jnp.asarray(widths[1:], jnp.int32))
    width = jnp.asarray(widths, jnp.int32)[chosen]
    order = jnp.argsort(jnp.where(wish > 0, drawn, jnp.iinfo(jnp.int32).max))
    ends = running_sum(wish[order])
    limit = jnp.minimum(ends[-1], width)
    start = jnp.minimum((ends - wish[order])[jnp.argsort(order)], limit)
    lane = jnp.arange(widths[-1], dtype=jnp.int32)
    row = order[jnp.minimum(place_of(lane, ends, side="right"), num_rows - 1)].astype(jnp.int32)
    lanes = Lanes(
        row=row,
        position=drawn[row] + lane - start[row],
        start=start,
        served=jnp.clip(limit - start, 0, wish),
        num_evaluated=width,
    )
    return lanes, chosen


def columns(
    missing: Int[Array, " b"], drawn: Int[Array, " b"], cap: Int[Array, " b"], width: int
) -> tuple[Lanes, Int[Array, " k"]]:
    """The next `width` positions of every row, for programs that run for all rows together; and these positions.

    Rows that miss draws have all drawn equally many.
    """
    num_rows = missing.shape[0]
    first = jnp.max(jnp.where(missing > 0, drawn, 0))
    positions = first + jnp.arange(width, dtype=jnp.int32)
    lanes = Lanes(
        row=jnp.repeat(jnp.arange(num_rows, dtype=jnp.int32), width),
        position=jnp.tile(positions, num_rows),
        start=jnp.arange(num_rows, dtype=jnp.int32) * width,
        served=jnp.where(missing > 0, jnp.minimum(width, cap - drawn), 0),
        num_evaluated=jnp.asarray(num_rows * width, jnp.int32),
    )
    return lanes, positions


def running_sum(v: Int[Array, " n"]) -> Int[Array, " n"]:
    """Sums up to and including each place."""
    if v.size > FEW:
        return jnp.cumsum(v, dtype=jnp.int32)
    place = jnp.arange(v.size)  # one pass over all pairs is faster than a logarithmic number of passes
    return jnp.sum(jnp.where(place[:, None] >= place[None], v[None], 0), axis=1, dtype=jnp.int32)


def place_of(value: Int[Array, "*s"], steps: Int[Array, " n"], *, side: str) -> Int[Array, "*s"]:
    """`jnp.searchsorted`, by comparison with all where they are few."""
    return jnp.searchsorted(steps, value, side=side, method="compare_all" if steps.size <= FEW else "scan")
