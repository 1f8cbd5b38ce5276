"""Everything that is done with a run is the same whether its data are in memory or stay on disk."""

import dataclasses

import jax
import numpy as np
import pytest

import relbo
from relbo.lab import noise_meters
from relbo.lab.compare import compare_runs
from relbo.lab.config import build_pair
from relbo.lab.report import pictures
from relbo.lab.runs import open_run, train_run


@pytest.fixture(scope="module")
def both(tiny_runs, tmp_path_factory):
    """A run, and the same with its data on disk in files of seven rows."""
    run = open_run(tiny_runs / "vrs")
    data = relbo.data.convert_rows(tiny_runs / "tiny.npz", tmp_path_factory.mktemp("rows") / "tiny", rows_per_file=7)
    assert data.fingerprint == run.data.fingerprint
    return run, dataclasses.replace(run, data=data)


@pytest.mark.parametrize(("split", "limit"), [("test", None), ("train", 9), ("valid", 3)])
def test_comparison(both, split, limit):
    in_memory, on_disk = (compare_runs([run], ["elbo"], split=split, limit=limit).estimates for run in both)
    np.testing.assert_array_equal(in_memory["elbo"][0].values, on_disk["elbo"][0].values)


def test_draws(both):
    found = [relbo.posterior(jax.random.key(0), r.pair, r.data.test[:4], rate=0.5, num_samples=3) for r in both]
    for a, b in zip(*(jax.tree.leaves(draws.z) for draws in found), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pictures(both):
    in_memory, on_disk = (pictures.reconstructions(run, 5, "valid", seed=0) for run in both)
    assert isinstance(on_disk.images, np.ndarray)
    np.testing.assert_array_equal(in_memory.images, on_disk.images)
    np.testing.assert_array_equal(in_memory.from_q, on_disk.from_q)


def test_a_fresh_network(both):
    in_memory, on_disk = (jax.tree.leaves(build_pair(run.config, run.data)) for run in both)
    for a, b in zip(in_memory, on_disk, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_of_a_meter(both):
    index = jax.random.randint(jax.random.key(0), (3, 4), 0, 40)
    in_memory, on_disk = (noise_meters.rows_of(run.data.train, index) for run in both)
    assert on_disk.shape == (3, 4, 6)
    np.testing.assert_array_equal(in_memory, on_disk)


@pytest.mark.slow
def test_commands(both, tmp_path, capsys):
    """From `relbo data convert` to a report: the numbers of a run on the file are those of one on the directory."""
    from relbo.lab.cli import main

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert (ended.value.code or 0) == 0, captured.err
        return captured.out

    file = both[0].path.parent / "tiny.npz"
    call("data", "convert", file, tmp_path / "data", "--rows-per-file", 11)
    found = {}
    for name, data in (("file", file), ("rows", tmp_path / "data")):
        run, common = tmp_path / name, ("--layers", "3", "--batch-size", 10, "--epochs", 2)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            call("train", "--data", data, "--estimator", "vrs", *common, "--num-samples", 2, "--out", run)
            call("evaluate", run, "--split", "train", "--out", tmp_path / f"{name}.json")
            call("sample", run, "--limit", 5, "--num-samples", 3, "--out", tmp_path / f"{name}.npz")
            call("report", run, "--out", tmp_path / f"{name}.html")
            call("calibrate", run, "--num-simulations", 10, "--num-samples", 3, "--rate", 0.5)
            call("variance", run, "--estimator", "rloo", "--estimates", 40, "--warmup", 2, "--batch-size", 4)
        found[name] = (tmp_path / f"{name}.json").read_text().replace(str(run), "")
    assert found["file"] == found["rows"]
    with np.load(tmp_path / "file.npz") as a, np.load(tmp_path / "rows.npz") as b:
        for key in a.files:
            np.testing.assert_array_equal(a[key], b[key])
    call("compare", tmp_path / "file", tmp_path / "rows")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for name, data in (("file", tmp_path / "data"), ("rows", file)):  # each goes on with the other's data
            call("train", "--resume", "--data", data, "--epochs", 3, "--out", tmp_path / name)
    ours, theirs = (open_run(tmp_path / name, which="last") for name in ("file", "rows"))
    assert ours.step == theirs.step == 12 and isinstance(ours.data.train, relbo.data.RowFiles)
    for a, b in zip(jax.tree.leaves(ours.pair), jax.tree.leaves(theirs.pair), strict=True):
        np.testing.assert_array_equal(a, b)
    np.savez(tmp_path / "other.npz", **{split: 1 - both[0].data.split(split) for split in ("train", "valid", "test")})
    with pytest.raises(ValueError, match="cannot be resumed with another configuration: data was .* data_fingerprint"):
        config = dataclasses.replace(ours.config, data=str(tmp_path / "other.npz"), epochs=4)
        train_run(config, tmp_path / "rows", resume=True)
