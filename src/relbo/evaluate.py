r"""Evaluation: ELBO, IS-k and RS-k of any model, streamed so that memory does not grow with k or the data.

    ELBO     mean log w, one draw from q
    IS-k     log mean_k w                              k draws from q
    RS-k     log mean_k exp A + log Zhat               k draws from r

For RS the threshold of a point comes from a separate draw, Zhat from fresh proposals that are independent of both
(never k/N), and IS at k / Z_R draws, which costs the same, is computed beside it.

Every value comes with two errors: the standard error over datapoints, and the Monte-Carlo error of the mean, from
repeating the evaluation with other random numbers.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from relbo import bounds as bound_functions
from relbo._check import checked_key, num_datapoints, require
from relbo._options import check
from relbo._tree import numbers_as_arrays
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.bounds import IS, RS, AbstractBound
from relbo.devices import as_mesh, map_blocks
from relbo.rejection import draw_accepted
from relbo.streams import AT_ONCE, Streams, in_blocks, row_keys
from relbo.thresholds import AbstractThreshold, Quantile, as_threshold
from relbo.types import Number, Pair
from relbo.view import view_of

LANES = AT_ONCE
FRESH_DRAWS = 1_000
"""Draws behind T and behind Zhat in RS-k."""
RS_ROWS = 50
"""Datapoints whose draws from r are sought together."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A bound on a set of datapoints, in nats."""

    name: str
    values: np.ndarray
    """(repeats, n) bound of each datapoint."""
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
    """For RS: mean acceptance rate, and IS at the same number of proposals."""

    @property
    def per_datapoint(self) -> np.ndarray:
        """(n,) mean over repeats."""
        return self.values.mean(axis=0)

    @property
    def mean(self) -> float:
        """The bound, mean over datapoints."""
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """Standard deviation of `mean` over other sets of datapoints; NaN for a single one."""
        size = self.values.shape[1]
        return float(self.per_datapoint.std(ddof=1) / math.sqrt(size)) if size > 1 else math.nan

    @property
    def monte_carlo_error(self) -> float:
        """Standard deviation of `mean` over evaluations with other random numbers; NaN for a single repeat."""
        repeats, size = self.values.shape
        if repeats < 2:
            return math.nan
        return float(np.sqrt(self.values.var(axis=0, ddof=1).sum() / repeats) / size)

    def summary(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {
            "bound": self.name,
            "mean": self.mean,
            "nll": -self.mean,
            "standard_error": self.standard_error,
            "monte_carlo_error": self.monte_carlo_error,
            "num_datapoints": self.values.shape[1],
            "repeats": self.values.shape[0],
            **self.extra,
        }


LogWeights = Callable[[Int[Array, " k"]], Float[Array, "b k"]]
"""From positions in the rows' streams to log w of each row's draws there."""


def log_weights_of(pair: Pair, keys: Shaped[Array, "b ..."], x: PyTree) -> LogWeights:
    """Log w of the draws of each datapoint's stream; what x alone decides is computed once."""
    rows = (keys, x, jax.vmap(pair.proposal.condition)(x))

    def one(j: Array, key: PRNGKeyArray, x: PyTree, condition: PyTree) -> Float[Array, ""]:
        z, log_q = pair.proposal.sample_and_log_prob(jax.random.fold_in(key, j), condition)
        return pair.model.log_joint(x, z) - log_q

    of_row = jax.vmap(one, (0, None, None, None))
    return lambda position: jax.vmap(of_row, (None, 0, 0, 0))(position, *rows)


class _Importance(NamedTuple):
    pair: Pair
    k: Int[Array, ""]
    """Draws; traced, so that no bound compiles twice."""
    chunk: int
    """Draws at a time."""


class _Block(NamedTuple):
    keys: Shaped[Array, "b ..."]
    x: PyTree


def _importance(settings: _Importance, block: _Block) -> Float[Array, " b"]:
    # log mean_k w by a running log-sum-exp over chunks of draws
    (pair, k, chunk), (keys, x) = settings, block
    log_weights = log_weights_of(pair, keys, x)

    def body(i: Array, total: Float[Array, " b"]) -> Float[Array, " b"]:
        position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
        log_w = jnp.where((position < k)[None, :], log_weights(position), -jnp.inf)
        return jnp.logaddexp(total, jax.scipy.special.logsumexp(log_w, axis=1))

    dtype = jax.eval_shape(log_weights, jnp.zeros(1, jnp.int32)).dtype
    start = jnp.full(keys.shape[0], -jnp.inf, dtype)
    total = jax.lax.fori_loop(0, (k + chunk - 1) // chunk, body, start)
    return total - jnp.log(k.astype(total.dtype))


class _Resampled(NamedTuple):
    pair: Pair
    k: int
    threshold: AbstractThreshold
    acceptance: AbstractAcceptance
    max_rounds: int


def _resampled(settings: _Resampled, block: _Block) -> Float[Array, "2 b"]:
    # RS-k and Z_R of each datapoint; T, Zhat and the draws come from three separate streams
    (pair, k, threshold, acceptance, max_rounds), (keys, x) = settings, block
    split = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    behind_t, behind_z = (log_weights_of(pair, split[:, i], x) for i in range(2))
    size = keys.shape[0]
    t = threshold.solve(in_blocks(behind_t, size, max(threshold.fresh_draws, 1)), acceptance)
    log_z = bound_functions.log_z_fresh(in_blocks(behind_z, size, FRESH_DRAWS), t, acceptance)
    # the draws of a block share one key; the other two streams belong to rows
    streams = Streams(*jax.random.split(split[0, 2], 3))
    accepted = draw_accepted(view_of(pair, x), streams, t, acceptance, num_samples=k, max_rounds=max_rounds)
    log_p, log_q = accepted.log_probs
    return jnp.stack([bound_functions.rs(log_p - log_q, t, log_z, acceptance), jnp.exp(log_z)])


def evaluate(
    pair: Pair,
    x: PyTree,
    bounds: Sequence[AbstractBound | str] | AbstractBound | str = ("elbo", "is:25"),
    *,
    key: PRNGKeyArray,
    repeats: int = 2,
    threshold: AbstractThreshold | Number | str | None = None,
    rate: Number | None = None,
    acceptance: AbstractAcceptance | None = None,
    max_rounds: int = 10_000,
    on_progress: Callable[[int], None] | None = None,
    mesh: Mesh | int | None = None,
) -> dict[str, Estimate]:
    """Evaluates bounds on the log evidence of every datapoint.

    Args:
        pair: model and proposal.
        x: datapoints, the first axis of every leaf running over them.
        bounds: `relbo.ELBO()`, `relbo.IS(k)`, `relbo.RS(k)` or their words `elbo`, `is:K`, `rs:K`; one or several.
        key: randomness.
        repeats: independent evaluations, >= 2 for a Monte-Carlo error.
        threshold: how T is set for an RS that does not say so itself: a threshold, a number or words; by default the
            0.9 quantile over 1,000 draws.
        rate: short for a threshold that has this acceptance rate on 1,000 draws.
        acceptance: acceptance of an RS that does not say so itself; by default `Soft()`.
        max_rounds: RS gives up on a point after max_rounds * k proposals.
        on_progress: called with the number of draws done since the last call.
        mesh: devices that share the datapoints, or how many of JAX's; the values do not depend on it.

    Returns:
        An `Estimate` for each bound, under its name.

    Example:
        >>> found = relbo.evaluate(pair, x, ["elbo", "is:20"], key=key)
        >>> [f"{bound:6} {estimate.mean:.2f} +- {estimate.standard_error:.2f}" for bound, estimate in found.items()]
        ['elbo   -2... +- 0...', 'is:20  -2... +- 0...']
    """
    require(isinstance(pair, Pair), "evaluate: pair", "a relbo.Pair(model, proposal), such as relbo.sbn makes", pair)
    checked_key(key, "evaluate: key")
    check("evaluate: ", repeats=repeats, max_rounds=max_rounds)
    is_known = acceptance is None or isinstance(acceptance, AbstractAcceptance)
    require(is_known, "evaluate: acceptance", "an acceptance such as Soft(), Hard() or Always()", acceptance)
    usual = as_threshold(threshold, rate, default=Quantile(0.9, FRESH_DRAWS), num_draws=FRESH_DRAWS)
    is_one = isinstance(bounds, str | AbstractBound)
    require(is_one or isinstance(bounds, Sequence), "evaluate: bounds", "a bound or a list of bounds", bounds)
    wanted = [bounds] if isinstance(bounds, str | AbstractBound) else list(bounds)
    named = [bound_functions.parse(bound) for bound in wanted]
    names = [str(bound) for bound in named]
    require(len(set(names)) == len(names), "evaluate: bounds", "of different names; evaluate others apart", names)
    total = num_datapoints(x, "evaluate: x")
    report = on_progress or (lambda done: None)

    devices = as_mesh(mesh, "evaluate: mesh")

    def by_blocks(function: Callable[..., Any], settings: Any, key: PRNGKeyArray, size: int, k: int) -> np.ndarray:
        parts = []
        for part in map_blocks(function, devices, settings, _blocks(key, x, size)):
            parts.append(part)
            report(k * min(part.shape[-1], total - part.shape[-1] * (len(parts) - 1)))
        return np.concatenate(parts, axis=-1)[..., :total]

    def importance(k: int, key: PRNGKeyArray, chunk: int) -> np.ndarray:
        chunk = min(chunk, 100)
        settings = _Importance(pair, jnp.asarray(k, jnp.int32), chunk)
        return by_blocks(_importance, settings, key, max(LANES // chunk, 1), k)

    def resampled(bound: RS, key: PRNGKeyArray) -> np.ndarray:
        rule, accept = numbers_as_arrays((bound.threshold or usual, bound.acceptance or acceptance or Soft()))
        settings = _Resampled(pair, bound.num_samples, rule, accept, max_rounds)
        return by_blocks(_resampled, settings, key, RS_ROWS, bound.num_samples)

    result: dict[str, Estimate] = {}
    for bound in named:
        name, k = str(bound), num_draws(bound)
        stable = k + 2**24 * isinstance(bound, RS)  # a bound's random numbers do not depend on the others asked for
        keys = jax.random.split(jax.random.fold_in(key, stable), repeats + 1)
        if not isinstance(bound, RS):
            result[name] = Estimate(name, np.stack([importance(k, one, k) for one in keys[:repeats]]))
            continue
        both = np.stack([resampled(bound, one) for one in keys[:repeats]])  # (repeats, 2, n)
        rate_seen = float(both[:, 1].mean())
        matched = round(k / rate_seen)
        extra = {
            "acceptance_rate": rate_seen,
            "matched_is_samples": matched,
            # in chunks of is:K, whose program serves any number of draws: `matched` differs from run to run
            "matched_is_mean": float(importance(matched, keys[repeats], k).mean()),
        }
        result[name] = Estimate(name, both[:, 0], extra)
    return result


def num_draws(bound: AbstractBound | str) -> int:
    """Draws per datapoint that `evaluate` reports to `on_progress` for a bound."""
    bound = bound_functions.parse(bound)
    return bound.num_samples if isinstance(bound, IS | RS) else 1


def _blocks(key: PRNGKeyArray, x: PyTree, size: int) -> Iterator[_Block]:
    # equal blocks, the last one padded by repeating its last row; keys belong to rows, not to blocks
    total = jax.tree.leaves(x)[0].shape[0]
    size = min(size, total)
    keys = row_keys(key, total)
    for start in range(0, total, size):
        rows = np.minimum(np.arange(start, start + size), total - 1)
        yield _Block(keys[rows], jax.tree.map(lambda v, rows=rows: as_input(v[rows]), x))


def as_input(v: Array | np.ndarray) -> Array:
    """An array as models take it: stored images are bytes of 0 and 1, and become floats."""
    return jnp.asarray(v, jnp.result_type(float)) if v.dtype == np.uint8 else jnp.asarray(v)
