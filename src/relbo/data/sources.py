"""The named datasets: what each holds, how its file is read, where it comes from, and what its content must be."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relbo.data import checks, convert, files, fixed
from relbo.data.dataset import Dataset, Kind

Sizes = tuple[int, int, int]
"""Rows of train, valid and test."""

Splits = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """One published file, known by the hash of its content (after decompression, if it is published as `.gz`)."""

    key: str
    """What `Remote.convert` calls it."""
    file: str
    num_bytes: int
    sha256: str
    md5: str | None = None
    """Also checked where the publishers gave only this one."""


@dataclasses.dataclass(frozen=True)
class Remote:
    """Where a dataset is published."""

    base_urls: tuple[str, ...]
    """Pages with the same files, tried in this order."""
    files: tuple[RemoteFile, ...]
    convert: Callable[[dict[str, bytes]], convert.Arrays]


@dataclasses.dataclass(frozen=True)
class Source:
    """A named dataset. A name stands for one content: a file with any other is refused.

    Example:
        >>> sorted(relbo.data.SOURCES)
        ['binarized-mnist', 'digits', 'mnist', 'omniglot28']
    """

    name: str
    kind: Kind
    sizes: Sizes
    image_shape: tuple[int, int]
    about: str
    fingerprint: str
    file: str
    """Name of the `.npz` in the directories of `locate.places`."""
    assemble: Callable[[Path, Sizes], Splits]
    remote: Remote | None = None
    how_to_get: str = ""
    """For a set with no public page: how to put the file in place."""
    independent_nats: tuple[float, float, float] | None = None
    """Published values of `baseline.independent_nats`, to 0.001."""

    def read(self, path: Path) -> Dataset:
        """The dataset in a file, with its content checked against the fingerprint."""
        splits = self.assemble(path, self.sizes)
        dataset = Dataset(self.name, self.kind, **splits, image_shape=self.image_shape, recorded_fingerprint=None)
        if dataset.fingerprint != self.fingerprint:
            raise ValueError(
                f"{path} is not the {self.name} data: expected content with SHA-256 {self.fingerprint}, got "
                f"{dataset.fingerprint}; {self.advice()}."
            )
        return dataset

    def advice(self) -> str:
        """How to get the file, as half a sentence."""
        return f"get it with `relbo data fetch {self.name}`" if self.remote else self.how_to_get


def _binary(path: Path, sizes: Sizes) -> Splits:
    return files.read_splits(path)


def _mnist(path: Path, sizes: Sizes) -> Splits:
    """Validation is the last images of the training file, by convention."""
    arrays = _gray_arrays(path, "train_images", "test_images", sizes)
    train, valid = np.split(arrays["train_images"], [sizes[0]])
    return _with_fixed_evaluation(train, valid, arrays["test_images"])


def _omniglot(path: Path, sizes: Sizes) -> Splits:
    """The file goes by character, so validation is the last images of a fixed shuffle."""
    arrays = _gray_arrays(path, "train", "test", sizes)
    shuffled = arrays["train"][fixed.permutation(sizes[0] + sizes[1], (0,))]
    train, valid = np.split(shuffled, [sizes[0]])
    return _with_fixed_evaluation(train, valid, arrays["test"])


def _gray_arrays(path: Path, train: str, test: str, sizes: Sizes) -> Splits:
    arrays = files.read_npz(path, (train, test))
    for key, size in ((train, sizes[0] + sizes[1]), (test, sizes[2])):
        rows = checks.gray(arrays[key], f"{path}: {key!r}")
        if len(rows) != size:
            raise ValueError(f"{path}: {key!r} must hold {size} images, got {len(rows)}.")
    return arrays


def _with_fixed_evaluation(train: np.ndarray, valid: np.ndarray, test: np.ndarray) -> Splits:
    """Binarises valid and test once and for all, with seeds (0, 1) and (0, 2); train stays gray."""
    return {"train": train, "valid": fixed.binarise(valid, (0, 1)), "test": fixed.binarise(test, (0, 2))}


_LAROCHELLE = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
_MNIST_PAGES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

DIGITS = Source(
    name="digits",
    kind="binary",
    sizes=(1297, 250, 250),
    image_shape=(8, 8),
    about="UCI optical digits, level > 7 of 16; comes with the package",
    fingerprint="13b82d8b0d664684cd5f91e8061ed5b6a1798391b7c12b16179ff9afd44e0641",
    file="digits.npz",
    assemble=_binary,
    how_to_get="it comes with the package, so install relbo again",
)

BINARIZED_MNIST = Source(
    name="binarized-mnist",
    kind="binary",
    sizes=(50_000, 10_000, 10_000),
    image_shape=(28, 28),
    about="MNIST binarised once (Salakhutdinov & Murray 2008, files of Larochelle)",
    fingerprint="6cb3be327cf453ab882280b2472d2960a6b1d09f29f847140833c71833dedbee",
    file="binarized_mnist.npz",
    assemble=_binary,
    independent_nats=(205.987, 206.322, 205.793),
    remote=Remote(
        (_LAROCHELLE,),
        (
            RemoteFile(
                "train",
                "binarized_mnist_train.amat",
                78_400_000,
                "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
            ),
            RemoteFile(
                "valid",
                "binarized_mnist_valid.amat",
                15_680_000,
                "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
            ),
            RemoteFile(
                "test",
                "binarized_mnist_test.amat",
                15_680_000,
                "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
            ),
        ),
        convert.from_amat,
    ),
)

MNIST = Source(
    name="mnist",
    kind="gray",
    sizes=(50_000, 10_000, 10_000),
    image_shape=(28, 28),
    about="gray MNIST (LeCun, Cortes & Burges), train binarised afresh each epoch",
    fingerprint="1fc07e3ff418c0e371caf8ff0063a15eff2e79d78a470c0b04eae2913e775e83",
    file="mnist_gray.npz",
    assemble=_mnist,
    remote=Remote(
        _MNIST_PAGES,
        (
            RemoteFile(
                "train_images",
                "train-images-idx3-ubyte.gz",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "6bbc9ace898e44ae57da46a324031adb",
            ),
            RemoteFile(
                "train_labels",
                "train-labels-idx1-ubyte.gz",
                60_008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "a25bea736e30d166cdddb491f175f624",
            ),
            RemoteFile(
                "test_images",
                "t10k-images-idx3-ubyte.gz",
                7_840_016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "2646ac647ad5339dbf082846283269ea",
            ),
            RemoteFile(
                "test_labels",
                "t10k-labels-idx1-ubyte.gz",
                10_008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                "27ae3e4e09519cfbb04c329615203637",
            ),
        ),
        convert.from_idx,
    ),
)

OMNIGLOT28 = Source(
    name="omniglot28",
    kind="gray",
    sizes=(21_911, 2_434, 8_115),
    image_shape=(28, 28),
    about="Omniglot averaged down to 28x28; NOT the file of published OMNIGLOT likelihoods",
    fingerprint="f08bdbad1dc5e39185ba06e03c595fb747ccad0700436925f8f7bc7679a09a80",
    file="omniglot28_substitute.npz",
    assemble=_omniglot,
    how_to_get=(
        "no public page has it: it is a substitute for the OMNIGLOT file of Burda et al., to be put into one of the "
        "data directories by hand as omniglot28_substitute.npz with 'train' (24345, 784) and 'test' (8115, 784), uint8 "
        "ink levels 0..255, made from the 105x105 bitmaps of github.com/brendenlake/omniglot by exact area averaging "
        "to 28x28 and round(255 * ink), drawers 1-15 of each character in train and 16-20 in test, in the order of "
        "the characters"
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in (DIGITS, BINARIZED_MNIST, MNIST, OMNIGLOT28)}
