"""What was compiled serves again, and never in place of another program."""

import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from relbo.numpyro import RLOO, SVI, ResampledELBO, resample
from relbo.numpyro.store import Store, fingerprint

X = jnp.array([0.3, -0.2, 1.0])


class Traces:
    """A count that is no part of a program's name, having no `vars`."""

    __slots__ = ("count",)


def make_program():
    """A model that counts how often it is traced, and its guide."""
    traces = Traces()
    traces.count = 0

    def model(x, scale=1.0):
        traces.count += 1
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(m, scale).expand([x.shape[0]]).to_event(1), obs=x)

    def guide(x, scale=1.0):
        numpyro.sample("m", dist.Normal(numpyro.param("loc", 0.0), 0.7))

    return model, guide, traces


def test_a_second_call_does_not_trace_the_program_again():
    model, guide, traces = make_program()

    def ask(seed, x, rate, **kwargs):
        before = traces.count
        more = {"num_samples": 4, "num_draws": 8, "kwargs": kwargs}
        found = resample(jax.random.key(seed), model, guide, {"loc": jnp.array(0.1 * seed)}, x, rate=rate, **more)
        return found, traces.count - before

    first, cost = ask(0, X, 0.5)
    assert cost > 0
    second, cost = ask(1, X + 1, 0.5)
    assert cost == 0 and not np.array_equal(first.z["m"], second.z["m"])
    assert ask(0, X[:2], 0.5)[1] > 0, "another shape"
    assert ask(0, X, 0.3)[1] > 0, "another number of proposals"
    assert ask(0, X, 0.5, scale=2.0)[1] > 0, "another constant"
    same, cost = ask(0, X, 0.5)
    assert cost == 0
    np.testing.assert_array_equal(same.z["m"], first.z["m"])


@pytest.mark.slow
def test_evaluate_and_info_are_compiled_once_and_agree_with_what_was_not():
    model, guide, traces = make_program()
    loss = ResampledELBO(2, rate=0.5, num_draws=10)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), loss)
    state = svi.run(jax.random.key(0), 2, X, progress_bar=False).state
    first = svi.evaluate(state, X)
    np.testing.assert_allclose(jax.jit(lambda s: svi.evaluate(s, X))(state), first, rtol=1e-10)
    values = {**svi.get_params(state), **state.mutable_state}
    loss.info(jax.random.key(0), values, model, guide, X)
    before = traces.count
    assert svi.evaluate(state, X + 0.1) != first
    loss.info(jax.random.key(1), values, model, guide, X + 0.1)
    assert traces.count == before


SCALE = 1.0


def test_what_a_function_mentions_is_part_of_its_name(monkeypatch):
    def by_global(x):
        return SCALE * x

    def by_closure(scale):
        return lambda x: scale * x

    table = np.ones(3)

    def by_array(x):
        return table * x

    before = fingerprint(by_global), fingerprint(by_array)
    assert before == (fingerprint(by_global), fingerprint(by_array))
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    table[0] = 5.0
    assert fingerprint(by_global) != before[0] and fingerprint(by_array) != before[1]
    assert fingerprint(by_closure(1.0)) != fingerprint(by_closure(2.0))
    assert fingerprint(functools.partial(by_global, 1)) != fingerprint(functools.partial(by_global, 2))
    half, double = (numpyro.handlers.scale(by_global, scale=s) for s in (0.5, 2.0))
    assert fingerprint(half) != fingerprint(double)


def plain_model(x):
    m = numpyro.sample("m", dist.Normal(0.0, SCALE))
    numpyro.sample("x", dist.Normal(m, 1.0).expand([x.shape[0]]).to_event(1), obs=x)


def plain_guide(x):
    numpyro.sample("m", dist.Normal(numpyro.param("loc", 0.0), SCALE))


