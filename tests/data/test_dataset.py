import hashlib

import numpy as np
import pytest

from relbo.data import Dataset, fixed, independent_nats


def rows(n, d, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, d), dtype=np.uint8)


def binary(**changes):
    splits = {"train": rows(6, 5, 0), "valid": rows(3, 5, 1), "test": rows(2, 5, 2)}
    return Dataset("small", "binary", **(splits | changes))


def test_holds_read_only_copies_of_what_was_given():
    train = rows(6, 5)
    data = binary(train=train)
    np.testing.assert_array_equal(data.split("train"), train)
    assert data.train.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        data.train[0, 0] = 1
    train[:] = 1 - train
    assert data.train[0, 0] != train[0, 0], "the data changed under their fingerprint"


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32, np.float64])
def test_any_numeric_dtype_gives_the_same_data(dtype):
    train = rows(6, 5)
    assert binary(train=train.astype(dtype)).fingerprint == binary(train=train).fingerprint
    assert binary(train=np.asfortranarray(train.astype(dtype))).fingerprint == binary(train=train).fingerprint


def test_fingerprint_is_the_documented_hash():
    data = binary()
    text = hashlib.sha256(b"binary")
    for split in ("train", "valid", "test"):
        array = data.split(split)
        text.update(f"\n{split} {array.shape[0]} {array.shape[1]}\n".encode() + array.tobytes())
    assert data.fingerprint == text.hexdigest()


def test_fingerprint_sees_every_difference():
    flipped = rows(2, 5, 2)
    flipped[1, 4] ^= 1
    prints = {
        binary().fingerprint,
        binary(test=flipped).fingerprint,
        binary(train=rows(3, 5, 1), valid=rows(6, 5, 0)).fingerprint,
        Dataset("small", "gray", rows(6, 5, 0), rows(3, 5, 1), rows(2, 5, 2)).fingerprint,
        Dataset("small", "binary", *(np.zeros((n, 5)) for n in (6, 3, 2))).fingerprint,
        Dataset("small", "binary", *(np.zeros((n, 5)) for n in (3, 6, 2))).fingerprint,
    }
    assert len(prints) == 6
    renamed = Dataset("other", "binary", rows(6, 5, 0), rows(3, 5, 1), rows(2, 5, 2))
    assert renamed.fingerprint == binary().fingerprint


def test_mean_is_that_of_the_training_split():
    data = binary()
    np.testing.assert_allclose(data.mean(), data.train.astype(float).mean(axis=0), rtol=1e-15)
    levels = np.array([[0, 255, 51], [255, 255, 0]], np.uint8)
    gray = Dataset("g", "gray", levels, rows(1, 3), rows(1, 3))
    np.testing.assert_allclose(gray.mean(), [0.5, 1.0, 0.1], rtol=1e-15)
    assert gray.mean().dtype == np.float64


BAD = {
    "value": (dict(valid=np.array([[0, 1, 0, 1, 0], [0, 0, 0, 2, 7]])), "'valid' .* got 2 at row 1, column 3"),
    "negative": (dict(test=-rows(1, 5).astype(int) - 1), "'test' must hold only 0 and 1, got -[12] at row 0, column 0"),
    "nan": (dict(train=np.array([[0, 1, 0, 1, np.nan]])), "'train' must hold only 0 and 1, got NaN at row 0, column 4"),
    "inf": (dict(train=np.array([[0, 1, np.inf, 1, 0]])), "got inf at row 0, column 2"),
    "half": (dict(train=np.full((1, 5), 0.5)), "got 0.5 at row 0, column 0"),
    "no rows": (dict(test=rows(0, 5)), "'test' is empty: expected at least one row"),
    "no pixels": (dict(test=rows(3, 0)), "'test' is empty: expected at least one row and one pixel"),
    "one axis": (dict(train=np.zeros(5)), r"'train' must have shape \(rows, pixels\), got \(5,\)"),
    "three axes": (dict(train=np.zeros((4, 2, 3))), r"got \(4, 2, 3\); reshape it to \(4, -1\)"),
    "no axis": (dict(train=np.array(1)), r"got \(\)"),
    "widths": (dict(valid=rows(3, 4)), "same number of pixels per row, got train 5, valid 4, test 5"),
    "text": (dict(train=np.array([["0", "1"]])), "must hold numbers or booleans, got dtype <U1"),
    "complex": (dict(train=np.zeros((1, 5), complex)), "must hold numbers or booleans, got dtype complex128"),
    "objects": (dict(train=np.zeros((1, 5), object)), "must hold numbers or booleans, got dtype object"),
    "picture": (dict(image_shape=(2, 3)), r"image_shape must multiply to 5 pixels, got \(2, 3\)"),
    "gray floats": (dict(kind="gray", train=np.zeros((1, 5))), "gray levels 0..255 as uint8, got dtype float64"),
    "gray test": (dict(kind="gray", test=np.full((1, 5), 9)), "'test' must hold only 0 and 1, got 9"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_refuses(changes, message):
    arguments = {"kind": "binary", "train": rows(6, 5), "valid": rows(3, 5), "test": rows(2, 5)} | changes
    with pytest.raises(ValueError, match=f"^small.*{message}"):
        Dataset("small", **arguments)


def test_refuses_an_unknown_kind():
    """Past the constructor, whose annotation is checked first while testing."""
    data = object.__new__(Dataset)
    object.__setattr__(data, "name", "small")
    object.__setattr__(data, "kind", "grey")
    with pytest.raises(ValueError, match="small: kind must be 'binary' or 'gray', got 'grey'"):
        data.__post_init__()


def test_refuses_an_unknown_split():
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        binary().split("dev")


@pytest.mark.parametrize("kind", ["binary", "gray"])
def test_independent_nats_is_the_sum_over_pixels(kind):
    train = rows(6, 5) * (1 if kind == "binary" else 100)
    data = Dataset("small", kind, train, rows(3, 5, 1), rows(2, 5, 2))
    share = train / (1 if kind == "binary" else 255)
    p = (share.sum(axis=0) + 1) / (6 + 2)
    for split, x in (("train", share), ("valid", data.valid), ("test", data.test)):
        each = [-sum(v * np.log(q) + (1 - v) * np.log(1 - q) for v, q in zip(row, p, strict=True)) for row in x]
        assert independent_nats(data)[split] == pytest.approx(np.mean(each), rel=1e-12)


def test_fixed_choices_never_change():
    """Literal values: a change here changes every named gray dataset."""
    assert fixed.permutation(8, (0,)).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    levels = np.full((2, 12), 128, np.uint8)
    assert np.packbits(fixed.binarise(levels, (0, 1))).tolist() == [13, 57, 123]
    assert sorted(fixed.permutation(1000, (3,))) == list(range(1000))


def test_binarise_follows_the_level():
    """Seeded; each of 256 shares of 4096 draws is within 6 standard errors, false-failure rate 256 * 2e-9 < 6e-7."""
    levels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4096, axis=1)
    share = fixed.binarise(levels, (0, 9)).mean(axis=1)
    p = np.arange(256) / 255
    assert share[0] == 0 and share[255] == 1
    assert np.all(np.abs(share - p) <= 6 * np.sqrt(p * (1 - p) / 4096))
