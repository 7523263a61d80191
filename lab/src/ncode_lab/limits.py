"""Limits on the size of what is read, so that a damaged or hostile file cannot fill the memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol

from ncode import InputError

VARIABLE = "NCODE_READ_LIMIT"  # in MiB, instead of the limits below
DATA_LIMIT = 1024  # MiB of a data set, uncompressed. All of CIFAR-10 has 176
CHECKPOINT_LIMIT = 8192  # MiB of the weights or the state of a checkpoint
TEXT_LIMIT = 64  # MiB of a record, a result or a figure


class Readable(Protocol):
    """A binary file, plain or compressed."""

    def read(self, size: int = -1, /) -> bytes: ...


class LimitedReader:
    """A binary file from which at most `limit` MiB are read, or as many as NCODE_READ_LIMIT says.

    >>> import io
    >>> LimitedReader(io.BytesIO(b"some data"), "data.gz", DATA_LIMIT).read(4)
    b'some'
    >>> LimitedReader(io.BytesIO(bytes(3 << 20)), "data.gz", 2).read()
    Traceback (most recent call last):
    ncode.errors.InputError: data.gz holds more than 2 MiB, the limit for such a file. If that is right, set the
    environment variable NCODE_READ_LIMIT to a larger number of MiB
    """

    def __init__(self, file: Readable, name: str | Path, limit: int):
        self._file, self._name, self._limit = file, name, read_limit(limit)
        self._left = self._limit << 20

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or all. Raises an `InputError` beyond the limit."""
        data = self._file.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                f"{self._name} holds more than {self._limit} MiB, the limit for such a file. If that is right, set the"
                f" environment variable {VARIABLE} to a larger number of MiB"
            )
        return data


def check_size(name: str | Path, size: int, instead: str = "If that is right,") -> None:
    """Refuse data of more bytes than `DATA_LIMIT`, or as many MiB as NCODE_READ_LIMIT says.

    >>> check_size("photos", 1 << 40)
    Traceback (most recent call last):
    ncode.errors.InputError: photos holds 1048576 MiB, and the limit is 1024 MiB. If that is right, set the environment
    variable NCODE_READ_LIMIT to a larger number of MiB
    """
    limit = read_limit(DATA_LIMIT)
    if size > limit << 20:
        raise InputError(
            f"{name} holds {size >> 20} MiB, and the limit is {limit} MiB. {instead} set the environment variable"
            f" {VARIABLE} to a larger number of MiB"
        )


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` MiB; a device, which may never end, or a pipe is an `OSError`."""
    with open(path, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return LimitedReader(file, path, limit).read()


def read_limit(default: int) -> int:
    """Return the limit in MiB: that of the environment variable, or the default."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return default
    if not given.isdecimal() or not 0 < len(given) <= 9:
        raise InputError(f"{VARIABLE} must be a whole number of MiB, such as {default}; given {given!r}")
    return int(given)
