r"""The (b, k) view of a pair: b rows of a batch, k draws for each.

This is the only place that knows whether a pair is written for one x and one z (`Pair`) or runs for all rows together
(`AbstractBatchPair`), whether its draws are a differentiable function of noise, and whether they are layers of
Bernoulli units. Estimators, thresholds, evaluation and the sampler see arrays of shape (b, k).

A view also decides which places of the rows' streams a late round of the sampler evaluates, its *lane plan*: a
row-wise pair only those that are missing, a whole-batch program whole columns.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import AbstractVar
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from relbo._check import batch_size, one_number_each
from relbo._tree import Begun, computed_once, flat, held, sum_in_blocks, sum_over_blocks, tree_add
from relbo._tree import freeze as freeze
from relbo.acceptance import log_odds_of
from relbo.lanes import BLOCKS, Lanes, Places, Round, columns, missing_places, widths_for
from relbo.lanes import Proposals as Proposals
from relbo.models.base import AbstractBatchPair
from relbo.needs import Needs as Needs
from relbo.needs import check_needs as check_needs
from relbo.needs import num_features as num_features
from relbo.needs import offers as offers
from relbo.rows import ROWS
from relbo.spare import Partly, one_weighed
from relbo.streams import in_blocks, places, stream_keys
from relbo.types import AnyPair, Batch, LogProbs, Pair, Weights

Result = TypeVar("Result")


class AbstractView(eqx.Module):
    """A pair at one batch of observations.

    Example:
        >>> view.draw(key, 3)[0].shape, view.log_weights(key, 3).shape
        ((4, 3, 3), (4, 3))
    """

    pair: AbstractVar[Any]
    x: AbstractVar[PyTree]

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, num_draws: int) -> PyTree[Shaped[Array, "b k ..."]]:
        """The first draws of every row's stream, as constants of differentiation."""

    @abc.abstractmethod
    def log_densities(self, z: PyTree) -> LogProbs:
        """Log p and log q of k draws for each row, (b, k), differentiable in the pair and in z."""

    @abc.abstractmethod
    def fresh_densities(self, key: PRNGKeyArray, num_draws: int) -> LogProbs:
        """Log p and log q of the first draws of every row's stream, which nobody needs themselves."""

    @abc.abstractmethod
    def settled(self, log_probs: LogProbs, key: PRNGKeyArray) -> LogProbs:
        """The same, computed once where much is made of it; the key is only looked at."""

    @abc.abstractmethod
    def late_width(self, num_samples: int, budget: int) -> int:
        """Draws per row that a late round, or a block of their gradient, is laid out for, if S of N were wanted."""

    @abc.abstractmethod
    def rounds(self, key: PRNGKeyArray, num_samples: int, widths: tuple[int, ...] | None = None) -> Round:
        """Late rounds of the sampler; what x alone decides is computed once.

        Args:
            key: the stream of proposals.
            num_samples: draws per row that a round is laid out for.
            widths: round widths, narrowest first; by default chosen for the batch. They change no draw.
        """

    @abc.abstractmethod
    def gradient(self, z: PyTree | Places, weights: Weights, todo: Bool[Array, "b k"], start: Begun, width: int) -> Any:
        """`start` plus the gradient of the draws in `todo` by `scored`, or of `Places` by `along`, a block at a time.

        The cost grows with how many there are; `width` is how many draws per row are expected at most.
        """

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, num_draws: int) -> PyTree:
        """The noise behind the first draws of every row's stream."""

    @abc.abstractmethod
    def transform(self, noise: PyTree) -> PyTree:
        """The draws that the noise makes, (b, k, ...), differentiable in the pair."""

    @abc.abstractmethod
    def features(self, dtype: jnp.dtype) -> Float[Array, "b d"]:
        """All numbers of each observation in a row, for baselines that are functions of x."""

    @abc.abstractmethod
    def dreams(self, key: PRNGKeyArray, num_draws: int) -> PyTree:
        """(x, z) from the model, as many for each row of the batch."""

    @abc.abstractmethod
    def with_constant_proposal(self: Result) -> Result:
        """The same view with constants for what the density of the proposal depends on, log p being of no use."""

    @abc.abstractmethod
    def rows_at_once(self, most: int) -> int:
        """How many rows to work on at a time where more than `most` are too many."""

    @property
    def num_rows(self) -> int:
        """Rows of the batch, b."""
        return jax.tree.leaves(self.x)[0].shape[0]

    def at(self: Result, pair: Any) -> Result:
        """The same view of a pair with other values."""
        return dataclasses.replace(self, pair=pair)  # type: ignore[type-var]

    def scored(self, z: PyTree) -> tuple[LogProbs, Callable[[Weights], Any]]:
        """Log densities of k draws for each row and, from the same evaluation, the way from weights to a gradient."""
        z = jax.lax.stop_gradient(z)
        log_probs, pull = eqx.filter_vjp(lambda pair: self.at(pair).log_densities(z), self.pair)
        return log_probs, lambda weights: pull(LogProbs(*[computed_once(c) for c in weights]))[0]

    def along(self, noise: PyTree, *, by_score: bool | Bool[Array, ""] = False) -> tuple[PyTree, LogProbs, Any]:
        """Draws from their noise, log densities, and the way from weights to a gradient along the path of the draws.

        c^p weighs the gradient of log p at fixed z, c^q that of log w = log p - log q in z, its parameters held fixed,
        times that of z; where `by_score` holds, that of log q at fixed z, which else a second argument may weigh.
        """
        z, pull_z = eqx.filter_vjp(lambda pair: self.at(pair).transform(noise), self.pair)
        log_probs, pull = eqx.filter_vjp(lambda pair, z: self.at(pair).log_densities(z), self.pair, z)

        def pull_back(weights: Weights, score: Float[Array, "b k"] | None = None) -> Any:
            path = jnp.where(by_score, 0, weights.proposal)
            at_z = jnp.where(by_score, weights.proposal, 0 if score is None else score)
            at_fixed_z, _ = pull(LogProbs(weights.model, at_z))
            _, in_z = pull(LogProbs(path, -path))
            return tree_add(at_fixed_z, pull_z(in_z)[0])

        return jax.lax.stop_gradient(z), log_probs, pull_back

    def log_weights(self, key: PRNGKeyArray, num_draws: int) -> Float[Array, "b k"]:
        """Log p - log q of fresh draws for every row, as constants; -inf where log p is."""
        return jax.lax.stop_gradient(log_odds_of(*self.fresh_densities(key, num_draws), jnp.zeros(())))

    def frozen(self: Result) -> Result:
        """The same view with constants for parameters."""
        return self.at(freeze(self.pair))  # type: ignore[attr-defined]


