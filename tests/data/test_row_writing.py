import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from relbo.data import Dataset, convert_rows, load, row_writing, write_rows


def bits(n, d=12, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, d), dtype=np.uint8)


SMALL = {"valid": bits(7, seed=1), "test": bits(5, seed=2)}


@pytest.mark.parametrize("rows_per_file", [1, 4, 7, 30, 100])
@pytest.mark.parametrize("lengths", [[30], [1] * 30, [0, 13, 0, 17, 0], [29, 1]])
def test_blocks_of_any_length_give_the_same_files(tmp_path, lengths, rows_per_file):
    rows = bits(30)
    blocks = (block for block in np.split(rows, np.cumsum(lengths)[:-1]))
    data = write_rows(tmp_path / "mine", name="mine", train=blocks, **SMALL, rows_per_file=rows_per_file)
    assert data.fingerprint == Dataset("mine", "binary", rows, **SMALL).fingerprint
    np.testing.assert_array_equal(data.train, rows)
    sizes = [len(np.load(file)) for file in sorted((tmp_path / "mine").glob("train-*.npy"))]
    assert sizes == [min(rows_per_file, 30 - start) for start in range(0, 30, rows_per_file)]


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
def test_any_numeric_dtype_and_order(tmp_path, dtype):
    rows = np.asfortranarray(bits(30).astype(dtype))
    data = write_rows(tmp_path / "mine", name="mine", train=[rows[:20], rows[20:]], **SMALL, packed=False)
    np.testing.assert_array_equal(data.train, bits(30))


def test_an_array_of_jax_is_a_matrix(tmp_path):
    data = write_rows(tmp_path / "mine", name="mine", train=jnp.asarray(bits(30)), **SMALL)
    np.testing.assert_array_equal(data.train, bits(30))


def failing():
    yield bits(9)
    raise RuntimeError("the source broke off")


def with_value(value):
    rows = bits(9).astype(float)
    rows[8, 3] = value
    return rows


BAD = {
    "value": ({"train": [bits(9), with_value(2)]}, "counted from row 9, must hold only 0 and 1, got 2.0 at row 8"),
    "nan": ({"valid": with_value(np.nan)}, "split 'valid' must hold only 0 and 1, got NaN at row 8, column 3"),
    "widths": ({"train": [bits(9), bits(9, 11)]}, "must have rows of 12 pixels, as those before, got shape .9, 11."),
    "split widths": ({"test": bits(3, 11)}, "same number of pixels per row, got train 12, valid 12, test 11"),
    "no rows": ({"train": []}, "split 'train' is empty: expected at least one row, got none"),
    "empty rows": ({"train": [bits(0)]}, "split 'train' is empty"),
    "axes": ({"train": [np.zeros(3)]}, r"split 'train' must have shape \(rows, pixels\), got \(3,\)"),
    "rows of a matrix": ({"train": iter(bits(3))}, r"must have shape \(rows, pixels\), got \(12,\)"),
    "text": ({"train": [np.array([["a"]])]}, "must hold numbers or booleans"),
    "gray floats": ({"kind": "gray", "train": [np.zeros((3, 12))]}, "gray levels 0..255 as uint8, got dtype float64"),
    "picture": ({"image_shape": (5, 5)}, "image_shape must multiply to 12 pixels"),
    "source": ({"train": failing()}, "the source broke off"),
    "rows per file": ({"rows_per_file": 0}, "rows_per_file must be an integer >= 1, got 0"),
    "name": ({"name": ""}, "name must be a word, got ''"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_refuses_and_leaves_nothing_behind(tmp_path, changes, message):
    arguments = {"name": "mine", "train": bits(20), **SMALL, "rows_per_file": 8} | changes
    with pytest.raises((ValueError, RuntimeError), match=message):
        write_rows(tmp_path / "new" / "mine", **arguments)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    if "source" not in message:
        with pytest.raises(ValueError, match=message):
            write_rows(tmp_path / "empty", **arguments)
        assert list((tmp_path / "empty").iterdir()) == []


def test_a_disk_that_fails_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(row_writing.os, "fsync", full)
    with pytest.raises(OSError, match="train-00000.npy cannot be written: No space left on device."):
        write_rows(tmp_path / "mine", name="mine", train=bits(20), **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_only_writes_into_nothing(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="must be new or empty, got a folder with 'thesis.txt' in it; name another"):
        write_rows(tmp_path, name="mine", train=bits(20), **SMALL)
    with pytest.raises(NotADirectoryError, match="thesis.txt must be a new or empty folder, got a file"):
        write_rows(tmp_path / "thesis.txt", name="mine", train=bits(20), **SMALL)
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        write_rows(tmp_path / "thesis.txt" / "x", name="mine", train=bits(20), **SMALL)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["years of work"]


def test_convert_of_a_name_and_of_a_directory(tmp_path):
    array = load("digits")
    first = convert_rows("digits", tmp_path / "a", rows_per_file=500)
    second = convert_rows(tmp_path / "a", tmp_path / "b", packed=False)
    for data in (first, second):
        assert repr(data) == repr(array) and data.image_shape == (8, 8) and data.name == "digits"
        np.testing.assert_array_equal(data.test, array.test)


def test_convert_notices_a_source_that_was_changed(tmp_path):
    write_rows(tmp_path / "a", name="mine", train=bits(9000), **SMALL)
    file = tmp_path / "a" / "train-00000.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80
    file.write_bytes(content)
    with pytest.raises(ValueError, match="it was changed after it was written, see `relbo data check"):
        convert_rows(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


MEMORY = """
import resource, sys
import numpy as np
from relbo.data import write_rows, load

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

few, many = (np.random.default_rng(0).integers(0, 2, (2000, 784), dtype=np.uint8) for _ in range(2))
write_rows(sys.argv[1] + "/small", name="small", train=few, valid=few[:9], test=few[:9], packed=False)
load(sys.argv[1] + "/small").train.take(np.arange(0, 2000, 3))
before = peak()
data = write_rows(
    sys.argv[1] + "/big", name="big", train=(many for _ in range(100)), valid=few[:9], test=few[:9], packed=False
)
for seed in range(20):
    data.train.take(np.random.default_rng(seed).integers(0, len(data.train), 1000))
print(len(data.train) * 784 / 2**20, peak() - before)
"""


def test_memory_does_not_grow_with_the_data(tmp_path):
    """150 MiB are written, read back and visited in random order in less than half of that."""
    result = subprocess.run([sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True)
    size, grown = map(float, result.stdout.split())
    assert size > 149 and grown < 70
