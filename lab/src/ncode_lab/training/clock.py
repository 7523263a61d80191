"""`TrialClock`: how long a trial has taken, over all its lives."""

from __future__ import annotations

import time


class TrialClock:
    """Counts from when it is made, and goes on from what a checkpoint says.

    Attributes:
        earlier: Seconds of the lives before this one.

    >>> clock = TrialClock()
    >>> clock.go_on(60.0)
    >>> 60 < clock.seconds < 120
    True
    """

    def __init__(self) -> None:
        self.earlier, self._began = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Of all lives together."""
        return self.earlier + time.perf_counter() - self._began

    def go_on(self, seconds: float) -> None:
        """From a checkpoint that was written after so many seconds. Of several in a trial, the last one counts."""
        self.earlier = max(self.earlier, seconds)
