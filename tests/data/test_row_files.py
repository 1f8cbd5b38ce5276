import threading

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relbo.data import Dataset, RowFiles, row_files


def bits(n, d, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, d), dtype=np.uint8)


def save(folder, matrix, sizes, packed):
    """The matrix in files of these numbers of rows."""
    files = [folder / f"{number}.npy" for number in range(len(sizes))]
    for file, part in zip(files, np.split(matrix, np.cumsum(sizes)[:-1]), strict=True):
        np.save(file, np.packbits(part, axis=1) if packed else part)
    return RowFiles(files, width=matrix.shape[1] if packed else None)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    width=st.integers(1, 19),
    packed=st.booleans(),
    cut=st.tuples(st.integers(-12, 40), st.integers(-12, 40)),
    data=st.data(),
)
def test_rows_are_those_of_the_matrix(tmp_path, sizes, width, packed, cut, data):
    matrix = bits(sum(sizes), width) if packed else np.random.default_rng(1).integers(0, 256, (sum(sizes), width), "u1")
    rows, matrix = save(tmp_path, matrix, sizes, packed)[cut[0] : cut[1]], matrix[cut[0] : cut[1]]
    assert (rows.shape, rows.ndim, rows.dtype, len(rows), rows.size) == (
        matrix.shape,
        2,
        "u1",
        len(matrix),
        matrix.size,
    )
    np.testing.assert_array_equal(np.asarray(rows), matrix)
    np.testing.assert_array_equal(rows.column_sums(), matrix.sum(axis=0))
    size = data.draw(st.integers(1, 5))
    blocks = list(rows.blocks(size))
    assert all(1 <= len(block) <= size for block in blocks)
    np.testing.assert_array_equal(np.concatenate([matrix[:0], *blocks]), matrix)
    one = st.integers(-len(matrix), len(matrix) - 1) if len(matrix) else st.nothing()
    index = data.draw(st.lists(one, max_size=12)) if len(matrix) else []
    wanted = np.array(index, data.draw(st.sampled_from([np.int32, np.int64])))
    for found in (rows.take(wanted), rows[wanted]):
        assert found.dtype == np.uint8 and found.flags.writeable
        np.testing.assert_array_equal(found, matrix[wanted])
    for place in index:
        np.testing.assert_array_equal(rows[place], matrix[place])


def test_more_rows_than_are_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "AT_ONCE", 4)
    matrix = bits(60, 11)
    rows = save(tmp_path, matrix, [25, 1, 34], packed=True)
    index = np.random.default_rng(0).integers(0, 60, 500)
    np.testing.assert_array_equal(rows.take(index), matrix[index])
    np.testing.assert_array_equal(rows[7:50].take(index % 43), matrix[7:50][index % 43])


def test_parts_of_parts(tmp_path):
    matrix = bits(60, 11)
    rows = save(tmp_path, matrix, [25, 1, 34], packed=True)
    rows.column_sums()  # known of the whole, not of a part
    part, expected = rows[10:50][5:-3], matrix[10:50][5:-3]
    np.testing.assert_array_equal(part, expected)
    np.testing.assert_array_equal(part.take(np.array([-1, 0, 20])), expected[[-1, 0, 20]])
    np.testing.assert_array_equal(part.column_sums(), expected.sum(axis=0))
    np.testing.assert_array_equal(part[:].column_sums(), expected.sum(axis=0))


def test_indices_of_other_kinds_and_types(tmp_path):
    matrix = bits(20, 5)
    rows = save(tmp_path, matrix, [12, 8], packed=False)
    np.testing.assert_array_equal(rows[jnp.array([3, 15])], matrix[[3, 15]])
    np.testing.assert_array_equal(rows[[3, 15]], matrix[[3, 15]])
    np.testing.assert_array_equal(rows[np.int64(3)], matrix[3])
    np.testing.assert_array_equal(rows[np.array([3, 15], np.uint64)], matrix[[3, 15]])
    np.testing.assert_array_equal(jnp.asarray(rows, float), matrix.astype(float))
    assert rows.take([]).shape == (0, 5)
    assert list(map(list, rows)) == matrix.tolist()


