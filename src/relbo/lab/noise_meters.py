"""What gradient noise is measured on: a pair and its data, or a NumPyro program.

A meter warms an estimator up, with the parameters held fixed, and then gives its gradient as a function of a key. All
that comes after is the same for both.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from relbo._check import num_datapoints, root_key
from relbo.data import Dataset
from relbo.estimators import AbstractEstimator, Pathwise, WakeSleep
from relbo.train.fit import source_of
from relbo.train.loop import Transform, epoch_order
from relbo.types import Batch, EmptyState, Pair
from relbo.variance import support_moves
from relbo.view import Needs, check_needs, offers

Gradient = Callable[[Array, Any], tuple[PyTree, PyTree, Array]]
"""(key, operands) -> gradients in theta and phi, and the mean number of proposals per row."""


class Ready(NamedTuple):
    """An estimator's state after its warm-up."""

    state: Any
    batch: Any
    num_proposals: float
    """Proposals per row of the last step."""
    num_steps: int
    """Steps that the warm-up took, before the one on the measured batch."""


class AbstractMeter(abc.ABC):
    """Something whose gradients can be measured."""

    num_data: int
    """Rows of the data."""
    num_parameters: int
    numbers_per_row: int
    """Of one observation."""

    @abc.abstractmethod
    def serves(self, estimator_class: type[AbstractEstimator]) -> bool:
        """Whether estimators of this class can be measured here."""

    @abc.abstractmethod
    def check(self, estimator: AbstractEstimator) -> None:
        """Refuses what cannot."""

    @abc.abstractmethod
    def moves(self, batch_size: int, seed: int) -> bool:
        """Whether the support of q depends on phi."""

    @abc.abstractmethod
    def warm_up(self, estimator: AbstractEstimator, num_warmup: int, batch_size: int, seed: int) -> Ready:
        """Steps with the parameters held fixed; none for an estimator that remembers nothing."""

    @abc.abstractmethod
    def gradient(self, estimator: AbstractEstimator, ready: Ready) -> tuple[Gradient, Any]:
        """The function to measure, and its operands."""


class PairMeter(AbstractMeter):
    """A pair at its data.

    Args:
        pair: model and proposal.
        data: a `Dataset`, whose training split is used, or any tree of arrays whose first axis runs over rows.
    """

    def __init__(self, pair: Pair, data: Dataset | PyTree) -> None:
        self.pair, self.source = pair, source_of(data)
        self.num_data = num_datapoints(self.source.train, "data")
        self.num_parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(pair, eqx.is_array)))
        self.numbers_per_row = sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(self.source.train))

    def serves(self, estimator_class: type[AbstractEstimator]) -> bool:
        """Whether the pair meets its needs."""
        return estimator_class.needs in offers(self.pair)

    def check(self, estimator: AbstractEstimator) -> None:
        """Says what is missing."""
        check_needs(estimator, self.pair)

    def moves(self, batch_size: int, seed: int) -> bool:
        """By small steps of phi; units are 0 and 1 whatever phi is."""
        if Needs.BITS in offers(self.pair):
            return False
        key = root_key(seed)
        index = epoch_order(key, 0, self.num_data)[:batch_size]
        return support_moves(key, self.pair, self.source.transform(key, rows_of(self.source.train, index)))

    def warm_up(self, estimator: AbstractEstimator, num_warmup: int, batch_size: int, seed: int) -> Ready:
        """Random batches, then the measured one."""
        key_init, key_rows, key_warmup, _ = jax.random.split(root_key(seed), 4)
        state = estimator.init(key_init, self.pair, self.num_data)
        index = epoch_order(key_rows, 0, self.num_data)[:batch_size]
        batch = Batch(self.source.transform(key_rows, rows_of(self.source.train, index)), index)
        steps = 0 if isinstance(state, EmptyState) else num_warmup
        key_visits, key_steps = jax.random.split(key_warmup)
        visits = jax.random.randint(key_visits, (steps, batch_size), 0, self.num_data, index.dtype)
        visits = jnp.concatenate([visits, index[None]])
        rows = rows_of(self.source.train, visits)
        state, spent = warm_up(estimator, key_steps, self.pair, state, self.source.transform, batch, visits, rows)
        return Ready(state, batch, float(spent), steps)

    def gradient(self, estimator: AbstractEstimator, ready: Ready) -> tuple[Gradient, Any]:
        """Of the mean bound over the measured batch."""

        def one(key: Array, operands: Any) -> tuple[PyTree, PyTree, Array]:
            estimator, pair, state, batch = operands
            gradient, _, info = estimator.estimate(key, pair, state, batch)
            return gradient.model, gradient.proposal, jnp.mean(info.num_proposals.astype(info.bound.dtype))

        return one, (estimator, self.pair, ready.state, ready.batch)


