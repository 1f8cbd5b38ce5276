"""Checkpoints hold everything, refuse what does not fit, and say when they are damaged."""

import gc
import logging
import threading
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.train.checkpoint import Checkpoints
from relbo.train.errors import Damaged
from relbo.train.sealed import array_digest


def tree(width=3):
    return {
        "a": jnp.arange(width, dtype=jnp.float32),
        "key": jax.random.key(7),
        "count": jnp.asarray(2, jnp.int32),
        "nothing": None,
        "name": "text",
    }


def test_round_trip_and_retention(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run")
    assert checkpoints.latest() is None
    for step in (1, 2, 3):
        checkpoints.save(step, {"part": tree()}, {"seen": step, "nothing": None})
    checkpoints = Checkpoints(tmp_path, "run")
    assert checkpoints.latest() == 3
    restored, record = checkpoints.restore(3, {"part": tree()})
    assert checkpoints.record(2) == {"seen": 2, "nothing": None}
    assert record == {"seen": 3, "nothing": None}
    assert eqx.tree_equal(restored, {"part": tree()})
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"2", "3"}


def test_another_shape_is_refused_by_name(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, {"part": tree()}, {})
    with pytest.raises(
        ValueError, match=r"the part of .*1 arrays differ, the first being \['a'\], expected float32\[4\], got"
    ):
        checkpoints.restore(1, {"part": tree(4)})


def test_one_item_is_read_without_the_others(tmp_path):
    items = {"pair": tree(3), "rest": tree(5), "empty": {"name": "text"}}
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, items, {"seen": 1})
    for names in (["pair"], ["rest", "empty"], ["empty"]):
        asked = {name: items[name] for name in names}
        restored, record = checkpoints.restore(1, asked)
        assert record == {"seen": 1} and eqx.tree_equal(restored, asked)


def test_what_orbax_leaves_unfinished_at_a_damaged_file_is_not_heard_of(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, {"part": tree()}, {})
    metadata = tmp_path / "1" / "part" / "_METADATA"
    whole = metadata.read_bytes()
    outcomes = set()
    for place in range(3, len(whole), len(whole) // 40):
        metadata.write_bytes(whole[:place] + bytes([whole[place] ^ 32]) + whole[place + 1 :])
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                restored, _ = checkpoints.restore(1, {"part": tree()})
                outcomes.add("same")
                assert eqx.tree_equal(restored["part"], tree())
            except Damaged:
                outcomes.add("damaged")
            gc.collect()
        assert [str(warning.message) for warning in heard] == []
    assert outcomes == {"same", "damaged"}


def test_damage_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, {"part": tree()}, {})
    for path in (tmp_path / "1").rglob("*"):
        if path.is_file() and "commit" not in path.name:
            path.write_bytes(b"damaged")
    with pytest.raises(Damaged, match="checkpoint .*1 cannot be read"):
        checkpoints.restore(1, {"part": tree()})


def test_no_pickle_on_disk(tmp_path):
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, {"part": tree()}, {})
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not any(path.suffix in (".pkl", ".pickle") for path in files)
    assert not any(path.read_bytes()[:1] == b"\x80" for path in files)


def test_the_logger_that_orbax_writes_to_is_left_as_it_was(tmp_path):
    logger = logging.getLogger("absl")
    level = logger.level
    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, {"part": tree()}, {})
    checkpoints.restore(1, {"part": tree()})
    assert logger.level == level


def test_no_flipped_bit_is_believed(tmp_path):
    """60 single bits, drawn from those of all files: the checkpoint is refused, or gives what was saved."""
    checkpoints = Checkpoints(tmp_path, "run")
    # numbers that do not compress: a flipped bit of theirs is another number, and nothing but the hash notices
    items = {"part": {"a": jax.random.normal(jax.random.key(0), (10_000,))}, "other": tree()}
    checkpoints.save(1, items, {"seen": 0.125})
    files = sorted(path for path in (tmp_path / "1").rglob("*") if path.is_file() and path.stat().st_size)
    sizes = np.array([path.stat().st_size for path in files])
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        path = files[rng.choice(len(files), p=sizes / sizes.sum())]
        content = path.read_bytes()
        place, bit = int(rng.integers(len(content))), int(rng.integers(8))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        try:
            restored, record = checkpoints.restore(1, items)
        except Damaged:
            refused += 1
        else:
            assert record == {"seen": 0.125} and eqx.tree_equal(restored, items)
        path.write_bytes(content)
    assert refused > 20
    assert eqx.tree_equal(checkpoints.restore(1, items)[0], items)