class RowView(AbstractView):
    """A pair that is written for one x and one z."""

    pair: Pair
    x: PyTree

    def draw(self, key: PRNGKeyArray, num_draws: int) -> PyTree[Shaped[Array, "b k ..."]]:
        """The first draws of every row's stream."""
        return jax.lax.stop_gradient(self._on_keys(key, places(num_draws), self.pair.proposal.sample))

    def log_densities(self, z: PyTree) -> LogProbs:
        """Log p and log q, one x and one z at a time."""
        return self.each(lambda pair, x, one: _checked(pair.model.log_joint(x, one), pair.proposal.log_prob(one, x)), z)

    def fresh_densities(self, key: PRNGKeyArray, num_draws: int) -> LogProbs:
        """A block of draws at a time, which stays in cache."""
        sample = self.pair.proposal.sample
        return in_blocks(lambda j: self.log_densities(self._on_keys(key, j, sample)), self.num_rows, num_draws)

    def settled(self, log_probs: LogProbs, key: PRNGKeyArray) -> LogProbs:
        """The products of networks are computed once anyway."""
        return log_probs

    def late_width(self, num_samples: int, budget: int) -> int:
        """S: only what is missing is evaluated."""
        return num_samples

    def rounds(self, key: PRNGKeyArray, num_samples: int, widths: tuple[int, ...] | None = None) -> Round:
        """Rounds that evaluate the missing places, one of a few fixed widths at a time."""
        choices = widths_for(self.num_rows, num_samples) if widths is None else widths
        model, proposal = self.pair.model, self.pair.proposal
        rows = (self.x, jax.vmap(proposal.condition)(self.x))

        def one(key: PRNGKeyArray, row: tuple[PyTree, PyTree]) -> Proposals:
            z, log_q = proposal.sample_and_log_prob(key, row[1])
            return Proposals(z, _checked(model.log_joint(row[0], z), log_q))

        def evaluate(width: int, row: Array, keys: Array) -> Proposals:
            # the first `width` lanes; the others are filled with nothing
            found = jax.vmap(one)(keys[:width], jax.tree.map(lambda leaf: leaf[row[:width]], rows))
            return jax.tree.map(lambda v: jnp.pad(v, [(0, choices[-1] - width)] + [(0, 0)] * (v.ndim - 1)), found)

        def next_round(
            missing: Int[Array, " b"], drawn: Int[Array, " b"], cap: Int[Array, " b"]
        ) -> tuple[Lanes, Proposals]:
            lanes, chosen = missing_places(missing, drawn, cap, choices)
            keys = stream_keys(key, lanes.row, lanes.position)
            branches = [lambda r, k, w=w: evaluate(w, r, k) for w in choices]
            return lanes, jax.lax.stop_gradient(jax.lax.switch(chosen, branches, lanes.row, keys))

        return next_round

    def gradient(self, z: PyTree | Places, weights: Weights, todo: Bool[Array, "b k"], start: Begun, width: int) -> Any:
        """Blocks of single draws, gathered from all rows."""
        num_places = todo.shape[1]
        size = -(-self.num_rows * width // BLOCKS)
        count = jnp.sum(todo, dtype=jnp.int32)

        def block(done: Array) -> Any:
            # sorted here and not before the loop, which most steps never enter
            order = jnp.pad(jnp.argsort(~todo.reshape(-1), stable=True).astype(jnp.int32), (0, size))
            is_todo = done + jnp.arange(size, dtype=jnp.int32) < count
            # 0 times an infinite derivative is NaN: lanes without a draw of their own repeat the first one
            place = jnp.where(is_todo, jax.lax.dynamic_slice(order, (done,), (size,)), order[0])
            row, slot = place // num_places, place % num_places
            view = RowView(self.pair, jax.tree.map(lambda leaf: leaf[row], self.x))
            if isinstance(z, Places):
                keys = stream_keys(z.key, row, z.position[row, slot])[:, None]
                *_, pull = view.along(jax.vmap(jax.vmap(self._noise))(keys), by_score=z.by_score)
            else:
                _, pull = view.scored(jax.tree.map(lambda leaf: leaf[row, slot][:, None], z))
            own = Weights(*[jnp.where(is_todo, w[row, slot], 0)[:, None] for w in weights])
            return pull(own)

        return sum_in_blocks(block, start, count, size)

    def noise(self, key: PRNGKeyArray, num_draws: int) -> PyTree:
        """The noise behind `draw`."""
        return self._on_keys(key, places(num_draws), lambda k, _: self._noise(k))

    def transform(self, noise: PyTree) -> PyTree:
        """One x and one noise at a time."""
        return self.each(lambda pair, x, one: pair.proposal.transform(one, x), noise)

    def each(self, function: Callable[..., Result], *draws: PyTree) -> Result:
        """`function(pair, x, *draws)` of one datapoint and one draw, for all b datapoints and their k draws."""

        def per_row(x: PyTree, *row: PyTree) -> Result:
            return jax.vmap(lambda *one: function(self.pair, x, *one))(*row)

        return jax.vmap(per_row, axis_name=ROWS)(self.x, *draws)

    def dreams(self, key: PRNGKeyArray, num_draws: int) -> PyTree:
        """(x, z) from the model, as many for each row of the batch."""
        return jax.lax.stop_gradient(self._on_keys(key, places(num_draws), lambda k, _: self.pair.model.sample(k)))

    def features(self, dtype: jnp.dtype) -> Float[Array, "b d"]:
        """Every leaf of x."""
        return jax.vmap(lambda x: flat(x, dtype))(self.x)

    def with_constant_proposal(self) -> "RowView":
        """The proposal frozen."""
        return self.at(Pair(self.pair.model, freeze(self.pair.proposal)))

    def rows_at_once(self, most: int) -> int:
        """As many as suits."""
        return max(1, min(most, self.num_rows))

    def _noise(self, key: PRNGKeyArray) -> PyTree:
        proposal: Any = self.pair.proposal
        return jax.lax.stop_gradient(proposal.noise(key))

    def _on_keys(self, key: PRNGKeyArray, places: Int[Array, " k"], function: Callable[..., PyTree]) -> PyTree:
        row = jnp.arange(self.num_rows, dtype=jnp.int32)
        keys = stream_keys(key, *jnp.broadcast_arrays(row[:, None], places[None]))
        return jax.vmap(lambda ks, row: jax.vmap(lambda k: function(k, row))(ks))(keys, self.x)


class BatchView(AbstractView):
    """A program that runs for all rows of a batch together."""

    pair: AbstractBatchPair
    x: PyTree

    def draw(self, key: PRNGKeyArray, num_draws: int) -> PyTree[Shaped[Array, "b k ..."]]:
        """The first draws of every row's stream."""
        return jax.lax.stop_gradient(self.pair.draw(key, self.x, jnp.arange(num_draws, dtype=jnp.int32)))

    def log_densities(self, z: PyTree) -> LogProbs:
        """Log p and log q by one run of the program."""
        return LogProbs(*self.pair.log_densities(self.x, z))

    def fresh_densities(self, key: PRNGKeyArray, num_draws: int) -> LogProbs:
        """All at once."""
        return self.log_densities(self.draw(key, num_draws))

    def settled(self, log_probs: LogProbs, key: PRNGKeyArray) -> LogProbs:
        """Behind a loop that is entered once in 2^32 times, and in the program's own order, a draw to a row."""
        turned = jax.tree.map(jnp.transpose, jax.lax.stop_gradient(log_probs))
        return jax.tree.map(jnp.transpose, held(turned, jax.random.key_data(key).reshape(-1)[0] == 0))

    def late_width(self, num_samples: int, budget: int) -> int:
        """Half the first round: of many rows some miss draws, and a further round costs more than wider columns."""
        return max(num_samples, budget // 2)

    def rounds(self, key: PRNGKeyArray, num_samples: int, widths: tuple[int, ...] | None = None) -> Round:
        """Rounds that evaluate whole columns: finished rows are proposed to as well."""
        width = num_samples if widths is None else widths[-1]

        def next_round(
            missing: Int[Array, " b"], drawn: Int[Array, " b"], cap: Int[Array, " b"]
        ) -> tuple[Lanes, Proposals]:
            lanes, positions = columns(missing, drawn, cap, width)
            z = self.pair.draw(key, self.x, positions)
            found = Proposals(z, self.log_densities(z))
            return lanes, jax.lax.stop_gradient(jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), found))

        return next_round

    def gradient(self, z: PyTree | Places, weights: Weights, todo: Bool[Array, "b k"], start: Begun, width: int) -> Any:
        """Blocks of columns, each row's own draws moved to the front; or columns of the streams."""
        if isinstance(z, Places):
            return self._along(z, weights, todo, start, width)
        counts = jnp.sum(todo, axis=1, dtype=jnp.int32)
        most = jnp.max(counts)
        # 0 times an infinite derivative is NaN: a row with nothing to do repeats a draw of its own that has a weight,
        # and one that has none takes those of another row
        weighed = (weights.model != 0) | (weights.proposal != 0)
        order = jnp.argsort(jnp.where(todo, 0, jnp.where(weighed, 1, 2)), axis=1, stable=True).astype(jnp.int32)
        row = jnp.where(jnp.any(weighed, axis=1), jnp.arange(self.num_rows), jnp.argmax(counts))[:, None]

        def block(done: Array) -> Any:
            column = done + jnp.arange(width, dtype=jnp.int32)[None]
            is_todo = column < counts[:, None]
            slot = jnp.take_along_axis(order[row[:, 0]], jnp.where(is_todo, column, 0), axis=1)
            _, pull = self.scored(jax.tree.map(lambda leaf: leaf[row, slot], z))
            own = Weights(*[jnp.where(is_todo, jnp.take_along_axis(w, slot, axis=1), 0) for w in weights])
            return pull(own)

        return sum_in_blocks(block, start, most, width)

    def _along(self, places: Places, weights: Weights, todo: Bool[Array, "b k"], start: Begun, width: int) -> Any:
        # the noise of a column is one for all rows: every position at which some row has a draw to do is run whole
        def block(first: Array) -> Any:
            spare = one_weighed(places.z, (weights.model != 0) | (weights.proposal != 0))
            column = first + jnp.arange(width, dtype=jnp.int32)
            is_own = (places.position[:, :, None] == column[None, None]) & todo[:, :, None]
            noise = jax.lax.stop_gradient(self.pair.noise(places.key, self.x, column))
            *_, pull = self.along(Partly(noise, jnp.any(is_own, axis=1), spare), by_score=places.by_score)
            return pull(Weights(*[jnp.sum(jnp.where(is_own, w[:, :, None], 0), axis=1) for w in weights]))

        def all_blocks() -> Any:
            return sum_over_blocks(block, start.value(), places.position, todo, width)

        return jax.lax.cond(jnp.any(todo), all_blocks, start.value)  # most steps have nothing to do

    def noise(self, key: PRNGKeyArray, num_draws: int) -> PyTree:
        """The noise behind `draw`."""
        return jax.lax.stop_gradient(self.pair.noise(key, self.x, jnp.arange(num_draws, dtype=jnp.int32)))

    def transform(self, noise: PyTree) -> PyTree:
        """The draws that the noise makes."""
        if isinstance(noise, Partly):
            return noise.fill(self.pair.transform(noise.noise, self.x))
        return self.pair.transform(noise, self.x)

    def dreams(self, key: PRNGKeyArray, num_draws: int) -> PyTree:
        """Refused: a program takes its data as arguments, which dreamt data cannot replace."""
        raise ValueError(
            "the estimator needs draws of (x, z) from the model to train the proposal on, which a whole-batch program "
            "cannot give. Choose one that does not dream, such as RWS."
        )

    def features(self, dtype: jnp.dtype) -> Float[Array, "b d"]:
        """What the program says."""
        return self.pair.features(self.x).astype(dtype)

    def with_constant_proposal(self) -> "BatchView":
        """All of it frozen."""
        return self.frozen()

    def rows_at_once(self, most: int) -> int:
        """All of them, which a program needs."""
        return self.num_rows


def view_of(pair: AnyPair, x: PyTree) -> RowView | BatchView:
    """The view of a pair at a batch of observations.

    Example:
        >>> relbo.view_of(pair, x).num_rows
        4
    """
    return BatchView(pair, x) if isinstance(pair, AbstractBatchPair) else RowView(pair, x)


def view_for(estimator: Any, pair: AnyPair, batch: Batch) -> Any:
    """The view that an estimator works on, or a `ValueError` if the pair or the batch does not suit it."""
    batch_size(batch.x, batch.index)
    check_needs(estimator, pair)
    return view_of(pair, batch.x)


def _checked(log_p: Array, log_q: Array) -> LogProbs:
    one_number_each(log_p, log_q)
    return LogProbs(log_p, log_q)
