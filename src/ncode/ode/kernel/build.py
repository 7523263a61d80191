"""C++ source to a loaded library: one call of the compiler, kept on disk between processes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

from ..backends.compile_time import report_if_slow
from .trace import Unsupported

FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
_GCC_FLAGS = ("-fschedule-insns", "-fsched-pressure")
"""Interleave the turns of a loop that are written out: a processor looks ahead over no more than a few of them."""
_QUIET = ("-Wno-psabi", "-Wno-ignored-attributes", "-pthread")
_loaded: dict[str, Future[ctypes.CDLL]] = {}


@functools.cache
def compiler() -> str | None:
    """The C++ compiler: that of the variable CXX, or g++, clang++ or c++."""
    names = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@functools.cache
def _version() -> str:
    return subprocess.run([compiler() or "", "--version"], capture_output=True, text=True, check=False).stdout


@functools.cache
def _flags() -> tuple[str, ...]:
    return (*FLAGS, *(_GCC_FLAGS if "Free Software Foundation" in _version() else ()), *_QUIET)


@functools.cache
def _identity() -> str:
    """The compiler's version and the processor: a library is made for both."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [" ".join(map(str, os.uname()))]
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return f"{compiler()} {_version()} {processor}"


def cache_folder() -> Path:
    """Where libraries are kept: in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ncode" / "kernels"


def start_build(source: str) -> Future[ctypes.CDLL]:
    """The library of a source, loaded; other work may go on while it is compiled."""
    key = hashlib.sha256("\n".join((_identity(), *_flags(), source)).encode()).hexdigest()[:32]
    if key not in _loaded:
        _loaded[key] = Future()
        # A thread of its own: those of a pool would be gone in a process that was forked.
        threading.Thread(target=_fulfil, args=(_loaded[key], source, key), daemon=True).start()
    return _loaded[key]


def _fulfil(promise: Future[ctypes.CDLL], source: str, key: str) -> None:
    try:
        promise.set_result(_build(source, key))
    except BaseException as error:
        promise.set_exception(error)


def _build(source: str, key: str) -> ctypes.CDLL:
    for folder in (cache_folder(), Path(tempfile.gettempdir()) / f"ncode-kernels-{os.getuid()}"):
        library = folder / f"{key}.so"
        if not library.exists():
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _compile(source, library)
            except OSError:  # a folder that cannot be written to
                continue
        return ctypes.CDLL(str(library))
    raise Unsupported("no folder for compiled kernels can be written to")


def _compile(source: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        code, made = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        code.write_text(source)
        command = [compiler() or "", *_flags(), str(code), "-o", str(made)]
        with report_if_slow("a kernel, for this and later processes"):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unsupported(f"{compiler()} failed: {done.stderr.strip()[:500]}")
        os.replace(made, library)  # whole or not at all, also where several processes compile the same
