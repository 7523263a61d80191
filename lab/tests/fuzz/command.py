"""Run the command `ncode` within this process, and check how it ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from typing import Any

from ncode_lab.cli import main

SECONDS = 60
calls = 0  # counted for the summary


class Slow(Exception):
    """The command took too long."""


def ncode(*arguments: object) -> tuple[int, str]:
    """The exit status and what was printed. An error must be a sentence; an exception would be a traceback."""
    global calls
    calls += 1
    out, err = io.StringIO(), io.StringIO()
    handler = signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in arguments])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    text = out.getvalue() + err.getvalue()
    assert status in (0, 1, 2), f"status {status}: {text}"
    assert "Traceback" not in text, text
    assert status == 0 or err.getvalue().startswith("ncode: ") or "\nncode: " in err.getvalue(), text
    return status, text


def _too_slow(number: int, frame: Any) -> None:
    raise Slow
