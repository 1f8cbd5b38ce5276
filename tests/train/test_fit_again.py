"""What a second call of `fit` costs: other numbers are other inputs of the programs that the first call compiled."""

import gc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import relbo
from relbo._tree import numbers_traced
from relbo.estimators import REGISTRY

X = np.random.default_rng(0).integers(0, 2, (40, 6)).astype(np.float64)
RULE = relbo.Rate(0.5, 10)


@pytest.fixture
def compiled():
    """A list that grows by one with each program that is compiled or read from a cache."""
    found = []

    def note(event, seconds, **about):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def train(estimator, seed=0, **options):
    pair = relbo.sbn(jax.random.key(0), [3], jnp.full(6, 0.5))
    return relbo.fit(
        pair, estimator, X, valid=X[:8], valid_bound="is:2", num_epochs=1, batch_size=8, seed=seed, **options
    )


def test_other_numbers_compile_nothing(compiled):
    first = train(relbo.VRS(2, RULE, relbo.Soft(2.0)), optimizer="adam", lr=1e-2)
    compiled.clear()
    again = train(relbo.VRS(2, RULE, relbo.Soft(2.0)), optimizer="adam", lr=1e-2)
    others = [  # each of the numbers is the one that was asked for
        train(relbo.VRS(2, RULE, relbo.Soft(2.0)), optimizer="adam", lr=2e-2),
        train(relbo.VRS(2, relbo.Rate(0.3, 10), relbo.Soft(2.0)), optimizer="adam", lr=1e-2),
        train(relbo.VRS(2, RULE, relbo.Soft(1.5)), optimizer="adam", lr=1e-2),
        train(relbo.VRS(2, RULE, relbo.Soft(2.0)), seed=1, optimizer="adam", lr=1e-2),
    ]
    assert not compiled
    assert eqx.tree_equal(first.state, again.state)
    assert not any(eqx.tree_equal(first.pair, other.pair) for other in others)


@pytest.mark.parametrize("make", [lambda: optax.sgd(1e-2), lambda: optax.cosine_decay_schedule(1e-2, 10)])
def test_an_object_of_optax_compiles_once(compiled, make):
    optimizer = make()
    how = {"optimizer": "adam", "lr": optimizer} if callable(optimizer) else {"optimizer": optimizer}
    train(relbo.RLOO(2), **how)
    compiled.clear()
    train(relbo.RLOO(2), seed=1, **how)
    assert not compiled


def test_lr_is_that_of_the_named_optimizer():
    by_name = train(relbo.RLOO(2), optimizer="sgd", lr=0.5)
    assert eqx.tree_equal(by_name.state, train(relbo.RLOO(2), optimizer=optax.sgd(0.5)).state)
    adam = train(relbo.RLOO(2), lr=1e-3)
    assert eqx.tree_equal(adam.state, train(relbo.RLOO(2)).state)  # Adam at 1e-3 if nothing is said
    assert not eqx.tree_equal(adam.pair, train(relbo.RLOO(2), lr=1e-2).pair)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "fit: lr must be a number > 0, got 0.0"),
        ({"lr": -1.0}, "fit: lr must be a number > 0, got -1.0"),
        ({"optimizer": optax.sgd(1e-2), "lr": 1e-2}, "fit: lr must be left out where optimizer is an object"),
    ],
)
def test_bad_rates(options, message):
    with pytest.raises(ValueError, match=message):
        train(relbo.RLOO(2), **options)


class Scaled(relbo.RLOO):
    """An estimator of a user's own, which asks its number in Python."""

    factor: float | jax.Array = 2.0

    def estimate(self, key, pair, state, batch):
        grads, state, info = super().estimate(key, pair, state, batch)
        is_one = isinstance(self.factor, float) and self.factor == 1.0
        return grads if is_one else jax.tree.map(lambda g: g * self.factor, grads), state, info


def test_numbers_of_a_users_own_estimator_stay_what_they_are(compiled):
    plain, same = train(relbo.RLOO(2), optimizer="sgd", lr=0.1), train(Scaled(2, 1.0), optimizer="sgd", lr=0.1)
    assert eqx.tree_equal(plain.pair, same.pair)
    other = train(Scaled(2, 3.0), optimizer="sgd", lr=0.1)
    compiled.clear()
    assert eqx.tree_equal(other.state, train(Scaled(2, 3.0), optimizer="sgd", lr=0.1).state) and not compiled
    assert not eqx.tree_equal(plain.pair, other.pair)


def test_no_data_stay_in_memory_after_a_fit():
    size = 4321  # of no other array
    rows = np.zeros((size, 6))
    train_pair = relbo.sbn(jax.random.key(0), [3], jnp.full(6, 0.5))
    result = relbo.fit(train_pair, relbo.RLOO(2), rows, num_epochs=1, batch_size=size, optimizer=optax.sgd(1e-2))
    del rows, result
    gc.collect()
    assert not [array for array in jax.live_arrays() if size in array.shape]


@pytest.mark.parametrize(
    "name", [name if name in ("vrs", "concrete") else pytest.param(name, marks=pytest.mark.slow) for name in REGISTRY]
)
def test_every_estimator_takes_its_numbers_as_arguments(name):
    from helpers import pair_for

    estimator = REGISTRY[name]()
    pair, batch = pair_for(REGISTRY[name])
    state = estimator.init(jax.random.key(0), pair, 7)
    index = jnp.arange(batch.index.shape[0])

    def run(estimator, state):
        return estimator.estimate(jax.random.key(1), pair, state, relbo.Batch(batch.x, index))[:2]

    as_they_are = eqx.filter_eval_shape(run, estimator, state)
    traced = eqx.filter_eval_shape(run, numbers_traced(estimator), state)
    assert jax.tree.map(lambda v: (v.shape, v.dtype), as_they_are) == jax.tree.map(lambda v: (v.shape, v.dtype), traced)
