"""CUDA source to a loaded function: compiled by NVRTC, kept on disk between processes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from ..._torch_private import current_stream
from ..backends.compile_time import report_if_slow
from .build import cache_folder
from .trace import Unsupported

FLAGS = ("--std=c++17", "--extra-device-vectorization")
_built: dict[str, Future[bytes]] = {}


@functools.cache
def has_compiler() -> bool:
    """Whether the compiler for GPUs is installed; it comes with CUDA builds of torch."""
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


class CudaFunction:
    """A function on the GPU, being compiled or ready."""

    def __init__(self, binary: Future[bytes], name: str):
        self.binary, self.name = binary, name
        self.loaded: dict[int, Any] = {}  # by device

    def load(self, device: int) -> Any:
        """The function on a device, which is the current one; waits until it is compiled."""
        if device not in self.loaded:
            from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

            module = _check(driver.cuModuleLoadData(self.binary.result()))
            self.loaded[device] = _check(driver.cuModuleGetFunction(module, self.name.encode()))
        return self.loaded[device]

    def launch(self, device: int, blocks: int, threads: int, settings: int) -> None:
        """Start it on the current stream; `settings` is the address of its only argument."""
        from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

        function, arguments = self.load(device), (ctypes.c_void_p * 1)(settings)
        stream, address = current_stream(device), ctypes.addressof(arguments)
        _check(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, address, 0))


def start_build(source: str, name: str, device: torch.device) -> CudaFunction:
    """A function of a source; other work may go on while it is compiled."""
    major, minor = torch.cuda.get_device_capability(device)
    target = f"--gpu-architecture=sm_{major}{minor}"
    key = hashlib.sha256("\n".join((_version(), target, *FLAGS, source)).encode()).hexdigest()[:32]
    if key not in _built:
        _built[key] = Future()
        threading.Thread(target=_fulfil, args=(_built[key], source, target, key), daemon=True).start()
    return CudaFunction(_built[key], name)


@functools.cache
def _version() -> str:
    from cuda.bindings import nvrtc  # pyright: ignore[reportMissingImports]

    return ".".join(map(str, _check(nvrtc.nvrtcVersion())))


def _fulfil(promise: Future[bytes], source: str, target: str, key: str) -> None:
    try:
        promise.set_result(_find(source, target, key))
    except BaseException as error:
        promise.set_exception(error)


def _find(source: str, target: str, key: str) -> bytes:
    kept = cache_folder() / f"{key}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        pass
    with report_if_slow("a kernel, for this and later processes"):
        binary = _compile(source, target)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder) / "kernel.cubin"
            made.write_bytes(binary)
            os.replace(made, kept)  # whole or not at all, also where several processes compile the same
    except OSError:  # a folder that cannot be written to: compiled again by the next process
        pass
    return binary


def _compile(source: str, target: str) -> bytes:
    from cuda.bindings import nvrtc  # pyright: ignore[reportMissingImports]

    program = _check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [it.encode() for it in (target, *FLAGS)]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(error):
        log = b" " * _check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise Unsupported(f"the CUDA compiler failed: {log.decode().strip()[:500]}")
    binary = b" " * _check(nvrtc.nvrtcGetCUBINSize(program))
    _check(nvrtc.nvrtcGetCUBIN(program, binary))
    nvrtc.nvrtcDestroyProgram(program)
    return binary


def _check(result: Any) -> Any:
    """What a call of the CUDA interface returned besides its error, which is raised."""
    error, *values = result
    if int(error):
        raise RuntimeError(f"a call of the CUDA driver failed: {error}")
    return values[0] if len(values) == 1 else values
