"""Made-up datasets on a web server of their own, for the tests of fetching."""

import dataclasses
import gzip
import hashlib
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from relbo.data import SOURCES, Dataset, fixed
from relbo.data.sources import RemoteFile


@contextmanager
def server(files, *, cut=(), status=200):
    """Serves name -> bytes on loopback; files in `cut` stop half way. Yields (base URL, list of names asked for)."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rsplit("/", 1)[-1]
            asked.append(name)
            content = files.get(name)
            self.send_response(404 if content is None else status)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write((content or b"")[: len(content) // 2 if name in cut else None])

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}/pages/", asked
        finally:
            http.shutdown()
            thread.join()


def remote(source, contents):
    """The source with its remote files replaced: contents go by key, uncompressed."""
    old = {file.key: file for file in source.remote.files}
    new = [
        RemoteFile(
            key,
            old[key].file,
            len(content),
            hashlib.sha256(content).hexdigest(),
            hashlib.md5(content).hexdigest() if old[key].md5 else None,
        )
        for key, content in contents.items()
    ]
    return dataclasses.replace(source, remote=dataclasses.replace(source.remote, files=tuple(new)))


def small_binarized(width=12):
    """(source, what its page serves, splits)."""
    rng = np.random.default_rng(0)
    splits = {
        name: rng.integers(0, 2, (n, width), dtype=np.uint8) for name, n in (("train", 6), ("valid", 3), ("test", 2))
    }
    text = {name: "".join(" ".join(map(str, row)) + "\n" for row in rows).encode() for name, rows in splits.items()}
    source = remote(SOURCES["binarized-mnist"], text)
    source = dataclasses.replace(
        source,
        image_shape=(3, width // 3),
        sizes=(6, 3, 2),
        fingerprint=Dataset("small", "binary", **splits).fingerprint,
        independent_nats=None,
    )
    return source, {f"binarized_mnist_{name}.amat": content for name, content in text.items()}, splits


def idx(array):
    """An array as an idx file."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def small_mnist():
    """(source, what its page serves, arrays)."""
    rng = np.random.default_rng(1)
    arrays = {
        "train_images": rng.integers(0, 256, (10, 2, 3), dtype=np.uint8),
        "train_labels": rng.integers(0, 10, 10, dtype=np.uint8),
        "test_images": rng.integers(0, 256, (4, 2, 3), dtype=np.uint8),
        "test_labels": rng.integers(0, 10, 4, dtype=np.uint8),
    }
    source = remote(SOURCES["mnist"], {key: idx(array) for key, array in arrays.items()})
    images = arrays["train_images"].reshape(10, 6)
    expected = Dataset(
        "small",
        "gray",
        images[:7],
        fixed.binarise(images[7:], (0, 1)),
        fixed.binarise(arrays["test_images"].reshape(4, 6), (0, 2)),
    )
    source = dataclasses.replace(source, image_shape=(2, 3), sizes=(7, 3, 4), fingerprint=expected.fingerprint)
    return source, {file.file: gzip.compress(idx(arrays[file.key])) for file in source.remote.files}, arrays
