"""Kernels on a CPU: calls of a library in C++."""

from __future__ import annotations

import ctypes
import weakref
from concurrent.futures import Future
from ctypes import c_int64, c_void_p
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..attempt import LoopState
from .build import start_build
from .driver_cpp import sum_sizes
from .machine_cpu import CPU
from .run import Call, Kernel

_CHUNKS = 4  # per thread: fixed parts of a batch, so that sums do not depend on which thread is faster


class Tape:
    """The steps of a solve, in the memory of its library."""

    def __init__(self, library: ctypes.CDLL, batch: int):
        library.make_tape.restype, library.make_tape.argtypes = c_void_p, [c_int64]
        library.free_tape.restype, library.free_tape.argtypes = None, [c_void_p]
        self.address = library.make_tape(batch)
        if not self.address:
            raise MemoryError("a compiled solve ran out of memory")
        weakref.finalize(self, library.free_tape, self.address)


class CpuKernel(Kernel):
    """A library in C++: vectors of samples, and threads."""

    machine, more_settings = CPU, (("chunks", c_int64), ("threads", c_int64), ("tape", c_void_p))
    building: Future[ctypes.CDLL] | None = None

    def start(self) -> None:
        self.building = self.building or start_build(self.source)

    def finish(self) -> None:
        _ = self.library

    @cached_property
    def library(self) -> ctypes.CDLL:
        self.start()
        return self.building.result()  # pyright: ignore[reportOptionalMemberAccess]

    def run_forward(self, call: Call, record: bool, outputs: LoopState) -> tuple[int, Tape | None]:
        tape = Tape(self.library, call.settings.batch) if record else None
        self._run(self.library.solve, call, tape)
        return int(outputs.status.count_nonzero()), tape

    def run_backward(self, call: Call, tape: Tape) -> Tensor:
        self._divide(call)
        sums = torch.empty(call.settings.chunks, sum(sum_sizes(self.lowered.program)), dtype=self.dtype)
        call.point(sums=sums)
        self._run(self.library.pull, call, tape)
        return sums

    def _divide(self, call: Call) -> None:
        blocks, threads = -(-call.settings.batch * self.dtype.itemsize // 64), torch.get_num_threads()
        chunks = min(blocks, _CHUNKS * threads) if threads > 1 else 1
        call.set(threads=min(threads, blocks), chunks=chunks)

    def _run(self, function: Any, call: Call, tape: Tape | None) -> None:
        self._divide(call)
        call.settings.tape = None if tape is None else tape.address
        if function(ctypes.byref(call.settings)):
            raise MemoryError("a compiled solve ran out of memory")
