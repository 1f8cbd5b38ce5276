"""What VRS and its variants remember, tell, and hand from their draws to their weights."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from relbo import rejection
from relbo.thresholds import Reading


class Tally(NamedTuple):
    """Counts of a whole run.

    Example:
        >>> tally = relbo.estimators.Tally.zero().add(jnp.array([True, False]))
        >>> float(tally.num_exhausted)
        0.5
    """

    num_steps: Int[Array, ""]
    num_exhausted: Float[Array, ""]
    """Sum over steps of the share of rows that ran out."""

    @classmethod
    def zero(cls) -> "Tally":
        """Before the first step."""
        return cls(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def add(self, exhausted: Bool[Array, " b"]) -> "Tally":
        """After one more step."""
        return Tally(self.num_steps + 1, self.num_exhausted + jnp.mean(exhausted.astype(jnp.float32)))


class VRSState(NamedTuple):
    """What VRS remembers between steps.

    Example:
        >>> state = relbo.VRS(2, rate=0.5).init(key, pair, num_data=4)
        >>> int(state.tally.num_steps)
        0
    """

    thresholds: Any
    """State of the threshold."""
    tally: Tally
    """How often rows ran out."""
    edge: Bool[Array, ""] | None = None
    """Whether an impossible proposal has been seen, log p = -inf; only of an estimator that goes along the path."""


class VRSInfo(NamedTuple):
    """What VRS tells about a step.

    Example:
        >>> estimator = relbo.VRS(2, num_proposals=6, rate=0.5)
        >>> _, _, info = estimator.estimate(key, pair, estimator.init(key, pair, 4), batch)
        >>> info.extra.threshold.shape, bool(jnp.all(info.extra.num_used >= 2))
        ((4,), True)
    """

    acceptance: Float[Array, " b"]
    """Mean acceptance probability of the first N proposals of each row: unbiased for Z_R."""
    threshold: Float[Array, " b"]
    """T used, in nats."""
    age: Int[Array, " b"]
    """Steps since T was renewed."""
    exhausted: Bool[Array, " b"]
    """Rows that ran out of proposals and took the step at T = +inf, or were left out if not even that gave draws."""
    num_used: Int[Array, " b"]
    """K, accepted draws behind each row's gradient."""
    num_evaluated: Int[Array, ""]
    """Proposals evaluated for the batch, the wasted ones included."""
    edge: Bool[Array, ""] | None = None
    """As in the state."""


class Rejection(NamedTuple):
    """What a step of VRS knows beside its draws."""

    reading: Reading
    accepted: rejection.Accepted


class Parts(NamedTuple):
    """What the weights are made of, (b, k); the first and the last are 0 where a place is not used.

    Example:
        >>> relbo.estimators.Parts._fields
        ('uniform', 'slope', 'centred', 'u')
    """

    uniform: Float[Array, "b k"]
    """1/K."""
    slope: Float[Array, "b k"]
    """g'(u_k)."""
    centred: Float[Array, "b k"]
    """(A_k - mean A) / (K - 1)."""
    u: Float[Array, "b k"]
    """Log w + T, for what else an acceptance tells."""
