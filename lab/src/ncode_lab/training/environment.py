"""What a run ran on: versions, commit and device."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import ncode


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit and device, for run.json and results."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "ncode": ncode.__version__}
    found["lightning"] = metadata.version("pytorch-lightning")
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return {"versions": found, "commit": commit(), "device": _device_name(device)}


def commit() -> str:
    """The commit of this source tree; "unknown" outside a repository.

    The variable NCODE_COMMIT overrides it, for a copy of the source without its repository.
    """
    if override := os.environ.get("NCODE_COMMIT"):
        return override
    source = Path(__file__).resolve()
    # The package may be installed within somebody else's repository.
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return "unknown"
    return _git(source.parent, "describe", "--always", "--dirty") or "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _device_name(device: torch.device) -> str:
    """The product name of a device, such as "NVIDIA H200"; for a CPU, followed by the number of torch's threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_model()}, {threads} thread{'s' if threads > 1 else ''}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), None) or platform.processor() or platform.machine()


def without_machine_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as results store them, without paths of this machine.

    >>> without_machine_paths({"data_dir": "/somewhere/images", "epochs": 3})
    {'data_dir': 'images', 'epochs': 3}
    """
    return {name: _relative(value) if isinstance(value, str) else value for name, value in settings.items()}


def _relative(value: str) -> str:
    path, here = Path(value), Path.cwd()
    if not path.is_absolute():
        return value
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name