BAD_INDEX = {
    "step": (slice(None, None, 2), "a range without a step"),
    "mask": (np.ones(20, bool), "an array of integers with one axis"),
    "two axes": ((slice(None), 3), "taken by a number, a range"),
    "matrix": (np.zeros((2, 2), int), "an array of integers with one axis"),
    "floats": (np.array([1.0]), "an array of integers with one axis"),
    "none": (None, "taken by a number"),
    "word": ("a", "taken by a number"),
    "past the end": (20, r"rows must lie in \[0, 20\), got values from 20 to 20"),
    "before the start": ([3, -21], r"rows must lie in \[0, 20\), got values from -21 to 3"),
}


@pytest.mark.parametrize(("index", "message"), BAD_INDEX.values(), ids=BAD_INDEX)
def test_refuses_an_index(tmp_path, index, message):
    rows = save(tmp_path, bits(20, 5), [12, 8], packed=False)
    with pytest.raises(IndexError, match=message) as caught:
        rows[index]
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_rows_cannot_be_written(tmp_path):
    rows = save(tmp_path, bits(20, 5), [20], packed=False)
    with pytest.raises(TypeError, match="item assignment"):
        rows[0] = 1
    before = np.asarray(rows)
    rows.take(np.arange(20))[:] = 7
    rows.column_sums()[:] = 7
    np.testing.assert_array_equal(rows, before)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(rows, copy=False)


def test_a_file_is_mapped_only_when_a_row_of_it_is_read(tmp_path):
    rows = save(tmp_path, bits(20, 5), [12, 8], packed=False)
    rows[3:].take(np.array([0, 5]))
    assert [file._mapped is not None for file in rows._files] == [True, False]


def test_what_lies_between_rows_that_are_far_apart_is_not_read(tmp_path, monkeypatch):
    rows = save(tmp_path, bits(20_000, 100), [20_000], packed=False)
    told = []
    monkeypatch.setattr(row_files, "_advise", lambda pages, advice: told.append(advice))
    rows.take(np.array([19_000, 3, 7_000]))
    rows.take(np.arange(500, 600))
    next(rows.blocks())
    assert told == [f"MADV_{word}" for how in ("RANDOM", "NORMAL", "NORMAL") for word in (how, "DONTNEED")]


def test_repr(tmp_path):
    rows = save(tmp_path, bits(20, 5), [12, 8], packed=True)
    assert repr(rows) == "RowFiles(20 x 5, 2 files, packed)"
    assert repr(rows[12:]) == "RowFiles(8 x 5, 1 file, packed)"
    assert repr(rows[11:13]) == "RowFiles(2 x 5, 2 files, packed)"


def test_threads_read_at_the_same_time(tmp_path):
    matrix = bits(3000, 40)
    rows = save(tmp_path, matrix, [1000] * 3, packed=True)
    wrong = []

    def read(seed):
        for index in np.random.default_rng(seed).integers(0, 3000, (50, 300)):
            if not np.array_equal(rows.take(index), matrix[index]):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


BAD_FILES = {
    "floats": (np.zeros((3, 2)), "must hold uint8 of shape .* got float64 of shape"),
    "one axis": (np.zeros(3, np.uint8), r"got uint8 of shape \(3,\)"),
    "fortran": (np.zeros((3, 2), np.uint8, order="F"), "got uint8 of shape .* in Fortran order"),
    "no rows": (np.zeros((0, 2), np.uint8), "neither of them 0"),
    "other width": (np.zeros((3, 4), np.uint8), "must have rows of 2 bytes, as good.npy has, got 4"),
}