def test_a_checkpoint_of_another_step_or_run_is_refused(tmp_path):
    Checkpoints(tmp_path, "mine").save(1, {"part": tree()}, {})
    with pytest.raises(Damaged, match="it is of run mine, not of yours"):
        Checkpoints(tmp_path, "yours").restore(1, {"part": tree()})
    (tmp_path / "1").rename(tmp_path / "2")
    with pytest.raises(Damaged, match="it is of step 1, not of 2"):
        Checkpoints(tmp_path, "mine").record(2)


def test_the_hash_is_of_the_content_not_of_its_layout():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert array_digest(a) == array_digest(np.asfortranarray(a)) == array_digest(np.asarray(jnp.asarray(a)))
    others = [a + 1, a.reshape(3, 2), a.astype(np.float64), a.astype(np.int32)]
    assert len({array_digest(other) for other in (a, *others)}) == 5


def test_what_cannot_be_written_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    checkpoints = Checkpoints(tmp_path, "run")
    checkpoints.save(1, {"part": tree()}, {})

    def full(self, directory, *args, **kwargs):
        directory.with_name(f"{directory.name}.orbax-checkpoint-tmp").mkdir()
        raise ValueError("RESOURCE_EXHAUSTED: ... No space left on device [os_error_code='28']")

    monkeypatch.setattr(ocp.Checkpointer, "save", full)
    with pytest.raises(OSError, match=r"checkpoint|2 cannot be written: No space left on device\."):
        checkpoints.save(2, {"part": tree()}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"] and checkpoints.latest() == 1


@pytest.mark.parametrize(
    "name", ["p[0]x", "a*b", "a**b", "a?b", "a\\b", "gs:", "100% {a}", "q[/red]\nx", "\udc80", "-~é"]
)
def test_the_names_of_folders_are_no_patterns_and_no_urls(tmp_path, name):
    Checkpoints(tmp_path / "aXb", "other").save(1, {"part": tree(5)}, {})  # which `a*b` would match
    checkpoints = Checkpoints(tmp_path / name / "checkpoints", "run")
    for step in (1, 2, 3):
        checkpoints.save(step, {"part": tree()}, {"seen": step})
    assert eqx.tree_equal(checkpoints.restore(2, {"part": tree()})[0], {"part": tree()})
    assert checkpoints.steps() == [2, 3]


def test_no_older_checkpoint_is_removed_before_the_new_one_was_read_back(tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    checkpoints = Checkpoints(tmp_path, "run")
    for step in (1, 2):
        checkpoints.save(step, {"part": tree()}, {})
    save = ocp.Checkpointer.save

    def lossy(self, directory, *args, **kwargs):
        save(self, directory, *args, **kwargs)
        for file in (directory / "part").glob("d/*"):
            file.unlink()

    monkeypatch.setattr(ocp.Checkpointer, "save", lossy)
    with pytest.raises(OSError, match=r"3 cannot be written: Damaged: checkpoint .*3 cannot be read"):
        checkpoints.save(3, {"part": tree()}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert eqx.tree_equal(checkpoints.restore(1, {"part": tree()})[0], {"part": tree()})


def test_a_full_disk_is_said_once_and_as_such(tmp_path, monkeypatch, caplog):
    import orbax.checkpoint as ocp

    def full(*args, **kwargs):
        news = iter([[threading.Thread()]])  # one of orbax's that was begun and does not run yet
        found = threading.enumerate
        monkeypatch.setattr(threading, "enumerate", lambda: [*found(), *next(news, [])])
        raise ValueError("RESOURCE_EXHAUSTED: ... No space left on device [os_error_code='28']")

    monkeypatch.setattr(ocp.Checkpointer, "save", full)
    with pytest.raises(OSError, match=r"1 cannot be written: No space left on device\."):
        Checkpoints(tmp_path, "run").save(1, {"part": tree()}, {})
    log = logging.getLogger("asyncio").error
    log("Future exception was never retrieved\nfuture: <Future .../1.orbax-checkpoint-tmp/part: No space left>")
    log("Future exception was never retrieved\nfuture: <Future of the user's own>")
    assert [record.getMessage()[-6:] for record in caplog.records] == ["s own>"]
