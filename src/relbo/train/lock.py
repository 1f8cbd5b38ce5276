"""One writer at a time: a lock on a file of the run directory, which the system drops when its process ends.

`flock` holds between the processes of one machine, and over NFS (Linux 2.6.12 and later) between machines. Where a
file system, or the operating system, has no such lock, a warning says so and the run goes on. Readers take no lock.
"""

import errno
import os
import socket
import warnings
from pathlib import Path

from relbo._disk import naming
from relbo.train.errors import Occupied, RunWarning

FILE = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class WriterLock:
    """The right to write a run directory, held until `release` or the end of the process.

    Args:
        directory: the run directory, which exists.
        file: name of the locked file in it.

    Raises:
        Occupied: another process holds it.
    """

    def __init__(self, directory: Path, file: str = FILE) -> None:
        path = directory / file
        with naming(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if _lock(self._file, directory):
                with naming(path):
                    os.ftruncate(self._file, 0)
                    os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Gives the right back. The file stays: to remove it would let two others in at once."""
        os.close(self._file)


def _lock(file: int, directory: Path) -> bool:
    """Whether the lock was taken; False where there are none to take."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        reason = "this operating system has none"
    except BlockingIOError:
        holder = os.pread(file, 200, 0).decode(errors="replace") or "another process"
        raise Occupied(
            f"{directory} is being written by {holder}: wait for it to end, or choose another directory."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        reason = f"its file system has none ({error.strerror})"
    else:
        return True
    warnings.warn(
        f"{directory} cannot be locked: {reason}. See to it that no other process writes this run.",
        RunWarning,
        stacklevel=2,
    )
    return False
