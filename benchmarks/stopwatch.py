"""Seconds of what a device does."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Seconds since the lap before, once the device has done its work."""

    def __init__(self, device: str):
        self._cuda = torch.device(device).type == "cuda"
        self._last = self._now()

    def lap(self) -> float:
        """Begin a new lap, and tell how long the last one took."""
        before, self._last = self._last, self._now()
        return self._last - before

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
