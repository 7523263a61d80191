"""What surrounds a measurement: threads, device, versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "torchdiffeq", "torchode", "diffrax", "equinox", "jax", "jaxlib", "triton")


def prepare(device: str, threads: int) -> None:
    """Set thread counts and the like, before torch and jax are imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory meter's profiler is chatty
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["NPROC"] = str(threads)  # the size of XLA's thread pool
        if threads == 1:
            single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {single}".strip()
    else:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch wants memory too
    os.environ["OMP_NUM_THREADS"] = str(threads)

    import torch

    torch.set_num_threads(threads)
    # Every library computes in float32: the gradient's error is compared too.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def describe(device: str, threads: int) -> dict[str, object]:
    """The machine and the versions, for the record."""
    import torch

    import ncode

    versions = {"python": platform.python_version(), "ncode": ncode.__version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return {
        "device": device,
        "device_name": name,
        "threads": threads,
        "platform": platform.platform(),
        "versions": versions,
    }


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
