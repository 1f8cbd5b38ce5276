import json
import shutil

import numpy as np
import pytest

from relbo.data import Dataset, RowFiles, check_rows, convert_rows, independent_nats, load, row_directory, write_rows
from relbo.data.dataset import SPLITS
from relbo.train.sealed import sealed


def bits(n, d, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (n, d), dtype=np.uint8)


def splits(d=12):
    return {"train": bits(30, d, 0), "valid": bits(7, d, 1), "test": bits(5, d, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A good directory of 4, 1 and 1 files; look, do not touch."""
    place = tmp_path_factory.mktemp("rows") / "mine"
    write_rows(place, name="mine", **splits(), image_shape=(3, 4), rows_per_file=8)
    return place


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(folder, tmp_path / "mine")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("d", [1, 8, 13])
def test_a_directory_is_the_same_data_as_an_npz(tmp_path, d, packed):
    np.savez(tmp_path / "mine.npz", **splits(d))
    array = load(tmp_path / "mine.npz")
    made = convert_rows(tmp_path / "mine.npz", tmp_path / "rows", rows_per_file=8, packed=packed)
    for data in (made, load(tmp_path / "rows"), load(str(tmp_path / "rows"))):
        assert repr(data) == repr(array) and data.fingerprint == array.fingerprint
        np.testing.assert_array_equal(data.mean(), array.mean())
        assert independent_nats(data) == independent_nats(array)
        for split in SPLITS:
            assert isinstance(data.split(split), RowFiles) and data.split(split).packed == packed
            np.testing.assert_array_equal(data.split(split), array.split(split))
    assert sorted(file.name for file in (tmp_path / "rows").glob("train*")) == [f"train-0000{i}.npy" for i in range(4)]
    assert check_rows(tmp_path / "rows").fingerprint == array.fingerprint


def test_files_are_plain_npy(folder):
    stored = np.concatenate([np.load(file) for file in sorted(folder.glob("train-*.npy"))])
    np.testing.assert_array_equal(np.unpackbits(stored, axis=1)[:, :12], splits()["train"])
    assert load(folder).image_shape == (3, 4)


def test_gray_levels_are_not_packed(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (30, 12), dtype=np.uint8)
    array = Dataset("g", "gray", levels, splits()["valid"], splits()["test"])
    data = write_rows(tmp_path / "g", name="g", kind="gray", **(splits() | {"train": levels}), rows_per_file=20)
    assert data.fingerprint == array.fingerprint and data.kind == "gray"
    assert [data.split(split).packed for split in SPLITS] == [False, True, True]
    np.testing.assert_array_equal(data.mean(), array.mean())
    assert check_rows(tmp_path / "g").fingerprint == array.fingerprint
    again = convert_rows(tmp_path / "g", tmp_path / "h", rows_per_file=7)
    assert again.fingerprint == array.fingerprint and again.name == "g"


def test_opening_reads_no_rows(folder, monkeypatch):
    monkeypatch.setattr(row_directory.RowFiles, "stored_blocks", lambda *_: pytest.fail("all rows were read"))
    data = load(folder)
    data.mean(), repr(data), data.fingerprint, data.train[3:5]
    assert not any(file._mapped for file in data.train._files)


def edit(folder, change):
    """Changes the description and seals it again, as a program would that knows how."""
    path = folder / "dataset.json"
    value = json.loads(path.read_text())
    del value["sha256"]
    change(value)
    path.write_text(json.dumps(sealed(value)))


def swap(folder, a, b):
    (folder / a).rename(folder / "other")
    (folder / b).rename(folder / a)
    (folder / "other").rename(folder / b)


def save(folder, file, array):
    np.save(folder / file, array)


def cut(folder, file, keep):
    (folder / file).write_bytes((folder / file).read_bytes()[:keep])


SEEN_AT_THE_START = {
    "missing": (lambda f: (f / "train-00002.npy").unlink(), "train-00002.npy is missing: dataset.json names it"),
    "header cut": (lambda f: cut(f, "valid-00000.npy", 40), "valid-00000.npy begins otherwise than when"),
    "empty": (lambda f: cut(f, "test-00000.npy", 0), "test-00000.npy begins otherwise"),
    "dtype": (lambda f: save(f, "train-00001.npy", bits(8, 2).astype(float)), "train-00001.npy begins otherwise"),
    "swapped": (lambda f: swap(f, "train-00000.npy", "train-00001.npy"), "00.npy has the content of train-00001.npy"),
    "no JSON": (lambda f: cut(f, "dataset.json", 100), "dataset.json: expected the description of a dataset, got"),
    "no seal": (lambda f: (f / "dataset.json").write_text("{}"), "dataset.json has no content hash"),
    "edited": (
        lambda f: (f / "dataset.json").write_text((f / "dataset.json").read_text().replace("mine", "yours")),
        "dataset.json is damaged or was changed",
    ),
    "format": (lambda f: edit(f, lambda v: v.update(format=2)), "dataset.json must have format 1, got 2"),
    "no splits": (lambda f: edit(f, lambda v: v.pop("splits")), "must describe a dataset, got one with KeyError"),
    "no files": (lambda f: edit(f, lambda v: v["splits"]["train"].update(files=[])), "must describe a dataset"),
    "sums": (lambda f: edit(f, lambda v: v["splits"]["test"].update(column_sums=[1])), "1 column sums of 12"),
    "kind": (lambda f: edit(f, lambda v: v.update(kind="blue")), "must describe a dataset"),
    "outside": (
        lambda f: edit(f, lambda v: v["splits"]["test"]["files"][0].update(file="../test.npy")),
        "files outside of the directory",
    ),
    "width": (lambda f: edit(f, lambda v: v["splits"]["test"].update(packed=False)), "its files have shape .5, 2."),
    "picture": (lambda f: edit(f, lambda v: v.update(image_shape=[5, 5])), "image_shape must multiply to 12 pixels"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), SEEN_AT_THE_START.values(), ids=SEEN_AT_THE_START)
@pytest.mark.parametrize("read", [load, check_rows])
def test_a_start_refuses(copy, damage, message, read):
    damage(copy)
    before = sorted(copy.iterdir())
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        read(copy)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert sorted(copy.iterdir()) == before


def test_a_start_sees_files_of_other_lengths(tmp_path):
    """Behind the first bytes, which it compares."""
    rows = bits(6000, 12)
    write_rows(tmp_path / "mine", name="mine", **(splits() | {"train": rows}))
    file = tmp_path / "mine" / "train-00000.npy"
    good = file.read_bytes()
    for content, message in (
        (good[:-1], "is truncated: expected 12128 bytes, got 12127"),
        (good + b"0", "is too long"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "mine")
    file.write_bytes(good)
    np.testing.assert_array_equal(load(tmp_path / "mine").train, rows)


def test_check_sees_a_changed_bit_that_a_start_does_not(tmp_path):
    write_rows(tmp_path / "mine", name="mine", **(splits() | {"train": bits(6000, 12)}))
    file = tmp_path / "mine" / "train-00000.npy"
    content = bytearray(file.read_bytes())
    content[9000] ^= 0x80
    file.write_bytes(content)
    load(tmp_path / "mine")
    with pytest.raises(ValueError, match="train-00000.npy was changed or damaged after it was written; copy it again"):
        check_rows(tmp_path / "mine")


def with_new_hashes(folder, file):
    def change(value):
        for split in value["splits"].values():
            for record in split["files"]:
                if record["file"] == file:
                    record["sha256"] = row_directory.file_sha256(folder / file)
                    record["start_sha256"] = row_directory.start_sha256(folder / file)

    edit(folder, change)


FORGED = {
    "values": (False, 9, "split 'train' must hold only 0 and 1, got 9 at row 8, column 0"),
    "sums": (False, None, "split 'train' has other column sums than dataset.json says"),
    "padding": (True, 0x0F, "split 'train' must have zeros in the bits after pixel 12 of a row, got ones"),
}


@pytest.mark.parametrize(("packed", "value", "message"), FORGED.values(), ids=FORGED)
def test_check_sees_wrong_content_under_right_hashes(tmp_path, packed, value, message):
    write_rows(tmp_path / "mine", name="mine", **splits(), rows_per_file=8, packed=packed)
    file = tmp_path / "mine" / "train-00001.npy"
    content = bytearray(file.read_bytes())
    place = 129 if packed else 128
    content[place] = content[place] ^ 1 if value is None else value
    file.write_bytes(content)
    with_new_hashes(tmp_path / "mine", file.name)
    load(tmp_path / "mine")
    with pytest.raises(ValueError, match=message):
        check_rows(tmp_path / "mine")


def test_check_sees_another_order_of_rows_under_right_hashes(copy):
    """Column sums are the same then, the fingerprint is not."""

    def change(value):
        value["splits"]["train"]["files"][:2] = value["splits"]["train"]["files"][1::-1]

    edit(copy, change)
    with pytest.raises(ValueError, match="must have fingerprint [0-9a-f]{12}, as dataset.json says, got"):
        check_rows(copy)


def test_a_folder_without_description_is_not_data(copy):
    (copy / "dataset.json").unlink()
    with pytest.raises(FileNotFoundError, match="is a directory; expected an .npz file .* or a folder with dataset.js"):
        load(copy)
    with pytest.raises(FileNotFoundError, match="expected the file .*dataset.json with the description of a dataset"):
        check_rows(copy)
