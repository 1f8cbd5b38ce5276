"""Shards of rows, on any number of devices and in any number of processes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.data import write_rows
from relbo.train.checkpoint import Checkpoints
from relbo.train.layout import Layout
from relbo.train.sealed import array_digest, digest_of_parts, values_digest
from relbo.train.shards import init_estimator, is_of_rows, sum_over_shards
from tests.ranks import answers


@pytest.mark.parametrize(("num_rows", "num_shards"), [(40, 1), (40, 4), (43, 4), (9, 8)])
def test_shards_hold_every_row_once(num_rows, num_shards):
    layout = Layout(num_rows, num_shards)
    data = np.arange(num_rows) + 1
    placed = np.asarray(layout.rows_of(data)).reshape(num_shards, -1)
    held = [placed[shard, : layout.size(shard)] for shard in range(num_shards)]
    assert np.concatenate(held).tolist() == data.tolist()
    assert max(map(len, held)) - min(map(len, held)) <= 1
    key = jax.random.key(0)
    orders = [layout.order_of(key, 0, shard) for shard in range(num_shards)]
    assert [sorted(order.tolist()) for order in orders] == [list(range(layout.size(s))) for s in range(num_shards)]
    assert any(not np.array_equal(a, layout.order_of(key, 1, s)) for s, a in enumerate(orders) if len(a) > 4) or (
        num_rows < 10
    )


def test_one_shard_has_the_order_of_a_run_without_shards():
    key = jax.random.key(0)
    assert Layout(40).order(key, 3).tolist() == Layout(40).order_of(key, 3, 0).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": 3}, "shards must be a power of 2, got 3"),
        ({"shards": 64}, "shards must be at most the 40 training datapoints, got 64"),
        ({"shards": 4, "batch_size": 6}, "batch_size must be a multiple of the 4 shards, with at most 10 rows of each"),
        ({"mesh": 2}, "mesh must be at most the 1 devices that JAX has, got 2"),
        ({"mesh": 0}, "mesh must be at least one device"),
    ],
)
def test_bad_splits_are_refused(settings, message):
    pair = relbo.sbn(jax.random.key(0), (2,), jnp.full(3, 0.5))
    with pytest.raises(ValueError, match=message):
        relbo.fit(pair, relbo.RLOO(2), jnp.zeros((40, 3)), **{"num_epochs": 1, "batch_size": 8, **settings})


def test_what_belongs_to_rows_is_found_by_its_length():
    pair = relbo.sbn(jax.random.key(0), (7,), jnp.full(7, 0.5))  # as many units as rows: no length can be mistaken
    for estimator, expected in ((relbo.VRS(2, threshold=relbo.Rate(0.5)), 8), (relbo.NVIL(2), 0), (relbo.RLOO(2), 0)):
        of_rows = is_of_rows(estimator, jax.random.key(0), pair, Layout(14, 2))
        assert sum(jax.tree.leaves(of_rows)) == expected
    state = init_estimator(relbo.VRS(2, threshold=relbo.Rate(0.5)), jax.random.key(0), pair, Layout(14, 2))
    assert state.thresholds.value.shape == (14,) and int(state.thresholds.num_data) == 7


class Odd(relbo.AbstractEstimator):
    """RLOO that keeps what it is told to."""

    keep: str
    bound, unbiased, needs, paper = relbo.ELBO(), True, relbo.Needs.DRAWS, ""

    def init(self, key, pair, num_data):
        kept = {
            "columns": jnp.zeros((2, num_data)),
            "double": jnp.zeros(2 * num_data),
            "slots": jnp.zeros(1 + num_data // 4),
            "key": key,
            "text": "a text",
            "visits": jnp.zeros(num_data),
            "draws": jnp.zeros(num_data),
        }
        return {"inner": relbo.RLOO(2).init(key, pair, num_data), "kept": kept[self.keep]}

    def estimate(self, key, pair, state, batch):
        gradient, inner, info = relbo.RLOO(2).estimate(key, pair, state["inner"], batch)
        kept = state["kept"].at[batch.index].add(1) if self.keep == "visits" else state["kept"]
        if self.keep == "draws":
            kept = kept.at[batch.index].set(jax.random.uniform(key))
        return gradient, {"inner": inner, "kept": kept}, info


@pytest.mark.parametrize(
    ("keep", "message"), [("columns", "(2, 10)"), ("double", "(20,)"), ("slots", "(3,)"), ("key", "key")]
)
def test_states_that_cannot_be_split_are_refused(keep, message):
    pair = relbo.sbn(jax.random.key(0), (2,), jnp.full(3, 0.5))
    with pytest.raises(ValueError, match=f"(?s)split into shards must keep.*{re.escape(message)}"):
        relbo.fit(pair, Odd(keep), jnp.zeros((40, 3)), num_epochs=1, batch_size=8, shards=4)


@pytest.mark.parametrize("keep", ["visits", "text"])
def test_states_of_ones_own_are_split(keep):
    pair = relbo.sbn(jax.random.key(0), (2,), jnp.full(3, 0.5))
    result = relbo.fit(pair, Odd(keep), jnp.zeros((40, 3)), num_epochs=2, batch_size=8, shards=4)
    kept = result.state.estimator_state["kept"]
    assert kept == "a text" if keep == "text" else kept.tolist() == [2.0] * 40


def test_every_shard_and_every_step_has_random_numbers_of_its_own():
    pair = relbo.sbn(jax.random.key(0), (2,), jnp.full(3, 0.5))
    result = relbo.fit(pair, Odd("draws"), jnp.zeros((40, 3)), num_epochs=1, batch_size=8, shards=4)
    assert len(set(result.state.estimator_state["kept"].tolist())) == 20  # 5 steps of 4 shards


def test_the_sum_over_shards_is_that_of_a_tree():
    v = jax.random.normal(jax.random.key(0), (8, 5), jnp.float32) * 1e4
    a, b, c, d, e, f, g, h = v
    found = sum_over_shards({"v": v}, Layout(8, 8))["v"]
    assert np.array_equal(found, ((a + b) + (c + d)) + ((e + f) + (g + h)))


def test_the_hash_of_parts_is_that_of_the_whole():
    a = np.random.default_rng(0).random((8, 3))
    digests = b"".join(values_digest(a[i : i + 2]) for i in range(0, 8, 2))
    assert array_digest(a, 4) == digest_of_parts(a, digests) != array_digest(a)
    assert array_digest(a[:7], 4) == array_digest(a[:7])  # cannot be cut into four
    assert array_digest(a, 4) != array_digest(a + (np.arange(8) == 5)[:, None], 4)


def test_a_checkpoint_hashed_in_parts_is_read_by_all(tmp_path):
    tree = {"rows": jnp.arange(8.0), "weight": jnp.ones((3, 3))}
    Checkpoints(tmp_path, "run", parts=4).save(1, {"all": tree}, {})
    restored, _ = Checkpoints(tmp_path, "run").restore(1, {"all": tree})
    assert np.array_equal(restored["all"]["rows"], tree["rows"])


def same_run(a, b):
    """Bit-equal draws; parameters and what is computed of them to rounding."""
    for one, other in zip(a["records"], b["records"], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == other[name] or one[name] == pytest.approx(other[name], rel=1e-5), name
    for name in ("num_proposals", "num_left_out", "exhausted", "num_evaluated", "num_used", "age", "step"):
        assert [r.get(name) for r in a["records"]] == [r.get(name) for r in b["records"]]
    for u, v in zip(a["parameters"], b["parameters"], strict=True):
        np.testing.assert_allclose(u, v, atol=1e-5)
    for u, v in zip(a["thresholds"], b["thresholds"], strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-4)


def test_the_number_of_devices_changes_no_draw(tmp_path):
    (found,) = answers(tmp_path, "every", num_devices=4, estimator="rate", meshes=[1, 4])
    assert found["1"]["step"] == 104
    same_run(found["1"], found["4"])


def test_two_processes_are_one_run(tmp_path):
    out = str(tmp_path / "run")
    options = {"estimator": "rloo", "fit": {"out": out, "num_epochs": 4}}
    both = answers(tmp_path, "fit", num_processes=2, **options)
    assert both[0] == both[1]
    (alone,) = answers(tmp_path, "fit", num_devices=2, estimator="rloo", fit={"num_epochs": 8})
    further = {"out": out, "num_epochs": 8, "resume": True}
    (resumed,) = answers(tmp_path, "fit", num_devices=2, estimator="rloo", fit=further)  # on one process
    assert resumed == alone  # bit for bit


def test_a_process_of_another_run_is_refused(tmp_path):
    both = answers(tmp_path, "refused", num_processes=2, estimator="rloo")
    assert len({found["error"] for found in both}) == 1
    assert "must have the same settings: process 1 has another than process 0" in both[0]["error"]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["rloo", "rate", "quantile", "nvil", "rebar"])
def test_all_numbers_of_devices_agree(estimator, tmp_path):
    (found,) = answers(tmp_path, "every", num_devices=4, estimator=estimator, meshes=[None, 1, 2, 4])
    for other in ("1", "2", "4"):
        same_run(found["None"], found[other])


@pytest.mark.slow
def test_checkpoints_go_from_one_number_of_processes_to_another(tmp_path):
    out = str(tmp_path / "run")
    stages = [(2, 1, 2), (1, 4, 4), (2, 2, 6), (1, 2, 8)]
    for num_processes, num_devices, epochs in stages:
        fit = {"out": out, "num_epochs": epochs, "resume": True}
        found = answers(
            tmp_path, "fit", num_processes=num_processes, num_devices=num_devices, estimator="rate", fit=fit
        )
    (alone,) = answers(tmp_path, "fit", num_devices=4, estimator="rate")
    same_run(found[0], alone)


@pytest.mark.slow
def test_looking_at_a_pair_gives_the_same_on_any_number_of_devices(tmp_path):
    (found,) = answers(tmp_path, "look", num_devices=4)
    assert found["None"] == found["4"]
    both = answers(tmp_path, "look", num_processes=2, num_devices=2)
    assert both[0]["4"] == both[1]["4"] == found["4"]


@pytest.mark.parametrize(("shards", "log_every"), [(1, 100), (4, 3)])
def test_rows_on_disk_are_visited_as_those_in_memory(shards, log_every, tmp_path):
    x = (np.random.default_rng(0).random((41, 6)) < 0.5).astype(np.uint8)
    disk = write_rows(
        tmp_path / "rows", name="rows", kind="binary", train=[x[:30], x[30:]], valid=[x[:5]], test=[x[:5]]
    )
    memory = relbo.data.Dataset("rows", "binary", x, x[:5], x[:5])
    pair = relbo.sbn(jax.random.key(0), (2,), jnp.full(6, 0.5))
    settings = {"num_epochs": 3, "batch_size": 8, "shards": shards, "log_every": log_every, "valid_bound": "is:2"}
    runs = [relbo.fit(pair, relbo.RLOO(2), data, **settings) for data in (disk, memory)]
    assert runs[0].metrics[-1]["bound"] == runs[1].metrics[-1]["bound"]
    assert all(map(np.array_equal, *[jax.tree.leaves(run.state.pair) for run in runs]))
