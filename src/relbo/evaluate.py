r"""Evaluation: ELBO, IS-k and RS-k of any model, streamed so that memory does not grow with k or the data.

    ELBO     mean log w, one draw from q
    IS-k     log mean_k w                              k draws from q
    RS-k     log mean_k exp A + log Zhat               k draws from r

A datapoint has one stream of draws from q for each repeat, and every bound reads it from its beginning: the ELBO its
first draw, IS-k its first k, Zhat of RS its first 1,000. So bounds that are asked for together cost one pass over the
longest of them, and their random numbers do not depend on which are asked for. Each is by itself the estimate that it
is alone; that two of them share draws makes their difference less noisy.

For RS the threshold of a point comes from a stream of its own, once for all repeats, and the draws from r from a third:
Zhat is independent of both (never k/N). IS at k / Z_R draws, which costs the same, is computed beside it.

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
from relbo._check import checked_key, checked_x, num_datapoints, require
from relbo._options import check
from relbo._table import html_table
from relbo._tree import numbers_as_arrays
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.bounds import IS, RS, AbstractBound
from relbo.devices import as_mesh, map_blocks
from relbo.rejection import draw_accepted
from relbo.streams import AT_ONCE, Streams, in_blocks, row_keys
from relbo.thresholds import AbstractThreshold, Quantile, as_threshold
from relbo.thresholds.base import solved
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

    def _figures(self) -> dict[str, str]:
        repeats, size = self.values.shape
        figures = {
            self.name: f"{self.mean:.2f}{_error(self.standard_error, 2)} nats",
            "datapoints": f"{size:,}",
            "Monte-Carlo error": _error(self.monte_carlo_error, 4).removeprefix(" +- "),
            "repeats": f"{repeats}",
        }
        return {n: v for n, v in figures.items() if v} | {n: f"{value:.4g}" for n, value in self.extra.items()}

    def __repr__(self) -> str:
        (name, mean), *_ = self._figures().items()
        size = self.values.shape[1]
        return f"Estimate({name}: {mean}, {size:,} datapoint{'s' * (size != 1)})"

    def _repr_html_(self) -> str:
        return html_table(self._figures())

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


def _error(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f" +- {value:.{digits}f}"


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


class _Reading(NamedTuple):
    pair: Pair
    sizes: Int[Array, " n"]
    """Draws of each IS; traced, so that no bound compiles twice."""
    acceptances: tuple[AbstractAcceptance, ...]
    """Of each RS."""
    chunk: int
    """Draws at a time."""


class _Rows(NamedTuple):
    keys: Shaped[Array, "b ..."]
    x: PyTree
    t: tuple[Float[Array, " b"], ...] = ()
    """T of each RS."""
    log_z: tuple[Float[Array, " b"], ...] = ()
    """Log Zhat of each RS."""


def _read(settings: _Reading, rows: _Rows) -> Float[Array, "m b"]:
    # log mean_k w of each size, then log Zhat of each T: running log-sum-exps over chunks of the rows' streams
    pair, sizes, acceptances, chunk = settings
    log_weights = log_weights_of(pair, rows.keys, rows.x)
    fresh = jnp.full(len(rows.t), FRESH_DRAWS, sizes.dtype)
    counts = jnp.concatenate([sizes, fresh])

    def body(i: Array, totals: Float[Array, "m b"]) -> Float[Array, "m b"]:
        position = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
        log_w = log_weights(position)
        accepts = [bound_functions.log_accept(log_w, *each) for each in zip(rows.t, acceptances, strict=True)]
        terms = jnp.stack([*[log_w] * len(sizes), *accepts])
        within = (position[None, :] < counts[:, None])[:, None, :]
        return jnp.logaddexp(totals, jax.scipy.special.logsumexp(jnp.where(within, terms, -jnp.inf), axis=2))

    dtype = jax.eval_shape(log_weights, jnp.zeros(1, jnp.int32)).dtype
    start = jnp.full((counts.shape[0], rows.keys.shape[0]), -jnp.inf, dtype)
    totals = jax.lax.fori_loop(0, (counts.max() + chunk - 1) // chunk, body, start)
    return totals - jnp.log(counts.astype(totals.dtype))[:, None]


class _Resampling(NamedTuple):
    pair: Pair
    k: int
    threshold: AbstractThreshold
    acceptance: AbstractAcceptance
    max_rounds: int


class _Rejecting(NamedTuple):
    name: str
    settings: _Resampling
    t: Float[Array, " n"]
    """T of each datapoint."""


def _solve(settings: _Resampling, rows: _Rows) -> Float[Array, " b"]:
    # T of each datapoint
    log_weights = log_weights_of(settings.pair, rows.keys, rows.x)
    log_w = in_blocks(log_weights, rows.keys.shape[0], max(settings.threshold.fresh_draws, 1))
    return solved(settings.threshold, log_w, settings.acceptance)


def _resampled(settings: _Resampling, rows: _Rows) -> Float[Array, "2 b"]:
    # RS-k of each datapoint, and whether it ran out; the draws of a block share one key
    (t,), (log_z,) = rows.t, rows.log_z
    accepted = draw_accepted(
        view_of(settings.pair, rows.x),
        Streams(*jax.random.split(rows.keys[0], 3)),
        t,
        settings.acceptance,
        num_samples=settings.k,
        max_rounds=settings.max_rounds,
        throw=False,
    )
    log_p, log_q = accepted.log_probs
    values = bound_functions.rs(log_p - log_q, t, log_z, settings.acceptance)
    return jnp.stack([values, accepted.exhausted.astype(values.dtype)])


def _refuse_exhausted(name: str, settings: _Resampling, exhausted: np.ndarray) -> None:
    out = np.flatnonzero(exhausted)
    if out.size:
        which = f"datapoint {out[0]}" + f" and {out.size - 1} more" * (out.size > 1)
        raise RuntimeError(
            f"{name} was exhausted: {which} drew max_rounds * k = {settings.max_rounds} * {settings.k} proposals "
            f"without {settings.k} acceptances. Raise the threshold T (or gamma, or the target rate), increase "
            "max_rounds, or evaluate an IS bound instead."
        )


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
    checked_x(pair, x, "evaluate: x")
    if not named:
        return {}
    report = on_progress or (lambda done: None)

    devices = as_mesh(mesh, "evaluate: mesh")

    def by_blocks(function: Callable[..., Any], settings: Any, rows: _Rows, size: int, k: int) -> np.ndarray:
        parts = []
        for part in map_blocks(function, devices, settings, _blocks(rows, size)):
            parts.append(part)
            report(k * min(part.shape[-1], total - part.shape[-1] * (len(parts) - 1)))
        return np.concatenate(parts, axis=-1)[..., :total]

    def read(
        key: PRNGKeyArray, sizes: Sequence[int], rejecting: Sequence[_Rejecting] = (), chunk: int = 100
    ) -> np.ndarray:
        reach = max([*sizes, *[FRESH_DRAWS] * len(rejecting)])
        chunk = min(reach, chunk)
        settings = _Reading(
            pair, jnp.asarray(sizes, jnp.int32), tuple(each.settings.acceptance for each in rejecting), chunk
        )
        rows = _Rows(row_keys(key, total), x, tuple(each.t for each in rejecting))
        return by_blocks(_read, settings, rows, max(LANES // chunk, 1), reach)

    def rejecting(bound: RS, key: PRNGKeyArray) -> _Rejecting:
        rule, accept = numbers_as_arrays((bound.threshold or usual, bound.acceptance or acceptance or Soft()))
        settings = _Resampling(pair, bound.num_samples, rule, accept, max_rounds)
        t = by_blocks(_solve, settings, _Rows(row_keys(key, total), x), RS_ROWS, FRESH_DRAWS)
        return _Rejecting(str(bound), settings, jnp.asarray(t))

    # the repeats come after the thresholds, so that no random number depends on how many there are
    key_threshold, *key_repeats = (jax.random.fold_in(key, i) for i in range(repeats + 1))
    plain = [(str(bound), _size(bound)) for bound in named if not isinstance(bound, RS)]
    rejections = [rejecting(bound, key_threshold) for bound in named if isinstance(bound, RS)]
    values: dict[str, list[np.ndarray]] = {name: [] for name in names}
    log_zs: dict[str, list[np.ndarray]] = {each.name: [] for each in rejections}
    for key_repeat in key_repeats:
        key_propose, key_accept = jax.random.split(key_repeat)
        found = read(key_propose, [size for _, size in plain], rejections)
        for (name, _), value in zip(plain, found[: len(plain)], strict=True):
            values[name].append(value)
        for each, log_z in zip(rejections, found[len(plain) :], strict=True):
            rows = _Rows(row_keys(key_accept, total), x, (each.t,), (jnp.asarray(log_z),))
            bound_of_rows, exhausted = by_blocks(_resampled, each.settings, rows, RS_ROWS, each.settings.k)
            _refuse_exhausted(each.name, each.settings, exhausted)
            values[each.name].append(bound_of_rows)
            log_zs[each.name].append(log_z)
    estimates = {name: Estimate(name, np.stack(values[name])) for name in names}
    for each in rejections:
        rate_seen = float(np.exp(log_zs[each.name]).mean())
        matched = round(each.settings.k / rate_seen)
        extra = {
            "acceptance_rate": rate_seen,
            "matched_is_samples": matched,
            # in chunks of k, which never exceeds it: `matched` differs from run to run, the program does not
            "matched_is_mean": float(
                read(jax.random.split(key_repeats[0])[0], [matched], chunk=each.settings.k).mean()
            ),
        }
        estimates[each.name] = dataclasses.replace(estimates[each.name], extra=extra)
    return estimates


def num_draws(bounds: Sequence[AbstractBound | str], repeats: int) -> int:
    """Draws per datapoint that `evaluate` reports to `on_progress`, apart from IS at matched cost beside RS."""
    named = [bound_functions.parse(bound) for bound in bounds]
    resampled = [_size(bound) for bound in named if isinstance(bound, RS)]
    fresh = [FRESH_DRAWS] * len(resampled)
    reach = max([*(_size(bound) for bound in named if not isinstance(bound, RS)), *fresh], default=0)
    return sum(fresh) + repeats * (reach + sum(resampled))


def _size(bound: AbstractBound) -> int:
    return bound.num_samples if isinstance(bound, IS | RS) else 1


def _blocks(rows: _Rows, size: int) -> Iterator[_Rows]:
    # equal blocks, the last one padded by repeating its last row; keys belong to rows, not to blocks
    total = rows.keys.shape[0]
    size = min(size, total)
    for start in range(0, total, size):
        index = np.minimum(np.arange(start, start + size), total - 1)
        block = jax.tree.map(lambda v, index=index: v[index], rows)
        yield block._replace(x=jax.tree.map(as_input, block.x))


def as_input(v: Array | np.ndarray) -> Array:
    """An array as models take it: stored images are bytes of 0 and 1, and become floats."""
    return jnp.asarray(v, jnp.result_type(float)) if v.dtype == np.uint8 else jnp.asarray(v)
