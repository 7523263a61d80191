"""Downloads that survive interruption: resumed, checked, and put in place as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from ncode import InputError

Progress = Callable[[str, int, int | None], None]
"""Called with what is under way, how much is done, and how much there is, where that is known."""

_BLOCK = 1 << 18
_TRIES = 3  # at one address without a byte gained, each going on where the last broke off
_TIMEOUT = 30.0  # seconds without a byte

# What a connection can end with. OSError has time-outs, refusals and urllib's own errors among its kinds.
_BROKEN = (OSError, http.client.HTTPException)


def fetch(
    addresses: Sequence[str], target: str | Path, checksum: str | None = None, progress: Progress | None = None
) -> Path:
    """Download a file, from the first address that has it, and return where it is.

    It is written beside the target under a name that ends in .part, and renamed when it is whole and its checksum is
    right: a file of the target's name is never half of one. An interrupted download is resumed where it ended, also by
    a later call, and also from another address. Processes that want the same file wait for the first of them.

    Args:
        addresses: http or https addresses of the same file, tried in turn.
        target: Where to put it. Nothing is done if it is there.
        checksum: "sha256:..." or "md5:...", in hexadecimal.
        progress: Called as progress(name, bytes done, bytes in all or None).

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ncode_lab.data import fetch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     there = Path(folder) / "data.bin"
    ...     _ = there.write_bytes(b"already here")
    ...     fetch(["https://example.com/data.bin"], there).read_bytes()
    b'already here'
    """
    target = Path(target)
    if target.exists():
        return target
    _check_addresses(addresses)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target):
        if not target.exists():
            _fetch(addresses, target, checksum, progress)
    return target


def _fetch(addresses: Sequence[str], target: Path, checksum: str | None, progress: Progress | None) -> None:
    part, reasons = target.with_name(target.name + ".part"), []
    for address in addresses:
        resumed = _size(part) > 0
        if not _complete(address, part, target.name, progress, reasons):
            continue
        right = _sum_is_right(part, checksum)
        if not right and resumed:  # what was there may have been of another file: once more from the start
            part.unlink()
            right = _complete(address, part, target.name, progress, reasons) and _sum_is_right(part, checksum)
        if right:
            os.replace(part, target)
            return
        part.unlink(missing_ok=True)
        reasons.append(f"{address} sent a file whose checksum is not {checksum}")
    raise InputError(f"{target.name} could not be downloaded: {'; '.join(dict.fromkeys(reasons))}")


def _complete(address: str, part: Path, name: str, progress: Progress | None, reasons: list[str]) -> bool:
    """Download until nothing is missing, as long as it gets on; otherwise add the reason."""
    most, idle, reason = _size(part), 0, ""
    while idle < _TRIES:
        try:
            _receive(address, part, name, progress)
            return True
        except urllib.error.HTTPError as error:
            error.close()
            reasons.append(f"{address} answered {error.code} {error.reason}")
            return False
        except _BROKEN as error:
            reason = f"{address}: {str(error) or type(error).__name__}"
        idle = idle + 1 if _size(part) <= most else 0
        most = max(most, _size(part))
    reasons.append(reason)
    return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(address: str, part: Path, name: str, progress: Progress | None) -> None:
    """Download what is still missing of a file."""
    have = _size(part)
    request = urllib.request.Request(address, headers={"User-Agent": "ncode", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if _whole_size(error.headers.get("Content-Range")) == have:
            return
        part.unlink()
        raise ConnectionError("the part that was there does not belong to this file") from None
    with answer:
        goes_on = answer.status == 206 and _starts_at(answer.headers.get("Content-Range")) == have
        if answer.status == 206 and not goes_on:
            raise ConnectionError("the server sent another part than it was asked for")
        length = answer.headers.get("Content-Length")
        done = have if goes_on else 0
        total = done + int(length) if length and length.isdigit() else None
        with open(part, "ab" if goes_on else "wb", buffering=0) as file:
            done = _copy(answer, file, done, total, name, progress)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _copy(
    source: IO[bytes], file: IO[bytes], done: int, total: int | None, name: str, progress: Progress | None
) -> int:
    if progress:
        progress(name, done, total)
    while block := source.read(_BLOCK):
        _write(file, block)
        done += len(block)
        if progress:
            progress(name, done, total)
    return done


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        while block:
            block = block[file.write(block) :]
    except OSError as error:  # our disk's, and not the line's: trying again is of no use
        raise InputError(f"{file.name} cannot be written: {error.strerror}. What was received is kept") from error


def _starts_at(content_range: str | None) -> int | None:
    """12 of "bytes 12-99/100"."""
    start = (content_range or "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else None


def _whole_size(content_range: str | None) -> int | None:
    """100 of "bytes */100"."""
    size = (content_range or "").rpartition("/")[2]
    return int(size) if size.isdigit() else None


def _sum_is_right(path: Path, checksum: str | None) -> bool:
    if checksum is None:
        return True
    kind, _, wanted = checksum.partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=kind != "md5"))
    return found.hexdigest() == wanted.lower()


def _check_addresses(addresses: Sequence[str]) -> None:
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise InputError(f"an address must begin with http:// or https://; given {address!r}")


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time. The lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows: there two downloads at once end in a wrong checksum, and are tried again
        yield
        return
    lock = target.with_name(target.name + ".lock")
    with open(lock, "w") as file:
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        # Only after success: whoever waits for this file then finds the target, and does not need the lock.
        lock.unlink(missing_ok=True)
