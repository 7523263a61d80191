"""The machines that kernels are tested on."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from ncode.ode.kernel.build import start_build
from ncode.ode.kernel.run import Call
from ncode.ode.kernel.run_cuda import CudaKernel

MACHINES = ("cpu", "threads", "cuda")
"""A CPU; the source for GPUs on a CPU, one thread after another; a GPU."""


class ThreadsOnCpu(CudaKernel):
    """The source for GPUs, compiled as C++."""

    lanes = 1
    building: Any = None
    sources: ClassVar[list[str]] = []  # of all kernels that were started

    def start(self) -> None:
        if self.building is None:
            self.sources.append(self.source)
            self.building = start_build(self.source)

    def finish(self) -> None:
        self.start()
        self.building.result()

    def launch(self, call: Call) -> None:
        self.start()
        name = "solve_on_cpu" if self.lowered.graph.wanted is None else "pull_on_cpu"
        assert getattr(self.building.result(), name)(ctypes.byref(call.settings)) == 0
