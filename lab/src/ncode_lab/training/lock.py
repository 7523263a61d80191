"""`FolderLock`: only one process at a time works in a folder."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

try:
    import fcntl
except ImportError:  # Windows has none: there, the user must make sure that each folder has one process.
    fcntl = None

LOCK = ".lock"
_BUSY = (errno.EAGAIN, errno.EACCES)
_MAX_OWNER = 200  # bytes
_TRIES, _SECONDS_BETWEEN_TRIES = 20, 0.01


class FolderLock:
    """An exclusive lock on a folder. The kernel holds it until `release`, or until the process ends in any way.

    The file `.lock` names the process that holds the lock, or the last that did. It is never removed: otherwise a
    process that waits with the removed file open and one that creates the file again could both hold the lock.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> lock = FolderLock.acquire(folder.name)
    >>> FolderLock.acquire(folder.name) is None, is_locked(folder.name)
    (True, True)
    >>> lock.release(); is_locked(folder.name)
    False
    >>> folder.cleanup()
    """

    def __init__(self, handle: int | None):
        self._handle = handle

    @classmethod
    def acquire(cls, folder: str | Path) -> Self | None:
        """Lock an existing folder; None if it is locked already, by this process or another one."""
        if fcntl is None:
            return cls(None)
        handle = os.open(Path(folder) / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        for _ in range(_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_owner(handle)
                return cls(handle)
            except OSError as error:
                if error.errno not in _BUSY:  # a file system without locks
                    os.close(handle)
                    return cls(None)
            # `is_locked` of another process may be in the way for a moment.
            time.sleep(_SECONDS_BETWEEN_TRIES)
        os.close(handle)
        return None

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _write_owner(handle: int) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def lock_owner(folder: str | Path) -> str:
    """Name the process that holds the lock of a folder: "process 123 on HOST". Meaningful while it is locked."""
    try:
        with open(Path(folder) / LOCK, "rb") as file:
            owner = file.read(_MAX_OWNER).decode(errors="replace")
    except OSError:
        owner = ""
    return owner if owner.startswith("process ") and owner.isprintable() else "another process"


def is_locked(folder: str | Path) -> bool:
    """Whether some process holds the lock of a folder at this moment. Needs no write permission, and takes no lock."""
    if fcntl is None:
        return False
    try:
        handle = os.open(Path(folder) / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared locks exclude no other reader, and this one ends with the handle.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in _BUSY
    finally:
        os.close(handle)
