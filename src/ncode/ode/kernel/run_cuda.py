"""Kernels on a CUDA GPU: one launch per pass, and the tape in tensors."""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attempt import LoopState
from .build_cuda import CudaFunction, start_build
from .driver_cpp import sum_sizes
from .machine_cuda import CUDA
from .run import Call, Kernel

_LANES = 32  # threads of a warp
_FEW = 64 * 1024  # samples up to which a block has one warp, so that all multiprocessors take part
_FIRST_CAPACITY = 32  # steps that the first tape of a kernel has room for


class Tape(NamedTuple):
    """The steps of a solve: step n of each sample, side by side."""

    times: Tensor  # t and h, (capacity, 2, batch)
    states: Tensor  # (capacity, elements of z, batch)
    accepted: Tensor  # how many steps each sample has


class CudaKernel(Kernel):
    """A function on a GPU: one thread per sample."""

    machine = CUDA
    more_settings = (("capacity", c_int64), *((it, c_void_p) for it in ("tape_times", "tape_states", "flags")))
    lanes = _LANES

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.capacity = _FIRST_CAPACITY
        self.function: CudaFunction | None = None

    def start(self) -> None:
        if self.function is None:
            name = "solve" if self.lowered.graph.wanted is None else "pull"
            self.function = start_build(self.source, name, self.device)

    def finish(self) -> None:
        self.start()
        with torch.cuda.device(self.device):
            self.function.load(self._index)  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def _index(self) -> int:
        return torch.cuda.current_device() if self.device.index is None else self.device.index

    def launch(self, call: Call) -> None:
        """Start the function on the current stream of the device."""
        if self.function is None:
            self.finish()
        batch, index = call.settings.batch, self._index
        threads = _LANES if batch <= _FEW else 4 * _LANES
        with contextlib.nullcontext() if index == torch.cuda.current_device() else torch.cuda.device(index):
            self.function.launch(index, -(-batch // threads), threads, ctypes.addressof(call.settings))  # pyright: ignore

    def run_forward(self, call: Call, record: bool, outputs: LoopState) -> tuple[int, Tape | None]:
        batch, tape = call.settings.batch, None
        flags = torch.zeros(2, dtype=torch.int32, device=outputs.t.device)
        call.point(flags=flags)
        if record:
            tape = self._attach_tape(call, outputs, batch)
        self.launch(call)
        failed, steps = flags.tolist()
        if tape is not None and steps > self.capacity:
            # The tape was full before the solve ended: solve again, with room for all steps.
            self.capacity = steps + steps // 4
            del tape
            return self.run_forward(call, record, outputs)
        return failed, tape

    def _attach_tape(self, call: Call, outputs: LoopState, batch: int) -> Tape:
        elements, device = sum(self.shape.states), outputs.t.device
        times = torch.empty(self.capacity, 2, batch, dtype=torch.float64, device=device)
        tape = Tape(
            times, torch.empty(self.capacity, elements, batch, dtype=self.dtype, device=device), outputs.accepted
        )
        call.set(capacity=self.capacity)
        call.point(tape_times=tape.times, tape_states=tape.states)
        return tape

    def run_backward(self, call: Call, tape: Tape) -> Tensor:
        size = sum(sum_sizes(self.lowered.program))
        rows = -(-call.settings.batch // self.lanes) + 3  # one per warp; the last block may have three without samples
        sums = torch.zeros(rows, size, dtype=self.dtype, device=tape.times.device)
        call.point(sums=sums, tape_times=tape.times, tape_states=tape.states, accepted=tape.accepted)
        self.launch(call)
        return sums
