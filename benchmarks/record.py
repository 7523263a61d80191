"""What a benchmark of its own has found, kept with the command and the machine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .environment import describe


def keep(name: str, found: Mapping[str, Any], device: str, path: Path | None) -> None:
    """Write what `python -m benchmarks.NAME` has found as JSON, where there is a path for it."""
    command = shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])
    record = {"command": command, **found, "environment": describe(device, torch.get_num_threads())}
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
