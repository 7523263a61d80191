"""Compilation that takes long says so through `logging`, under the name "ncode": when it has, and when it is done."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLOW = 2.0
"""Seconds of compilation that are worth a message."""

_log = logging.getLogger("ncode")


@contextmanager
def report_if_slow(what: str) -> Iterator[None]:
    """Compile inside of this; `what` is named in the messages."""
    begin = time.monotonic()
    soon = threading.Timer(SLOW, _log.info, (f"still compiling {what}",))
    soon.daemon = True
    soon.start()
    try:
        yield
    finally:
        soon.cancel()
        seconds = time.monotonic() - begin
        if seconds > SLOW:
            _log.info("compiled %s in %.1f s", what, seconds)
