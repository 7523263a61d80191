"""Downloads that survive interruption: resumed, verified, and moved into place when complete."""

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
"""Called with a name, the amount done, and the total if it is known."""

_BLOCK = 1 << 18
_TRIES = 3  # per address without a byte gained; each try resumes where the last one ended
_TIMEOUT = 30.0  # seconds without a byte

# OSError includes time-outs, refused connections and the errors of urllib.
_BROKEN = (OSError, http.client.HTTPException)


def cache_dir() -> Path:
    """Return the default folder of downloads: ncode in XDG_CACHE_HOME, or in ~/.cache if that is not set.

    >>> from ncode_lab.data import cache_dir
    >>> cache_dir().name
    'ncode'
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ncode"


def fetch(
    addresses: Sequence[str], target: str | Path, checksum: str | None = None, progress: Progress | None = None
) -> Path:
    """Download a file from the first address that has it, and return its path.

    The file is written as TARGET.part and renamed once it is complete and its checksum is right, so the target is never
    partial. An interrupted download is resumed, also by a later call and from another address. Processes that want the
    same file wait for the first of them.

    Args:
        addresses: http or https addresses of the same file, tried in turn.
        target: Where to put it. Nothing is done if it exists.
        checksum: "sha256:..." or "md5:...", in hexadecimal.
        progress: Called as progress(name, bytes done, bytes in all or None).
    """
    target = Path(target)
    if target.exists():
        return target
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise InputError(f"an address must begin with http:// or https://; given {address!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(target):
        if not target.exists():
            _fetch(addresses, target, checksum, progress)
    return target


def _fetch(addresses: Sequence[str], target: Path, checksum: str | None, progress: Progress | None) -> None:
    part, reasons = target.with_name(target.name + ".part"), []
    for address in addresses:
        resumed = _size(part) > 0
        if not _complete(address, part, target.name, progress, reasons):
            continue
        right = _verify(part, checksum)
        if not right and resumed:  # the earlier part may be of another file: once more from the start
            part.unlink()
            right = _complete(address, part, target.name, progress, reasons) and _verify(part, checksum)
        if right:
            os.replace(part, target)
            return
        part.unlink(missing_ok=True)
        reasons.append(f"{address} sent a file whose checksum is not {checksum}")
    raise InputError(f"{target.name} could not be downloaded: {'; '.join(dict.fromkeys(reasons))}")


def _complete(address: str, part: Path, name: str, progress: Progress | None, reasons: list[str]) -> bool:
    """Download until nothing is missing, for as long as there is progress; otherwise add the reason."""
    largest, idle, reason = _size(part), 0, ""
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
        idle = idle + 1 if _size(part) <= largest else 0
        largest = max(largest, _size(part))
    reasons.append(reason)
    return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(address: str, part: Path, name: str, progress: Progress | None) -> None:
    """Download the missing rest of a file."""
    start, report = _size(part), progress or (lambda name, done, total: None)
    request = urllib.request.Request(address, headers={"User-Agent": "ncode", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if error.headers.get("Content-Range", "").endswith(f"/{start}"):
            return
        part.unlink()
        raise ConnectionError("the partial file does not belong to this address") from None
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status == 206 and not resumed:
            raise ConnectionError("the server sent another range than requested")
        length = response.headers.get("Content-Length")
        done = start if resumed else 0
        total = done + int(length) if length and length.isdigit() else None
        with open(part, "ab" if resumed else "wb", buffering=0) as file:
            report(name, done, total)
            while block := response.read(_BLOCK):
                _write(file, block)
                done += len(block)
                report(name, done, total)
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        while block:
            block = block[file.write(block) :]
    except OSError as error:  # the disk, not the connection: another try is useless
        raise InputError(f"{file.name} cannot be written: {error.strerror}. What was received is kept") from error


def _verify(path: Path, checksum: str | None) -> bool:
    if checksum is None:
        return True
    kind, _, expected = checksum.partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=kind != "md5"))
    return found.hexdigest() == expected.lower()


@contextlib.contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Let one process at a time in. The lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two downloads at once end in a wrong checksum, and are repeated
        yield
        return
    lock = target.with_name(target.name + ".lock")
    with open(lock, "w") as file:
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        # Only after success: processes that wait then find the target, and do not need the lock.
        lock.unlink(missing_ok=True)
