import dataclasses
import gzip
import hashlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import data_pages as pages
import numpy as np
import pytest

from relbo.data import SOURCES, convert, fetch, files, loading
from relbo.data.fetching import fetch_source


@pytest.fixture(autouse=True)
def direct(monkeypatch, no_data):
    """No proxy stands between the tests and loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_binarized_mnist_from_text(tmp_path):
    source, served, splits = pages.small_binarized()
    lines = []
    with pages.server(served) as (url, asked):
        path = fetch_source(source, tmp_path, base_urls=[url], report=lines.append)
        assert path == tmp_path / "binarized_mnist.npz"
        assert lines[0] == f"downloading {url}binarized_mnist_train.amat" and lines[-1] == f"wrote {path}"
        assert list(tmp_path.iterdir()) == [path]
        data = loading.load_source(source, tmp_path)
        for name, rows in splits.items():
            np.testing.assert_array_equal(data.split(name), rows)

        asked.clear()
        fetch_source(source, tmp_path, base_urls=[url])
        assert not asked, "a good copy is not downloaded again"
        fetch_source(source, tmp_path, base_urls=[url.rstrip("/")], force=True)
        assert len(asked) == 3
        path.write_bytes(path.read_bytes()[:100])
        fetch_source(source, tmp_path, base_urls=[url])
        assert loading.load_source(source, tmp_path).fingerprint == source.fingerprint, "a damaged copy is replaced"


@pytest.mark.parametrize("compressed", [True, False], ids=["gz", "decompressed on the way"])
def test_mnist_from_idx(tmp_path, compressed):
    source, served, arrays = pages.small_mnist()
    if not compressed:
        served = {name: gzip.decompress(content) for name, content in served.items()}
    with pages.server(served) as (url, _):
        path = fetch_source(source, tmp_path, base_urls=[url])
    assert loading.load_source(source, tmp_path).train.shape == (7, 6)
    stored = files.read_npz(path, list(arrays))
    for key, array in arrays.items():
        np.testing.assert_array_equal(stored[key], array.reshape(stored[key].shape))


def test_goes_to_the_variable_or_else_the_cache(tmp_path, no_data, monkeypatch):
    source, served, _ = pages.small_mnist()
    with pages.server(served) as (url, _):
        assert fetch_source(source, base_urls=[url]) == no_data / source.file
        monkeypatch.setenv("RELBO_DATA", str(tmp_path / "a" / "b"))
        assert fetch_source(source, base_urls=[url]) == tmp_path / "a" / "b" / source.file


def test_the_next_page_is_tried(tmp_path):
    source, served, _ = pages.small_mnist()
    wrong = served | {"t10k-images-idx3-ubyte.gz": gzip.compress(b"other")}
    with pages.server(wrong) as (bad, _), pages.server(served) as (good, _):
        fetch_source(source, tmp_path, base_urls=[bad, good])
    assert loading.load_source(source, tmp_path).fingerprint == source.fingerprint


def swap(content):
    return content.replace(b"0 1", b"1 0", 1)


AMAT = "binarized_mnist_valid.amat"
IDX = "t10k-labels-idx1-ubyte.gz"
BROKEN = {
    "wrong hash": (
        pages.small_binarized,
        lambda s: s | {AMAT: swap(s[AMAT])},
        {},
        "SHA-256 [0-9a-f]{64}, got [0-9a-f]",
    ),
    "too short": (pages.small_binarized, lambda s: s | {AMAT: s[AMAT][:-24]}, {}, "expected 72 bytes, got 48"),
    "too long": (pages.small_binarized, lambda s: s | {AMAT: s[AMAT] * 2}, {}, "expected 72 bytes, got more than 72"),
    "absent": (pages.small_binarized, lambda s: {k: v for k, v in s.items() if k != AMAT}, {}, "404"),
    "server error": (pages.small_mnist, lambda s: s, {"status": 500}, "500"),
    "cut off": (pages.small_binarized, lambda s: s, {"cut": (AMAT,)}, "IncompleteRead|broken"),
    "damaged gzip": (pages.small_mnist, lambda s: s | {IDX: s[IDX][:-9]}, {}, "damaged compression"),
    "error page": (pages.small_mnist, lambda s: s | {IDX: b"<html>moved</html>"}, {}, "expected 12 bytes, got"),
}


@pytest.mark.parametrize(("make", "spoil", "how", "message"), BROKEN.values(), ids=BROKEN)
def test_a_bad_download_leaves_nothing(tmp_path, make, spoil, how, message):
    source, served, _ = make()
    with pages.server(spoil(served), **how) as (url, _), pytest.raises(OSError, match=message) as caught:
        fetch_source(source, tmp_path, base_urls=[url])
    assert re.match(f"{source.name} could not be fetched, no page had a good .*: {url}", str(caught.value))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        loading.load_source(source, tmp_path)


def test_a_bad_download_keeps_the_good_copy(tmp_path):
    source, served, _ = pages.small_binarized()
    with pages.server(served) as (url, _):
        path = fetch_source(source, tmp_path, base_urls=[url])
    before = path.read_bytes()
    with pages.server({}) as (url, _), pytest.raises(OSError, match="404"):
        fetch_source(source, tmp_path, base_urls=[url], force=True)
    assert path.read_bytes() == before


def test_md5_is_checked_too(tmp_path):
    source, served, _ = pages.small_mnist()
    changed = [dataclasses.replace(file, md5="0" * 32) for file in source.remote.files]
    source = dataclasses.replace(source, remote=dataclasses.replace(source.remote, files=tuple(changed)))
    with pages.server(served) as (url, _), pytest.raises(OSError, match="expected content with MD5 0{32}, got"):
        fetch_source(source, tmp_path, base_urls=[url])


def test_content_that_would_not_load_is_not_put_in_place(tmp_path):
    """Good hashes of the parts, another whole: a mistake in a conversion would look like this."""
    source, served, _ = pages.small_binarized()
    source = dataclasses.replace(source, fingerprint="0" * 64)
    with pages.server(served) as (url, _), pytest.raises(ValueError, match="is not the binarized-mnist data"):
        fetch_source(source, tmp_path, base_urls=[url])
    assert list(tmp_path.iterdir()) == []


def test_out_of_reach(tmp_path):
    with pages.server({}) as (url, _):
        pass
    with pytest.raises(OSError, match=r"mnist could not be fetched, no page had a good train-images.*127\.0\.0\.1"):
        fetch("mnist", tmp_path, base_urls=[url])


def test_killed_half_way_leaves_nothing_that_loads(tmp_path):
    """A server that never finishes, a process that is killed while it waits."""
    program = (
        "import socket, sys, threading\n"
        "from pathlib import Path\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "def serve():\n"
        "    connection, _ = listener.accept()\n"
        "    connection.recv(4096)\n"
        "    connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 78400000\\r\\n\\r\\n' + b'0 1 ' * 100000)\n"
        "    print('sent', flush=True)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
        "from relbo.data import fetch\n"
        "url = f'http://127.0.0.1:{listener.getsockname()[1]}/'\n"
        "fetch('binarized-mnist', Path(sys.argv[1]), base_urls=[url])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "sent\n"
        deadline = time.monotonic() + 10
        while not any(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert list(tmp_path.iterdir()), "it was killed too early to prove anything"
    with pytest.raises(FileNotFoundError):
        loading.load("binarized-mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("omniglot28", r"omniglot28 cannot be fetched: no public page has it.*by hand as omniglot28_substitute\.npz"),
        ("digits", "digits cannot be fetched: it comes with the package"),
        ("cifar", "name must be one of digits, binarized-mnist, mnist, omniglot28, got 'cifar'"),
    ],
)
def test_nothing_to_fetch(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        fetch(name, tmp_path)


AMAT_BAD = [b"", b"0 1", b"0 1\n0\n", b"0 2\n", b"0,1\n", b"0 1 \n", b"01\n", b"\n", b"0 1\r\n", b"a b\n"]


@pytest.mark.parametrize("content", AMAT_BAD)
def test_amat_refuses(content):
    with pytest.raises(ValueError, match="^train must"):
        convert.parse_amat(content, "train")


IDX_BAD = [
    b"",
    b"\0\0\x08",
    b"\0\0\x0d\1\0\0\0\0",
    b"\0\0\x08\3\0\0\0\1",
    b"\0\0\x08\1\0\0\0\2x",
    b"\0\0\x08\1\0\0\0\1xy",
]


@pytest.mark.parametrize("content", IDX_BAD)
def test_idx_refuses(content):
    with pytest.raises(ValueError, match="^labels must"):
        convert.parse_idx(content, "labels")


def test_recorded_hashes_of_mnist(real_data):
    """The gray file, written back as idx, has the MD5s that loaders publish and the SHA-256s recorded here."""
    remote = SOURCES["mnist"].remote
    arrays = files.read_npz(real_data("mnist_gray.npz") / "mnist_gray.npz", [file.key for file in remote.files])
    for file in remote.files:
        array = arrays[file.key]
        content = pages.idx(array.reshape(-1, 28, 28) if array.ndim == 2 else array)
        assert len(content) == file.num_bytes
        assert hashlib.md5(content).hexdigest() == file.md5
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_recorded_hashes_of_binarized_mnist(real_data):
    """The bits, written back as text, are Larochelle's files, and convert to what is recorded."""
    source = SOURCES["binarized-mnist"]
    data = source.read(Path(real_data(source.file)) / source.file)
    for file in source.remote.files:
        rows = data.split(file.key)
        text = np.full((len(rows), 2 * 784), ord(" "), np.uint8)
        text[:, 0::2] = rows + ord("0")
        text[:, -1] = ord("\n")
        content = text.tobytes()
        assert len(content) == file.num_bytes
        assert hashlib.sha256(content).hexdigest() == file.sha256
        np.testing.assert_array_equal(convert.parse_amat(content, file.key), rows)