@pytest.mark.parametrize(("array", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_refuses_an_array(tmp_path, array, message):
    np.save(tmp_path / "good.npy", np.zeros((3, 2), np.uint8))
    np.save(tmp_path / "bad.npy", array)
    with pytest.raises(ValueError, match=message) as caught:
        RowFiles([tmp_path / "good.npy", tmp_path / "bad.npy"])
    assert str(caught.value).startswith(str(tmp_path / "bad.npy"))


def test_refuses_what_is_no_list_of_files_and_widths_that_do_not_fit(tmp_path):
    np.save(tmp_path / "good.npy", np.zeros((3, 2), np.uint8))
    with pytest.raises(ValueError, match="files must be a list of at least one .npy file"):
        RowFiles([])
    with pytest.raises(ValueError, match="must have rows of 3 bytes for 17 bits each, got 2"):
        RowFiles([tmp_path / "good.npy"], width=17)
    with pytest.raises(ValueError, match="width must be None or an integer >= 1, got 0"):
        RowFiles([tmp_path / "good.npy"], width=0)
    with pytest.raises(FileNotFoundError, match="no.npy is not there"):
        RowFiles([tmp_path / "no.npy"])


def test_damage_of_a_file_anywhere_is_a_clear_error_or_harmless(tmp_path):
    """Header bytes are changed one after the other, and the file cut everywhere."""
    path = tmp_path / "rows.npy"
    np.save(path, bits(6, 5))
    good = path.read_bytes()
    cases = [good[:place] for place in range(len(good))] + [good + b"0"]
    cases += [good[:place] + b"(" + good[place + 1 :] for place in range(128)]
    for content in cases:
        path.write_bytes(content)
        try:
            rows = np.asarray(RowFiles([path]))
        except ValueError as error:
            assert str(path) in str(error) and str(error).endswith(".")
        else:
            np.testing.assert_array_equal(rows, bits(6, 5))


def test_a_file_that_is_cut_before_it_is_mapped_is_refused(tmp_path):
    rows = save(tmp_path, bits(20, 5), [12, 8], packed=False)
    file = tmp_path / "1.npy"
    file.write_bytes(file.read_bytes()[:-1])
    np.testing.assert_array_equal(rows.take(np.arange(12)), bits(20, 5)[:12])
    with pytest.raises(ValueError, match="1.npy is truncated: its header promises 8 rows of 5 bytes, which makes 168"):
        rows.take(np.arange(20))


@pytest.mark.parametrize("packed", [False, True])
def test_a_dataset_of_files_by_hand_is_that_of_the_arrays(tmp_path, packed):
    splits = {"train": bits(20, 5), "valid": bits(4, 5, 1), "test": bits(3, 5, 2)}
    array = Dataset("mine", "binary", **splits)
    rows = Dataset("mine", "binary", **(splits | {"train": save(tmp_path, splits["train"], [12, 8], packed)}))
    assert rows.fingerprint == array.fingerprint and repr(rows) == repr(array)
    np.testing.assert_array_equal(rows.mean(), array.mean())


def test_a_dataset_by_hand_checks_the_values_of_its_files(tmp_path):
    held_out = {"valid": bits(4, 5, 1), "test": bits(3, 5, 2)}
    wrong = bits(20, 5)
    wrong[15, 2] = 9
    rows = save(tmp_path, wrong, [12, 8], packed=False)
    with pytest.raises(ValueError, match="mine: split 'train' must hold only 0 and 1, got 9 at row 15, column 2"):
        Dataset("mine", "binary", train=rows, **held_out)
    assert Dataset("mine", "gray", train=rows, **held_out).train.shape == (20, 5)
    padded = save(tmp_path, np.ones((20, 8), np.uint8), [12, 8], packed=True)
    narrow = RowFiles([file.path for file in padded._files], width=5)
    with pytest.raises(ValueError, match="'train' must have zeros in the bits after pixel 5 of a row, got ones"):
        Dataset("mine", "binary", train=narrow, **held_out)
    with pytest.raises(ValueError, match="'valid' must be RowFiles where a fingerprint is given, got an array"):
        Dataset("mine", "binary", train=narrow, **held_out, recorded_fingerprint="0" * 64)
