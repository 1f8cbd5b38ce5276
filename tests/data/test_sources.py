import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import relbo
from relbo.data import SOURCES, files, fixed, independent_nats, load, loading


def test_digits_come_with_the_package(no_data):
    data = load("digits")
    assert relbo.data.DEFAULT == "digits"
    assert (data.train.shape, data.valid.shape, data.test.shape) == ((1297, 64), (250, 64), (250, 64))
    assert (data.kind, data.image_shape) == ("binary", (8, 8))
    assert data.train.mean() == pytest.approx(0.323258, abs=1e-6)
    # a printed digit is mostly ink in the middle and blank in the outermost columns
    picture = data.mean().reshape(8, 8)
    assert picture[:, [0, 7]].max() < 0.05 and picture[:, 3:5].mean() > 0.5


def test_digits_match_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    images = (datasets.load_digits().data > 7).astype(np.uint8)[fixed.permutation(1797, (0,))]
    data = load("digits")
    np.testing.assert_array_equal(np.concatenate([data.train, data.valid, data.test]), images)


def test_digits_carry_their_attribution():
    folder = loading.present(SOURCES["digits"]).parent
    text = (folder / "digits.txt").read_text()
    assert "CC BY 4.0" in text and "Alpaydin" in text
    assert (folder / "digits.npz").stat().st_size < 20_000


def test_binarized_mnist(real_data):
    data = load("binarized-mnist", real_data("binarized_mnist.npz"))
    assert tuple(data.split(s).shape for s in ("train", "valid", "test")) == ((50000, 784), (10000, 784), (10000, 784))
    means = [data.split(s).mean() for s in ("train", "valid", "test")]
    np.testing.assert_allclose(means, (0.130562, 0.131127, 0.132512), atol=5e-7)
    nats = independent_nats(data)
    np.testing.assert_allclose(list(nats.values()), (205.987, 206.322, 205.793), atol=5e-4)


def test_binarized_mnist_as_a_user_file(real_data):
    path = real_data("binarized_mnist.npz") / "binarized_mnist.npz"
    assert load(str(path)).fingerprint == SOURCES["binarized-mnist"].fingerprint


@pytest.mark.parametrize(
    ("name", "train_mean", "test_mean"), [("mnist", 0.130660, 0.132515), ("omniglot28", 0.080758, 0.079782)]
)
def test_gray_sets(real_data, name, train_mean, test_mean):
    source = SOURCES[name]
    data = load(name, real_data(source.file))
    assert tuple(len(data.split(s)) for s in ("train", "valid", "test")) == source.sizes
    assert data.kind == "gray" and data.train.max() == 255 and data.image_shape == (28, 28)
    # all images of the original training file, some of them binarised: far less noise than 0.001 in so many pixels
    whole = (data.train.mean() / 255 * len(data.train) + data.valid.mean() * len(data.valid)) / sum(source.sizes[:2])
    assert whole == pytest.approx(train_mean, abs=2e-4)
    assert data.test.mean() == pytest.approx(test_mean, abs=5e-4)


def test_mnist_validation_is_the_end_of_the_training_file(real_data):
    place = real_data("mnist_gray.npz")
    data = load("mnist", place)
    gray = files.read_npz(place / "mnist_gray.npz", ["train_images"])["train_images"]
    np.testing.assert_array_equal(data.train, gray[:50_000])
    assert not (data.valid & (gray[50_000:] == 0)).any() and (data.valid[gray[50_000:] == 255] == 1).all()


def small(name, sizes, arrays, path):
    """The named source, with its reader, for a made-up file."""
    np.savez(path, **arrays)
    source = dataclasses.replace(SOURCES[name], sizes=sizes, image_shape=(2, 3))
    splits = source.assemble(path, sizes)
    fingerprint = relbo.data.Dataset(name, source.kind, **splits).fingerprint
    return dataclasses.replace(source, fingerprint=fingerprint)


def levels(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 6), dtype=np.uint8)


def test_small_mnist(tmp_path):
    path = tmp_path / "m.npz"
    images = levels(10)
    source = small("mnist", (7, 3, 2), {"train_images": images, "test_images": levels(2, 1)}, path)
    data = source.read(path)
    np.testing.assert_array_equal(data.train, images[:7])
    np.testing.assert_array_equal(data.valid, fixed.binarise(images[7:], (0, 1)))
    np.testing.assert_array_equal(data.test, fixed.binarise(levels(2, 1), (0, 2)))


