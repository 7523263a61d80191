"""One process a run folder: a lock that ends with the process that holds it, however it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none: there, it is for the user to run one process a folder.
    fcntl = None

NAME = ".lock"
_held: dict[Path, int] = {}


def acquire(folder: Path) -> bool:
    """Lock a folder for this process; False where another process that is alive has it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     acquire(Path(folder)), acquire(Path(folder)), release(Path(folder))
    (True, True, None)
    """
    folder = folder.resolve()
    if fcntl is None or folder in _held:
        return True
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        # Any other error: a file system without locks.
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    _held[folder] = handle
    return True


def release(folder: Path) -> None:
    """Give the folder back."""
    handle = _held.pop(folder.resolve(), None)
    if handle is not None:
        (folder / NAME).unlink(missing_ok=True)
        os.close(handle)
