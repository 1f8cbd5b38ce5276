"""Files that are written whole or not at all, and one sentence where they cannot be."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".part"
"""How the names of files end that are still being written; they begin with a dot."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` once it is whole and on disk; else `path` stays as it was.

    Whoever looks sees the old file or the new one. Nothing else is left behind, unless the process is killed.

    Raises:
        OSError: one sentence with the path, for instance that the disk is full.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with naming(path), part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text in one piece, as UTF-8."""
    with replacing(path) as stream:
        stream.write(text.encode())


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives trouble with the disk the path that it is about: a failed write does not know its file."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error


def refuse_unwritable(path: Path) -> None:
    """Raises `OSError` if a file of that name cannot be made, without making anything.

    Args:
        path: the file that is going to be written, perhaps with folders that do not exist yet.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be the name of a file, got a folder.")
    place = path.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {place} is a file, not a folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: there is no permission to write in {place}.")