def test_small_omniglot_is_shuffled_before_it_is_split(tmp_path):
    path = tmp_path / "o.npz"
    images = levels(10)
    source = small("omniglot28", (9, 1, 2), {"train": images, "test": levels(2, 1)}, path)
    order = fixed.permutation(10, (0,))
    np.testing.assert_array_equal(source.read(path).train, images[order[:9]])
    np.testing.assert_array_equal(source.read(path).valid, fixed.binarise(images[order[9:]], (0, 1)))


GRAY_BAD = {
    "other content": ({"train_images": levels(10, 5)}, "is not the mnist data: expected content with SHA-256 .* fetch"),
    "too few": ({"train_images": levels(9)}, "'train_images' must hold 10 images, got 9"),
    "floats": ({"test_images": levels(2) / 255}, "'test_images' must hold gray levels 0..255 as uint8, got dtype"),
    "axes": ({"train_images": levels(10).reshape(10, 2, 3)}, r"'train_images' must have shape \(rows, pixels\)"),
}


@pytest.mark.parametrize(("changes", "message"), GRAY_BAD.values(), ids=GRAY_BAD)
def test_refuses_a_wrong_file_under_a_known_name(tmp_path, changes, message):
    path = tmp_path / "m.npz"
    arrays = {"train_images": levels(10), "test_images": levels(2, 1)}
    source = small("mnist", (7, 3, 2), arrays, path)
    np.savez(path, **(arrays | changes))
    with pytest.raises(ValueError, match=message) as caught:
        source.read(path)
    assert str(caught.value).startswith(str(path))


def test_binarized_mnist_with_other_content_is_refused(tmp_path, no_data):
    blank = {"train": np.zeros((3, 784)), "valid": np.zeros((2, 784)), "test": np.ones((2, 784))}
    np.savez(tmp_path / "binarized_mnist.npz", **blank)
    with pytest.raises(ValueError, match=r"binarized_mnist\.npz is not the binarized-mnist data: .*`relbo data fetch"):
        load("binarized-mnist", tmp_path)


def test_search_order(tmp_path, no_data, monkeypatch):
    """The variable, then the cache; an explicit directory binds: nothing else is looked at."""
    explicit, variable = tmp_path / "explicit", tmp_path / "variable"
    for place in (explicit, variable, no_data):
        place.mkdir()
    monkeypatch.setenv("RELBO_DATA", str(variable))
    source = SOURCES["mnist"]
    (no_data / source.file).write_bytes(b"")
    assert loading.present(source) == no_data / source.file
    (variable / source.file).write_bytes(b"")
    assert loading.present(source) == variable / source.file
    assert loading.present(source, explicit) is None
    (explicit / source.file).write_bytes(b"")
    assert loading.present(source, explicit) == explicit / source.file


@pytest.mark.parametrize("name", ["binarized-mnist", "mnist", "omniglot28"])
def test_a_missing_file_names_all_places_and_the_remedy(tmp_path, no_data, monkeypatch, name):
    monkeypatch.setenv("RELBO_DATA", str(tmp_path / "variable"))
    for explicit, searched in ((None, (tmp_path / "variable", no_data)), (str(tmp_path), (tmp_path,))):
        with pytest.raises(FileNotFoundError) as caught:
            load(name, explicit)
        message = str(caught.value)
        for part in (SOURCES[name].file, *searched, "--data-dir"):
            assert str(part) in message
        assert (f"`relbo data fetch {name}`" if name != "omniglot28" else "no public page has it") in message


@pytest.mark.parametrize("name", ["digits", "mnist", "mine.npz"])
def test_an_explicit_directory_must_be_there(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="the data directory .*nowhere does not exist"):
        load(name, tmp_path / "nowhere")


def test_an_unknown_name_gets_the_nearest(no_data):
    with pytest.raises(ValueError, match="one of digits, binarized-mnist, .* got 'binarized_mnist'; did you mean"):
        load("binarized_mnist")
    with pytest.raises(ValueError, match="got 'wine'[.]"):
        load("wine")


def test_importing_reads_no_data():
    """An audit hook sees every file opened while relbo is imported."""
    program = (
        "import sys\n"
        "sys.addaudithook(lambda event, args: event == 'open' and str(args[0]).endswith(('.npz', '.npy'))"
        " and sys.exit(f'opened {args[0]}'))\n"
        "import relbo\n"
        "assert 'pooch' not in sys.modules, 'pooch is slow to import'\n"
        "print(relbo.data.DEFAULT)\n"
        "relbo.data.load('digits')\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "digits\n", result.stderr
    assert "opened" in result.stderr and "digits.npz" in result.stderr, "the hook sees nothing"
