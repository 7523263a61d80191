"""What a benchmark of its own has found, kept with the command and the machine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .environment import describe


def keep(name: str, found: Mapping[str, Any], device: str, path: Path | None) -> None:
    """Write what `python -m benchmarks.NAME` has found as JSON, where there is a path for it."""
    record = {"command": told(name, sys.argv[1:]), **found, "environment": describe(device, torch.get_num_threads())}
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def told(name: str, words: Sequence[str]) -> str:
    """The command of a benchmark as others may give it: of a path that is one machine's own, its last part is left.

    >>> told("fid", ["--json", "/home/me/fid.json", "--images", "100"])
    'python -m benchmarks.fid --json fid.json --images 100'
    """
    shown = [Path(word).name if Path(word).is_absolute() else word for word in words]
    return shlex.join(["python", "-m", f"benchmarks.{name}", *shown])