@eqx.filter_jit
def warm_up(
    estimator: AbstractEstimator,
    key: Array,
    pair: Pair,
    state: Any,
    transform: Transform,
    batch: Batch,
    index: Int[Array, "n b"],
    rows: PyTree,
) -> tuple[Any, Array]:
    """State after the batches of `rows`, the last the measured one, and that one's mean proposals per datapoint."""
    num_steps = index.shape[0]

    def step(state: Any, args: tuple[Array, PyTree, Array, Array]) -> tuple[Any, Array]:
        index, rows, key, is_last = args
        key_data, key_estimate = jax.random.split(key)
        # gray images are binarised at every visit, but T is to be that of the very images that are measured
        fresh = transform(key_data, rows)
        x = jax.tree.map(lambda own, other: jnp.where(is_last, own, other), batch.x, fresh)
        _, state, info = estimator.estimate(key_estimate, pair, state, Batch(x, index))
        return state, jnp.mean(info.num_proposals.astype(info.bound.dtype))

    is_last = jnp.arange(num_steps) == num_steps - 1
    state, spent = jax.lax.scan(step, state, (index, rows, jax.random.split(key, num_steps), is_last))
    return state, spent[-1]


def rows_of(train: PyTree, index: Int[Array, "*n"]) -> PyTree:
    """Rows by number, in the shape of the numbers; of rows on disk only these are read."""
    flat = np.asarray(index).ravel()
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[flat]).reshape(*index.shape, *leaf.shape[1:]), train)


class ProgramMeter(AbstractMeter):
    """A NumPyro model and guide at their data; theta are the parameters of the model, phi those of the guide.

    Args:
        model: the NumPyro model.
        guide: its guide.
        params: values of the parameters, as `svi.run(...).params`.
        args: positional arguments of both.
    """

    def __init__(self, model: Any, guide: Any, params: dict[str, Any], args: tuple) -> None:
        from relbo.numpyro.layout import run
        from relbo.numpyro.pair import build_pair
        from relbo.numpyro.program import Program

        self.model, self.guide, self.args = model, guide, args
        program = Program(model, guide, args, {}, jax.random.key(0), params)
        shared = program.draw(params, {}, jax.random.key(0))[0]
        self.pair = build_pair(program, params, jax.tree.map(lambda v: v[None], shared), 1)
        self.num_shared = 2 if program.layout.scored else 1
        guide_trace, model_trace = run(model, guide, args, {}, jax.random.key(0), params)
        used = {n for n, s in {**guide_trace, **model_trace}.items() if s["type"] == "param"}
        self.params = {n: v for n, v in params.items() if n in used}
        self.theta = frozenset(n for n, s in model_trace.items() if s["type"] == "param")
        self.num_data = program.layout.num_data
        self.num_parameters = sum(jnp.size(leaf) for leaf in jax.tree.leaves(self.params))
        self.numbers_per_row = max(1, self.pair.num_features)

    def serves(self, estimator_class: type[AbstractEstimator]) -> bool:
        """Whether the guide meets its needs; dreams are out of reach of a program."""
        from relbo.numpyro.layers import refusal

        if self.moves():
            return estimator_class is Pathwise
        if estimator_class.needs is Needs.BITS:
            return refusal(self.pair, estimator_class) is None
        return estimator_class.needs in offers(self.pair) and not issubclass(estimator_class, WakeSleep)

    def check(self, estimator: AbstractEstimator) -> None:
        """Says what is missing."""
        from relbo.numpyro.layers import suited

        check_needs(estimator, suited(self.pair, estimator))

    def moves(self, batch_size: int = 1, seed: int = 0) -> bool:
        """As NumPyro says."""
        return bool(self.pair.program.layout.moving)

    def warm_up(self, estimator: AbstractEstimator, num_warmup: int, batch_size: int, seed: int) -> Ready:
        """Steps on the program's own data."""
        from relbo.numpyro.objective import STATE_SITE, EstimatorELBO

        key_init, key_steps = jax.random.split(root_key(seed))
        loss = EstimatorELBO(estimator, num_shared=self.num_shared)
        state = loss.init_state(key_init, self.params, self.model, self.guide, *self.args)
        steps = 0 if isinstance(state, EmptyState) else num_warmup

        def step(state: Any, key: Array) -> tuple[Any, Array]:
            values = {**self.params, STATE_SITE: state}
            info = loss.info(key, values, self.model, self.guide, *self.args)
            found = loss.loss_with_mutable_state(key, values, self.model, self.guide, *self.args)
            return found["mutable_state"][STATE_SITE], jnp.mean(info.num_proposals.astype(info.bound.dtype))

        keys = jax.random.split(key_steps, steps + 1)
        state, spent = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
        return Ready(state, None, float(spent[-1]), steps)

    def gradient(self, estimator: AbstractEstimator, ready: Ready) -> tuple[Gradient, Any]:
        """Of the loss, in the parameters as they are given."""
        from relbo.numpyro.objective import STATE_SITE, EstimatorELBO

        loss = EstimatorELBO(estimator, num_shared=self.num_shared)

        def one(key: Array, operands: Any) -> tuple[PyTree, PyTree, Array]:
            params, state = operands

            def value(params: dict[str, Any]) -> Array:
                values = {**params, STATE_SITE: state}
                return loss.loss_with_mutable_state(key, values, self.model, self.guide, *self.args)["loss"]

            found = jax.grad(value)(params)
            info = loss.info(key, {**params, STATE_SITE: state}, self.model, self.guide, *self.args)
            theta = {name: g for name, g in found.items() if name in self.theta}
            phi = {name: g for name, g in found.items() if name not in self.theta}
            return theta, phi, jnp.mean(info.num_proposals.astype(info.bound.dtype))

        return one, (self.params, ready.state)
