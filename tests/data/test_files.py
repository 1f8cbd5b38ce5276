import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relbo.data import files, load


def rows(n, d, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, d), dtype=np.uint8)


def splits(d=5):
    return {"train": rows(6, d, 0), "valid": rows(3, d, 1), "test": rows(2, d, 2)}


def save(tmp_path, **arrays):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.float32])
def test_plain_file(tmp_path, dtype):
    data = load(str(save(tmp_path, **{name: array.astype(dtype) for name, array in splits().items()})))
    assert (data.name, data.kind, data.image_shape) == ("mine", "binary", None)
    for name, array in splits().items():
        np.testing.assert_array_equal(data.split(name), array)


@pytest.mark.parametrize("d", [1, 3, 7, 8, 9, 16, 50, 784])
def test_packed_file_of_any_width(tmp_path, d):
    path = tmp_path / "packed.npz"
    files.write_npz(path, files.pack(splits(d)))
    with np.load(path) as stored:
        assert stored["train"].shape == (6, -(-d // 8))
    packed = load(str(path))
    for name, array in splits(d).items():
        np.testing.assert_array_equal(packed.split(name), array)
    assert packed.fingerprint == load(str(save(tmp_path, **splits(d)))).fingerprint


def test_packed_and_plain_splits_may_be_mixed(tmp_path):
    mixed = splits() | {"valid": np.packbits(splits()["valid"], axis=1), "valid_shape": (3, 5)}
    np.testing.assert_array_equal(load(str(save(tmp_path, **mixed))).valid, splits()["valid"])


def test_image_shape_is_read(tmp_path):
    assert load(str(save(tmp_path, **splits(6), image_shape=(2, 3)))).image_shape == (2, 3)


def packed(**changes):
    return files.pack(splits()) | changes


class Bomb:
    """Its unpickling would leave a trace."""

    def __reduce__(self):
        return exec, ("import relbo; relbo.UNPICKLED = True",)


BAD = {
    "missing split": (
        {"train": rows(2, 3), "test": rows(2, 3)},
        "lacks 'valid': expected arrays 'train', 'valid', 'test', got 'train', 'test'",
    ),
    "no arrays": ({}, "lacks 'train', 'valid', 'test': .* got none"),
    "bad value": (splits() | {"test": rows(2, 5) * 3}, r"split 'test' must hold only 0 and 1, got 3 at row \d, column"),
    "nan": (splits() | {"valid": np.full((3, 5), np.nan)}, "split 'valid' .* got NaN at row 0, column 0"),
    "empty": (splits() | {"train": rows(0, 5)}, r"split 'train' is empty: .* got shape \(0, 5\)"),
    "widths": (splits() | {"test": rows(2, 6)}, "same number of pixels per row, got train 5, valid 5, test 6"),
    "axes": (splits() | {"train": np.zeros((6, 5, 1))}, r"split 'train' must have shape \(rows, pixels\)"),
    "objects": (
        splits() | {"train": np.array([[Bomb()]], object)},
        "'train' holds pickled objects, which are never read",
    ),
    "packed width": (packed(train_shape=(6, 9)), r"'train' must be bit-packed uint8 of shape \(6, 2\).* got uint8 of"),
    "packed rows": (packed(train_shape=(7, 5)), r"'train' must be bit-packed uint8 of shape \(7, 1\)"),
    "packed dtype": (packed(train=np.zeros((6, 1))), r"'train' must be bit-packed uint8 .* got float64 of shape"),
    "packed padding": (packed(train=np.full((6, 1), 1, np.uint8)), "zeros in the bits after pixel 5"),
    "packed empty": (packed(train=np.zeros((0, 1), np.uint8), train_shape=(0, 5)), "'train' is empty"),
    "not packed": (splits() | {"train_shape": (6, 5)}, "leave the shape entry out if the rows are not packed"),
    "shape of one": (packed(valid_shape=(3,)), r"'valid' has a shape entry that must be two integers"),
    "shape of floats": (packed(valid_shape=(3.0, 5.0)), r"two integers \(rows, pixels\), got \[3.0, 5.0\]"),
    "shape below zero": (packed(valid_shape=(-3, 5)), r"two integers \(rows, pixels\), got \[-3, 5\]"),
    "picture": (splits() | {"image_shape": (2, 3)}, r"'image_shape' must be \(height, width\) with 5 pixels in all"),
    "picture of one": (splits() | {"image_shape": 5}, "'image_shape' must be .* got 5"),
}


@pytest.mark.parametrize(("arrays", "message"), BAD.values(), ids=BAD)
def test_refuses_content_and_names_the_file(tmp_path, arrays, message):
    import relbo

    path = save(tmp_path, **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load(str(path))
    assert str(caught.value).startswith(str(path)) and str(caught.value).endswith(".")
    assert not hasattr(relbo, "UNPICKLED")


def npz_bytes(**arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def zip_bytes(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


GOOD = npz_bytes(**splits(64))
HUGE = npy_bytes(rows(6, 5)).replace(b"(6, 5)", b"(6, 5" + b"0" * 14 + b")", 1)

NOT_NPZ = {
    "empty": (b"", "is not an .npz file: .* got an empty file"),
    "text": (b"0 1 0 1\n", "is not an .npz file: expected the zip archive that np.savez writes, got something else"),
    "pickle": (pickle.dumps({"train": [0, 1]}), "is not an .npz file"),
    "npy": (npy_bytes(rows(2, 3)), "got a single .npy array; save the splits with np.savez"),
    "truncated": (GOOD[: len(GOOD) // 2], "got one that ends too early; write or fetch it again"),
    "damaged": (GOOD.replace(b"NUMPY", b"NUMPZ").replace(GOOD[60:90], bytes(30), 1), "is damaged"),
    "not arrays": (
        zip_bytes(train="0 1", valid="0 1", test="0 1"),
        "'train' is damaged .EOF: reading magic string",
    ),
    "parentheses": (
        zip_bytes(
            **{f"{name}.npy": b"\x93NUMPY\1\0" + (9000).to_bytes(2, "little") + b"(" * 9000 for name in splits()}
        ),
        "'train' is damaged",
    ),
    "huge": (zip_bytes(**{f"{name}.npy": HUGE for name in splits()}), "'train' is damaged"),
}


@pytest.mark.parametrize(("content", "message"), NOT_NPZ.values(), ids=NOT_NPZ)
def test_refuses_files_that_are_no_npz(tmp_path, content, message):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(str(path))
    assert str(caught.value).startswith(str(path))


def test_what_a_file_declares_is_compared_with_a_limit_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, train=np.zeros((1000, 1000), np.uint8), valid=rows(2, 3), test=rows(2, 3))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(files, "LARGEST", 900_000)
    monkeypatch.setattr(files, "_read", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(
        ValueError, match="must not be larger than 900,000 bytes when unpacked, the file declares 1,000,"
    ):
        load(str(path))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255), cut=st.booleans())
def test_damage_anywhere_is_a_clear_error_or_harmless(tmp_path, place, value, cut):
    """No damage gives a traceback of another kind, or other data than were saved."""
    path = tmp_path / "damaged.npz"
    path.write_bytes(GOOD[:place] if cut else GOOD[:place] + bytes([value]) + GOOD[place + 1 :])
    try:
        data = load(str(path))
    except ValueError as error:
        assert str(path) in str(error)
    else:
        for name, array in splits(64).items():
            np.testing.assert_array_equal(data.split(name), array)


def test_missing_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.npz does not exist; expected an \.npz file with arrays train"):
        load(str(tmp_path / "no.npz"))
    with pytest.raises(FileNotFoundError, match="is a directory; expected an .npz file"):
        load(str(tmp_path))


def test_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file.npz"
    files.write_npz(path, splits())
    before = path.read_bytes()

    def full_disk(stream, **arrays):
        stream.write(GOOD[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="no space left"):
        files.write_npz(path, {"train": rows(9, 9)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
