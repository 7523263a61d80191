"""Peak memory of one call, beyond what was there before it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """The most bytes that torch's allocator held at once during the call, above those at its start."""
    gc.collect()
    return _peak_cuda(run) if device == "cuda" else _peak_cpu(run)


def _peak_cuda(run: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_cpu(run: Callable[[], Any]) -> int:
    """Follow the allocator: unlike a dispatch mode, this also sees compiled code and does not disturb it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak
