"""Ctrl-C and SIGTERM as a polite request: the step is finished first."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopRequest:
    """While entered, the first signal sets `asked`; the second one stops at once, as ever.

    >>> with StopRequest() as stop:
    ...     stop.asked
    False
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may handle signals; in another, whoever started it must.
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._handle) for each in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
