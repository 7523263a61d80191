"""What must be equal at the end, read from the files of runs."""

from __future__ import annotations

import json
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import torch

import ncode


class Lost(Exception):
    """Something is lost, wrong, or shown as a traceback."""


def results_in(disk: Path) -> dict[Path, bytes]:
    """The result files of all runs on a disk."""
    return {path: path.read_bytes() for path in disk.glob("*/trials/*/result.json")}


def summarise(disk: Path) -> dict[str, Any]:
    """What a finished run found: metrics, parameters and curves of each trial."""
    found = {}
    for path, content in results_in(disk).items():
        result = json.loads(content)
        curves = {name: curve for name, curve in result["curves"].items() if "second" not in name}
        found[path.parent.name] = {"metrics": result["metrics"], "parameters": result["parameters"], "curves": curves}
    return found


def table_in(text: str, header: str) -> list[str]:
    """The table that a sweep prints: from the line with the names of its settings to an empty line."""
    return list(takewhile(bool, dropwhile(lambda line: not line.startswith(f"{header} "), text.splitlines())))


def difference(found: Any, expected: Any, name: str = "") -> str:
    """The first place where two summaries differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in expected.keys() | found.keys():
            if found.get(key) != expected.get(key):
                return difference(found.get(key), expected.get(key), f"{name}/{key}")
    return f"{name} is {found!r:.300}, expected {expected!r:.300}"


def is_unfinished(record: Path) -> bool:
    """Whether run.json says that the run has not finished. If it is torn, nobody knows."""
    try:
        return not json.loads(record.read_text()).get("finished")
    except ValueError:
        return True


def make_block(seed: int, hidden: int) -> ncode.NCODE:
    """A small model of random weights."""
    torch.manual_seed(seed)
    return ncode.NCODE(ncode.dynamics.MLP(2, hidden=hidden), t1=1.0 + seed)


def same_block(one: ncode.NCODE, other: ncode.NCODE) -> bool:
    """Whether two models have the same settings and weights."""
    weights, others = one.state_dict(), other.state_dict()
    return (
        one.settings.t1 == other.settings.t1
        and weights.keys() == others.keys()
        and all(bool(torch.equal(weight, others[name])) for name, weight in weights.items())
    )
