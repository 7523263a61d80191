"""Timing on a device, and the JSON record of a benchmark with its command and machine."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..environment import describe


class Stopwatch:
    """Measures laps; waits for the device at the end of each."""

    def __init__(self, device: str):
        self._cuda = torch.device(device).type == "cuda"
        self._last = self._now()

    def lap(self) -> float:
        """Return the seconds since the last lap, and start a new one."""
        before, self._last = self._last, self._now()
        return self._last - before

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def write_record(name: str, found: Mapping[str, Any], device: str, path: Path | None) -> None:
    """Write what `python -m benchmarks.lab.NAME` measured as JSON, if there is a path."""
    environment = describe(device, torch.get_num_threads())
    record = {"command": command(name, sys.argv[1:]), **found, "environment": environment}
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def command(name: str, arguments: Sequence[str]) -> str:
    """Return the command of a benchmark; of absolute paths, which other machines do not have, only the last part.

    >>> command("fid", ["--json", "/home/me/fid.json", "--images", "100"])
    'python -m benchmarks.lab.fid --json fid.json --images 100'
    """
    shown = [Path(each).name if Path(each).is_absolute() else each for each in arguments]
    return shlex.join(["python", "-m", f"benchmarks.lab.{name}", *shown])
