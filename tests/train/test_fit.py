"""The trainer: a resumed run is the run that was never stopped, and trouble is named."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import relbo
from relbo.data import Dataset
from relbo.models.toy import PoissonProposal, PoissonTarget, TableModel, TableProposal
from relbo.train.errors import TrainingError
from relbo.train.fit import source_of
from relbo.train.loop import epoch_order, init_state, make_chunk, make_step
from relbo.train.sealed import sealed
from relbo.train.starving import starving_message, watch


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).integers(0, 2, (40, 6)).astype(np.uint8)


@pytest.fixture(scope="module")
def data(rows):
    return Dataset("small", "binary", rows, rows[:10], rows[:10])


@pytest.fixture(scope="module")
def pair(data):
    return relbo.sbn(jax.random.key(0), [3], jnp.asarray(data.mean()))


VRS = relbo.VRS(2, relbo.Quantile(0.8, 10, every=5))


def same(a, b):
    return bool(eqx.tree_equal(a, b))


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(VRS, marks=pytest.mark.slow, id="quantile"),
        pytest.param(relbo.VRS(2, relbo.Rate(0.5, 10)), marks=pytest.mark.slow, id="rate"),
    ],
)
def test_resumed_run_is_the_uninterrupted_run(tmp_path, data, pair, estimator):
    options = {"batch_size": 8, "seed": 3, "checkpoint_every": 3, "log_every": 2, "valid_bound": "is:2"}
    whole = relbo.fit(pair, estimator, data, num_epochs=5, out=tmp_path / "whole", **options)
    relbo.fit(pair, estimator, data, num_epochs=2, out=tmp_path / "parts", **options)
    parts = relbo.fit(pair, estimator, data, num_epochs=5, out=tmp_path / "parts", resume=True, **options)
    assert same(whole.state, parts.state)
    assert same(whole.best, parts.best) and whole.best_bound == parts.best_bound
    assert not same(whole.pair, pair)

    def records(path):
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in record.items() if k not in ("seconds", "cpu_seconds", "sha256")} for record in lines]

    assert records(tmp_path / "whole") == records(tmp_path / "parts")


def test_resume_goes_back_to_the_checkpoint(tmp_path, data, pair):
    """What a killed run had logged after its last checkpoint is recorded once, not twice."""
    options = {"batch_size": 8, "checkpoint_every": 5, "log_every": 1, "valid_bound": "is:2"}
    whole = relbo.fit(pair, VRS, data, num_epochs=3, out=tmp_path / "run", **options)
    log = tmp_path / "run" / "metrics.jsonl"
    lines = log.read_text().splitlines()
    after = sealed({"step": 16, "bound": 1.0}, json.loads(lines[-1])["sha256"])
    log.write_text("\n".join([*lines, json.dumps(after), '{"step": 17, "bo']))
    again = relbo.fit(pair, VRS, data, num_epochs=3, out=tmp_path / "run", resume=True, **options)
    assert log.read_text().splitlines() == lines
    assert same(whole.state, again.state)


@pytest.mark.slow
def test_a_chunk_is_its_steps(data, pair):
    optimizer = optax.adam(1e-2)
    source = source_of(data)
    state = init_state(jax.random.key(1), pair, VRS, optimizer, 40)
    order = epoch_order(state.key, 0, 40)
    step = eqx.filter_jit(make_step(VRS, optimizer, source.transform))
    chunk = make_chunk(VRS, optimizer, source.transform, 8)
    by_chunk, report = chunk(state, source.train, order, jnp.asarray(8, jnp.int32), jnp.asarray(3, jnp.int32))
    by_step, bounds = state, []
    for i in range(1, 4):
        by_step, info, _ = step(by_step, source.train, order[8 * i : 8 * i + 8])
        bounds.append(np.mean(info.bound))
    assert int(by_chunk.step) == 3
    np.testing.assert_allclose(report.bound, np.mean(bounds), rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12),
        *[eqx.filter(s.pair, eqx.is_array) for s in (by_chunk, by_step)],
    )


def test_every_epoch_visits_every_row_once():
    key = jax.random.key(0)
    first, second = epoch_order(key, 0, 40), epoch_order(key, 1, 40)
    assert sorted(first.tolist()) == list(range(40)) == sorted(second.tolist())
    assert first.tolist() != second.tolist()


def test_one_compilation_for_all_chunks(data, pair):
    traces = []

    class Counting(relbo.AbstractEstimator):
        inner: relbo.RLOO = relbo.RLOO(2)
        bound, unbiased, needs, paper = relbo.ELBO(), True, relbo.Needs.DRAWS, ""

        def init(self, key, pair, num_data):
            return self.inner.init(key, pair, num_data)

        def estimate(self, key, pair, state, batch):
            traces.append(1)
            return self.inner.estimate(key, pair, state, batch)

    relbo.fit(pair, Counting(), data, num_epochs=4, batch_size=8, log_every=3, valid_bound="is:2")
    assert len(traces) == 1  # for the shapes of the report and for the compiled loop


def test_gray_images_are_binarised_by_level(rows):
    levels = np.tile(np.array([0, 51, 255], np.uint8), (2000, 1))
    ones = np.ones((2, 3), np.uint8)
    source = source_of(Dataset("gray", "gray", levels, ones, ones))
    x = np.asarray(source.transform(jax.random.key(0), source.train))
    assert set(np.unique(x)) <= {0.0, 1.0}
    assert x[:, 0].sum() == 0 and x[:, 2].sum() == 2000
    # binomial(2000, 0.2): 5 standard deviations, false failure 6e-7
    assert abs(x[:, 1].mean() - 0.2) < 5 * np.sqrt(0.16 / 2000)


def test_training_improves_the_bound(data, pair):
    def valid_bound(pair):
        return relbo.evaluate(pair, data.valid, ["is:50"], key=jax.random.key(0))["is:50"].mean

    result = relbo.fit(pair, relbo.RLOO(4), data, num_epochs=60, batch_size=8, optimizer=optax.adam(5e-2))
    assert valid_bound(result.best) > valid_bound(pair) + 0.1
    assert result.best_bound == max(record["valid_bound"] for record in result.metrics)


def test_early_stopping(data, pair):
    result = relbo.fit(
        pair, relbo.RLOO(2), data, num_epochs=50, batch_size=8, optimizer=optax.sgd(0.0), patience=2, valid_bound="is:2"
    )
    assert result.stopped == "early"
    assert int(result.state.step) == 3 * 5


def test_time_limit_stops_and_the_run_can_go_on(tmp_path, data, pair):
    options = {"num_epochs": 3, "batch_size": 8, "log_every": 2, "valid_bound": "is:2"}
    whole = relbo.fit(pair, relbo.RLOO(2), data, **options)
    out = tmp_path / "run"
    short = relbo.fit(pair, relbo.RLOO(2), data, out=out, max_seconds=1e-9, **options)
    assert (short.stopped, int(short.state.step)) == ("time", 2)
    assert same(short.best, short.pair) and short.best_bound == short.metrics[-1]["valid_bound"]  # in mid-epoch
    spent = short.metrics[-1]["seconds"]
    again = relbo.fit(pair, relbo.RLOO(2), data, out=out, resume=True, max_seconds=spent, **options)
    assert (again.stopped, int(again.state.step)) == ("time", 2)  # what was spent before counts
    last = relbo.fit(pair, relbo.RLOO(2), data, out=out, resume=True, **options)
    assert last.stopped == "finished" and last.metrics[0]["seconds"] == spent
    assert same(whole.state, last.state)
    cpu = [record["cpu_seconds"] for record in last.metrics]  # goes on from the checkpoint, as the seconds do
    assert cpu[0] == short.metrics[-1]["cpu_seconds"] > 0 and cpu == sorted(cpu)


class Breaking(relbo.AbstractModel):
    """log p turns into NaN when its parameter has been trained below a limit."""

    a: jax.Array
    limit: float = eqx.field(static=True, default=-0.5)

    def log_joint(self, x, z):
        return jnp.where(self.a < self.limit, jnp.nan, -self.a) + 0 * jnp.sum(x) - 1.0

    def sample(self, key):
        raise AssertionError("not used")


def breaking_pair():
    return relbo.Pair(Breaking(jnp.zeros(())), PoissonProposal(jnp.zeros(())))


def test_non_finite_values_stop_the_run_and_leave_the_checkpoint(tmp_path):
    pair = breaking_pair()
    x = jnp.ones((8, 1))
    options = {"batch_size": 4, "optimizer": optax.sgd(0.1), "checkpoint_every": 2, "log_every": 1}
    with pytest.raises(TrainingError, match="step 7: the bound of a datapoint.*not finite"):
        relbo.fit(pair, relbo.RLOO(2), x, num_epochs=20, out=tmp_path / "run", **options)
    going = relbo.fit(pair, relbo.RLOO(2), x, num_epochs=3, out=tmp_path / "run", resume=True, **options)
    assert int(going.state.step) == 6 and np.isfinite(going.state.pair.model.a)


@pytest.mark.slow
def test_exhaustion_follows_the_policy_of_the_core(caplog):
    pair = relbo.Pair(PoissonTarget(jnp.asarray(2.0)), PoissonProposal(jnp.asarray(0.0)))
    x = jnp.zeros((4, 1))
    strict = relbo.VRS(2, relbo.Fixed(-50.0), max_rounds=2, throw=True)
    with pytest.raises(TrainingError, match="step 1: .*max_rounds"):
        relbo.fit(pair, strict, x, num_epochs=1, batch_size=2)
    lenient = dataclasses.replace(strict, throw=False)
    result = relbo.fit(pair, lenient, x, num_epochs=1, batch_size=2)
    assert result.metrics[-1]["num_left_out"] == 0 and result.metrics[-1]["exhausted"] == 1
    assert [r.message for r in caplog.records if "ran out" in r.message] == [starving_message(1.0)]
    with pytest.raises(TrainingError, match="stopped because 100% of the rows ran out of proposals for 1000 steps: "):
        relbo.fit(pair, lenient, x, num_epochs=600, batch_size=2)


def test_starving_is_told_once_and_ends_the_run_only_after_long(caplog):
    assert watch(0.01, 100, 0, warned=False) == (False, 0) and not caplog.records
    assert watch(0.02, 100, 0, warned=False) == (True, 0) and len(caplog.records) == 1
    assert watch(0.02, 100, 0, warned=True) == (True, 0) and len(caplog.records) == 1
    assert watch(0.6, 100, 800, warned=True) == (True, 900)
    assert watch(0.4, 100, 900, warned=True) == (True, 0)
    with pytest.raises(TrainingError, match="60% of the rows ran out of proposals for 1000 steps"):
        watch(0.6, 100, 900, warned=True)


def test_rows_with_impossible_draws_are_left_out_and_told_of_once(caplog):
    model = TableModel(jnp.asarray([[-1.0, -jnp.inf, -2.5], [-jnp.inf] * 3]), normalise=False)
    pair = relbo.Pair(model, TableProposal(jnp.zeros((2, 3))))
    result = relbo.fit(pair, relbo.RLOO(2), jnp.zeros(20, int), num_epochs=3, batch_size=5)
    told = [record.message for record in caplog.records if "left out" in record.message]
    assert len(told) == 1 and told[0].startswith(f"{result.metrics[0]['num_left_out']:.0f} rows were left out")
    assert np.isfinite(result.pair.proposal.table).all() and -3 < result.metrics[-1]["bound"] < 0
    # nothing is reported as a bound of 0, nor goes on for ever
    nothing = relbo.fit(pair, relbo.RLOO(2), jnp.ones(20, int), num_epochs=1, batch_size=5)
    assert nothing.metrics[-1]["bound"] is None and nothing.metrics[-1]["num_left_out"] == 20
    with pytest.raises(
        TrainingError, match=r"every row was left out for 1000 steps: .*log p = -inf; choose a proposal"
    ):
        watch(0.0, 100, 900, warned=True, all_left_out=True)


def test_other_data_or_settings_are_refused_by_name(tmp_path, data, rows, pair):
    options = {"batch_size": 8, "valid_bound": "is:2"}
    relbo.fit(pair, VRS, data, num_epochs=1, out=tmp_path / "run", **options)
    with pytest.raises(ValueError, match="holds a run already"):
        relbo.fit(pair, VRS, data, num_epochs=1, out=tmp_path / "run", **options)
    other = Dataset("small", "binary", 1 - rows, rows[:10], rows[:10])
    with pytest.raises(ValueError, match="data_fingerprint was .* and is now"):
        relbo.fit(pair, VRS, other, num_epochs=2, out=tmp_path / "run", resume=True, **options)
    with pytest.raises(ValueError, match="batch_size was 8 and is now 4"):
        relbo.fit(pair, VRS, data, num_epochs=2, out=tmp_path / "run", resume=True, batch_size=4)
    with pytest.raises(ValueError, match=r"estimator_settings was .*VRS.* and is now .*RLOO"):
        relbo.fit(pair, relbo.RLOO(2), data, num_epochs=2, out=tmp_path / "run", resume=True, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer from 1 to the 40 training datapoints, got 0"),
        ({"batch_size": 41}, "from 1 to the 40 training datapoints, got 41"),
        ({"num_epochs": -1}, "num_epochs must be an integer >= 0, got -1"),
        ({"log_every": 0}, "log_every must be an integer >= 1, got 0"),
        ({"valid_bound": "is:0"}, "a bound must be elbo, is:K or rs:K"),
        ({"patience": 0}, "patience must be None or an integer >= 1, got 0"),
        ({"max_seconds": 0.0}, "max_seconds must be None or a number > 0, got 0.0"),
        ({"checkpoint_every": 0}, "checkpoint_every must be None or an integer >= 1, got 0"),
        ({"seed": 2**32}, r"seed must be an integer from 0 to 2\^32 - 1, got 4294967296"),
        ({"seed": -1}, r"seed must be an integer from 0 to 2\^32 - 1, got -1"),
    ],
)
def test_bad_settings(data, pair, options, message):
    with pytest.raises(ValueError, match=message):
        relbo.fit(pair, relbo.RLOO(2), data, **{"num_epochs": 1, "batch_size": 8, **options})
