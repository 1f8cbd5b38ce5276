"""Files that are written whole or not at all, and one sentence where they cannot be."""

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".part"
"""How the names of files end that are still being written; they begin with a dot."""
STREAMS = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}
"""Other names of two of this process's streams."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` once it is whole and on disk; else `path` stays as it was.

    Whoever looks sees the old file or the new one. Nothing else is left behind, unless the process is killed. Of a link
    the file is replaced that it leads to. A device or a pipe is no content to be replaced, and is written to.

    Raises:
        OSError: one sentence with the path, for instance that the disk is full.
    """
    if _is_no_file(path):
        print(end="", flush=True)  # what was printed before comes before
        number = _own_stream(path)
        with naming(path), open(path if number is None else number, "wb", closefd=number is None) as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name[:50]}.{os.getpid()}{PART}")  # of a name that is as long as names can be
    with naming(path):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if target.exists():
                shutil.copymode(target, part)  # what others may not read stays so
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)  # which fails where nothing can be written


def _is_no_file(path: Path) -> bool:
    """Whether a device, a pipe or a socket stands there, or one of this process's own streams."""
    return _own_stream(path) is not None or path.exists() and not path.is_file() and not path.is_dir()


def _own_stream(path: Path) -> int | None:
    """The number of a stream of this process, such as `/dev/stdout` or `/dev/fd/3`.

    Opened by name, it would be written from the beginning of the file that a shell has led it to.
    """
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", STREAMS.get(str(path), str(path)))
    return int(found[1]) if found else None


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
    """Raises `OSError` if nothing of that name can be written; leaves nothing.

    Args:
        path: the file that is going to be written, perhaps with folders that do not exist yet.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be the name of a file, got a folder.")
    if _is_no_file(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} cannot be written: there is no permission.")
        return
    place = Path(os.path.realpath(path)).parent
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {place} is a file, not a folder.")
    with naming(path), tempfile.TemporaryFile(dir=place):  # a permission is no promise: see /proc, or a full quota
        pass


def command(*words: Path | str) -> str:
    """A line of the command line that can be pasted as it is; a path that begins with `-` is no option in it."""
    plain = [f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words]
    return shlex.join(["relbo", *plain])
