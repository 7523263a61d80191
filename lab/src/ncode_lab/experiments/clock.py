"""The time that training steps take."""

from __future__ import annotations

import time


class StepClock:
    """The time that a training step takes, without evaluations and without the first steps, which compile and warm up.

    >>> clock = StepClock(warm_up=1)
    >>> for step in range(4):
    ...     clock.tick(step)
    >>> clock.mean >= 0, clock.counted
    (True, 2)
    """

    def __init__(self, warm_up: int = 5):
        self.warm_up, self.seen, self.counted, self.total = warm_up, 0, 0, 0.0
        self._last: tuple[int, float] | None = None

    def tick(self, step: int) -> None:
        """A step begins."""
        now, last = time.perf_counter(), self._last
        if last is not None and last[0] == step - 1:
            self.seen += 1
            if self.seen > self.warm_up:
                self.counted, self.total = self.counted + 1, self.total + now - last[1]
        self._last = step, now

    def pause(self) -> None:
        """Something else begins."""
        self._last = None

    @property
    def mean(self) -> float | None:
        """Seconds a step; None where too few were seen."""
        return self.total / self.counted if self.counted else None
