"""What the machine can do at most, measured: bytes a second through memory, and multiply-adds a second."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .contest import synchronise


class Machine(NamedTuple):
    """The two slopes of the roof."""

    bytes: float  # a second, read and written
    flops: float  # a second, float32 matrix products
    tf32: float | None  # the same with TF32 inputs, where the device has them

    def seconds(self, moved: float, flops: float, *, tf32: bool = False) -> float:
        """The least time for so many bytes and operations: both go on at once, so the longer of the two."""
        rate = self.tf32 if tf32 and self.tf32 is not None else self.flops
        return max(moved / self.bytes, flops / rate)


@functools.cache
def machine(device: str, quick: bool = False) -> Machine:
    """Copies an array far larger than any cache, and multiplies square matrices."""
    cuda = device == "cuda"
    numbers = 2**16 if quick else 2**28 if cuda else 2**25
    source, target = (torch.ones(numbers, device=device) for _ in range(2))
    moved = 8 * numbers / _best(lambda: target.copy_(source), device)
    size = 64 if quick else 8192 if cuda else 1024
    a, b, c = (torch.ones(size, size, device=device) for _ in range(3))
    before = torch.backends.cuda.matmul.allow_tf32
    rates = []
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        rates.append(2 * size**3 / _best(lambda: torch.mm(a, b, out=c), device))
    torch.backends.cuda.matmul.allow_tf32 = before
    return Machine(moved, rates[0], rates[1] if cuda else None)


def _best(run: Callable[[], Any], device: str, repeats: int = 5) -> float:
    """The shortest of a few calls, in seconds."""
    times = []
    for _ in range(repeats + 1):  # the first is not counted
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