def test_a_name_is_the_same_at_the_next_call():
    # many at once: what is made on the way must not lend its address to what is made later
    table = [1.0, 2.0]
    programs = (plain_model, plain_guide, *(functools.partial(plain_model, table) for _ in range(20)))
    assert fingerprint(programs) == fingerprint(programs)
    before = fingerprint(programs)
    table[0] = 3.0
    assert fingerprint(programs) != before
    circle = []
    circle.append(circle)
    assert fingerprint(circle) == fingerprint(circle)


def test_calls_for_a_plain_model_and_guide_share_one_program(monkeypatch):
    monkeypatch.setattr("relbo.numpyro.objective.STORE", store := Store())
    loss = RLOO(2)
    for seed in range(3):
        loss.info(jax.random.key(seed), {"loc": jnp.array(0.1)}, plain_model, plain_guide, X)
    assert len(store.kept) == 1


class Callable:
    """A model with settings of its own."""

    def __init__(self):
        self.scale = 1.0

    def __call__(self, x):
        return SCALE * self.scale * x


def test_what_is_changed_in_place_is_part_of_a_name(monkeypatch):
    model, kinds, settings = Callable(), {"a", "b"}, types.SimpleNamespace(rate=1.0)
    module = types.ModuleType("config")
    module.VALUE = 1.0
    monkeypatch.setitem(globals(), "config", module)

    def closing(x):
        return model(x) * len(kinds) * settings.rate * config.VALUE  # noqa: F821

    for value, change in (
        (model, lambda: setattr(model, "scale", 2.0)),
        (model, lambda: monkeypatch.setitem(globals(), "SCALE", 3.0)),
        (closing, lambda: setattr(model, "scale", 4.0)),
        (model.__call__, lambda: setattr(model, "scale", 5.0)),
        (closing, lambda: kinds.add("c")),
        (closing, lambda: setattr(settings, "rate", 2.0)),
        (closing, lambda: setattr(module, "VALUE", 2.0)),
    ):
        before = fingerprint(value)
        assert before == fingerprint(value)
        change()
        assert before != fingerprint(value)
    assert fingerprint({"a", "b", ("c", 1)}) == fingerprint({("c", 1), "b", "a"})


def test_what_was_compiled_inside_of_a_handler_serves_nobody_outside(monkeypatch):
    monkeypatch.setattr("relbo.numpyro.objective.STORE", store := Store())

    loss = RLOO(2)

    def bound():
        return float(loss.info(jax.random.key(0), {"loc": jnp.array(0.1)}, plain_model, plain_guide, X).bound[0])

    with numpyro.handlers.scale(scale=0.1):
        inside = bound()
    outside = bound()
    assert len(store.kept) == 1
    with numpyro.handlers.scale(scale=0.1):
        np.testing.assert_allclose([inside, bound()], 0.1 * outside, rtol=1e-10)


def test_a_program_that_asks_for_values_is_compiled_for_its_data():
    store, calls = Store(limit_with_data=3), []

    def function(programs, data, values):
        calls.append(0)
        return jnp.sum(data[: int(data[0])]) + values

    def ask(*data):
        return float(store.call(function, (), np.array(data), jnp.array(0.5)))

    assert ask(2.0, 5.0, 7.0) == 7.5 and len(calls) == 2  # traced, refused, and traced with constants
    assert ask(2.0, 5.0, 7.0) == 7.5 and len(calls) == 2
    assert ask(3.0, 5.0, 7.0) == 15.5 and len(calls) == 3
    for size in range(4, 9):
        ask(*[1.0] * size)
    assert len(store.kept) == 1 and len(store.kept_with_data) == 3


def test_few_datasets_are_kept_alive():
    store, kept = Store(), []
    for size in range(2, 7):
        data = np.ones(size)
        kept.append(weakref.ref(data))
        store.call(lambda programs, data, values: jnp.zeros(int(data[0])), (), data, jnp.array(0.5))
        del data
    gc.collect()
    assert sum(ref() is not None for ref in kept) <= 2
