"""Compiled programs that are kept in a directory, by processes that share it and may be killed at any moment.

JAX's own cache writes an entry where it will be read: a second process may see half of it, and what a killed one leaves
is broken for good. Here an entry is written beside its place and moved into it, and begins with its own hash. One that
is broken all the same, by a disk or by a machine that stopped, is as good as none: its program is compiled, and it is
replaced. A killed process may leave a hidden file behind, which nobody reads.
"""

import contextlib
import hashlib
import uuid
import warnings
from pathlib import Path

from relbo._disk import PART

DIGEST = hashlib.sha256().digest_size


class WholeEntries:
    """A cache as JAX asks for it: `get` and `put`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory  # under this name JAX says where it is
        self._is_kept = True

    def _place(self, key: str) -> Path:
        return self._path / f"{key}-whole"  # not the name of JAX's own entries, which have no hash

    def get(self, key: str) -> bytes | None:
        """The entry, or None if there is none that is whole."""
        try:
            entry = self._place(key).read_bytes()
        except FileNotFoundError:
            return None
        value = entry[DIGEST:]
        return value if hashlib.sha256(value).digest() == entry[:DIGEST] else None

    def put(self, key: str, value: bytes) -> None:
        """Writes an entry; if the directory takes none, says so once, and the program goes on without."""
        if not self._is_kept:
            return
        part = self._path / f".{uuid.uuid4().hex}{PART}"
        try:
            part.write_bytes(hashlib.sha256(value).digest() + value)
            part.replace(self._place(key))
        except OSError as error:
            self._is_kept = False
            warnings.warn(f"compiled programs are not kept: {self._path}: {error.strerror}.", stacklevel=2)
        finally:
            with contextlib.suppress(OSError):  # it was moved, or never made
                part.unlink()


def keep_compiled(directory: Path, *, min_seconds: float = 0.5) -> None:
    """Keeps the programs that this process compiles from now on, and takes those that are there.

    Args:
        directory: where; made if it does not exist.
        min_seconds: programs that compile faster are not kept.

    Raises:
        OSError: one sentence, where there can be no such directory.
        ValueError: JAX is told to keep so many bytes at the most, which is not done here.
    """
    import jax
    from jax._src import compilation_cache
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    limit = jax.config.jax_compilation_cache_max_size  # type: ignore[attr-defined]
    if limit != -1:
        raise ValueError(f"all compiled programs are kept: unset JAX_COMPILATION_CACHE_MAX_SIZE, got {limit}.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"compiled programs are kept in a directory, got {directory}: {error.strerror}.") from error
    if hasattr(compilation_cache, "get_file_cache"):
        compilation_cache.get_file_cache = lambda path: (WholeEntries(Path(path)), path)  # type: ignore[assignment,return-value]
    else:
        warnings.warn(
            f"JAX {jax.__version__} keeps compiled programs in its own way: use one directory for each process, and "
            "empty it after one was killed.",
            stacklevel=2,
        )
    reset_cache()  # it may have been used with another directory
    jax.config.update("jax_compilation_cache_dir", str(directory.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", min_seconds)
