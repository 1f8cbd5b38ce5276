"""Downloading the named datasets: every file is checked before anything is put where `load` looks."""

import contextlib
import gzip
import hashlib
import logging
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from relbo._check import did_you_mean
from relbo.data import files, locate
from relbo.data.sources import SOURCES, RemoteFile, Source

TIMEOUT = 30
"""Seconds without an answer after which a page counts as out of reach."""


def fetch(
    name: str,
    data_dir: Path | str | None = None,
    *,
    base_urls: Sequence[str] | None = None,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Downloads a named dataset, checks it and writes it as one `.npz` file.

    Args:
        name: `"binarized-mnist"` or `"mnist"`; the others have nothing to fetch.
        data_dir: where to put it; default: `$RELBO_DATA`, or else the per-user cache.
        base_urls: other pages with the same files, tried in order; the hashes stay the same.
        force: download even if a good copy is there.
        report: gets one line for each thing done.

    Returns:
        The path of the file.

    Raises:
        ValueError: the name is unknown or the dataset has no public page.
        OSError: no page had a good copy, or the directory cannot be written.

    Example:
        >>> relbo.data.fetch("digits")
        Traceback (most recent call last):
        ValueError: ...
    """
    if name not in SOURCES:
        raise ValueError(f"fetch: name must be one of {', '.join(SOURCES)}, got {name!r}{did_you_mean(name, SOURCES)}")
    return fetch_source(SOURCES[name], data_dir, base_urls=base_urls, force=force, report=report)


def fetch_source(
    source: Source,
    data_dir: Path | str | None = None,
    *,
    base_urls: Sequence[str] | None = None,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """`fetch` for a source that need not be in the table."""
    if source.remote is None:
        raise ValueError(f"{source.name} cannot be fetched: {source.how_to_get}.")
    directory = locate.places(data_dir)[0]
    path = directory / source.file
    if not force and _is_good(source, path):
        report(f"{path} is there and good")
        return path

    directory.mkdir(parents=True, exist_ok=True)
    pages = tuple(base_urls) if base_urls is not None else source.remote.base_urls
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as work:
        contents = {file.key: _download(source, file, pages, Path(work), report) for file in source.remote.files}
        written = Path(work) / source.file
        files.write_npz(written, source.remote.convert(contents))
        source.read(written)  # nothing leaves the work directory that `load` would refuse
        written.replace(path)
    report(f"wrote {path}")
    return path


def _is_good(source: Source, path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        source.read(path)
    except ValueError:  # a damaged copy is what a new download mends
        return False
    return True


def _download(
    source: Source, file: RemoteFile, pages: Sequence[str], work: Path, report: Callable[[str], None]
) -> bytes:
    """The content of one file, from the first page that has a good copy."""
    import pooch
    from requests.exceptions import RequestException

    failures = []
    for page in pages:
        url = f"{page.rstrip('/')}/{file.file}"
        report(f"downloading {url}")
        try:
            with _quiet():
                downloader = pooch.HTTPDownloader(timeout=TIMEOUT, chunk_size=1 << 16)
                raw = pooch.retrieve(url, known_hash=None, fname=file.file, path=work, downloader=downloader)
            content = _content(Path(raw), file)
            Path(raw).unlink()
            return content
        except (RequestException, ValueError) as error:
            (work / file.file).unlink(missing_ok=True)
            failures.append(f"{url}: {' '.join(str(error).split())}")
    raise OSError(f"{source.name} could not be fetched, no page had a good {file.file}: {'; '.join(failures)}.")


def _content(path: Path, file: RemoteFile) -> bytes:
    """The file's bytes, decompressed, after their hash was checked; reads no further than they should go."""
    with path.open("rb") as stream:
        # some servers undo the compression on the way
        is_gzip = file.file.endswith(".gz") and stream.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_gzip else path.open("rb") as opened:
            content = opened.read(file.num_bytes + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"damaged compression ({error})") from error
    if len(content) != file.num_bytes:
        got = f"more than {file.num_bytes}" if len(content) > file.num_bytes else len(content)
        raise ValueError(f"expected {file.num_bytes} bytes, got {got}")
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != file.sha256:
        raise ValueError(f"expected content with SHA-256 {file.sha256}, got {sha256}")
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if file.md5 not in (None, md5):
        raise ValueError(f"expected content with MD5 {file.md5}, got {md5}")
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps pooch from printing each download's hash: we check the content's instead."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
