"""Checkpoints hold everything, refuse what does not fit, and say when they are damaged."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from relbo.train.checkpoint import Checkpoints, opened


def tree(width=3):
    return {
        "a": jnp.arange(width, dtype=jnp.float32),
        "key": jax.random.key(7),
        "count": jnp.asarray(2, jnp.int32),
        "nothing": None,
        "name": "text",
    }


def test_round_trip_and_retention(tmp_path):
    with opened(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() is None
        for step in (1, 2, 3):
            checkpoints.save(step, {"part": tree()}, {"seen": step, "nothing": None})
    with opened(tmp_path) as checkpoints:
        assert checkpoints.latest() == 3
        restored, record = checkpoints.restore(3, {"part": tree()})
        assert checkpoints.record(2) == {"seen": 2, "nothing": None}
    assert record == {"seen": 3, "nothing": None}
    assert eqx.tree_equal(restored, {"part": tree()})
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"2", "3"}


def test_another_shape_is_refused_by_name(tmp_path):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"part": tree()}, {})
        with pytest.raises(
            ValueError, match=r"the part of .*1 arrays differ, the first being \['a'\], expected float32\[4\], got"
        ):
            checkpoints.restore(1, {"part": tree(4)})


def test_one_item_is_read_without_the_others(tmp_path):
    items = {"pair": tree(3), "rest": tree(5), "empty": {"name": "text"}}
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, items, {"seen": 1})
        for names in (["pair"], ["rest", "empty"], ["empty"]):
            asked = {name: items[name] for name in names}
            restored, record = checkpoints.restore(1, asked)
            assert record == {"seen": 1} and eqx.tree_equal(restored, asked)


def test_damage_is_named(tmp_path):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"part": tree()}, {})
    for path in (tmp_path / "1").rglob("*"):
        if path.is_file() and "commit" not in path.name:
            path.write_bytes(b"damaged")
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="checkpoint .*1 cannot be read"):
        checkpoints.restore(1, {"part": tree()})
    checkpoints.close()


def test_no_pickle_on_disk(tmp_path):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"part": tree()}, {})
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(path.suffix in (".pkl", ".pickle") for path in files)
    assert not any(path.read_bytes()[:1] == b"\x80" for path in files)


def test_the_logger_that_orbax_writes_to_is_left_as_it_was(tmp_path):
    logger = logging.getLogger("absl")
    level = logger.level
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, {"part": tree()}, {})
        checkpoints.restore(1, {"part": tree()})
    assert logger.level == level
