"""metrics.jsonl: one line a reading."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import explain_os_errors, to_json_value, write_file


class MetricsLog:
    """The metrics of a trial, a JSON object a line: {"step", "kind": "train" or "evaluation", "fit", ...}.

    Args:
        path: The file.
        writes: False in processes that are to leave it alone.

    >>> from tempfile import TemporaryDirectory
    >>> place = TemporaryDirectory()
    >>> log = MetricsLog(Path(place.name) / "metrics.jsonl")
    >>> log.write(1, "train", "model", {"loss": 0.5})
    >>> log.write(2, "train", "model", {"loss": 0.25})
    >>> log.curves()
    {'train step': [1, 2], 'train loss': [0.5, 0.25]}
    >>> place.cleanup()
    """

    def __init__(self, path: Path, writes: bool = True):
        self.path, self.writes = path, writes

    def write(self, step: int, kind: str, fit: str, values: dict[str, float]) -> None:
        """Add a line."""
        if not self.writes:
            return
        line = json.dumps(to_json_value({"step": step, "kind": kind, "fit": fit, **values}))
        with explain_os_errors(self.path), open(self.path, "ab") as file:
            file.write(line.encode() + b"\n")

    def cut(self, fit: str, step: int) -> None:
        """Forget what a fit wrote after a step, and the line that a killed process left half-written."""
        if not self.writes or not self.path.is_file():
            return
        kept = [line for line in self._lines() if line["fit"] != fit or line["step"] <= step]
        write_file(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def curves(self, max_points: int = 200) -> dict[str, list[float]]:
        """One list a quantity, thinned to at most so many points. The name of a fit other than "model" comes first."""
        if not self.writes or not self.path.is_file():
            return {}
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in self._lines():
            prefix = "" if line["fit"] == "model" else f"{line['fit']} "
            groups[prefix + line["kind"]].append(line)
        return {
            key: curve
            for name, lines in groups.items()
            for key, curve in _curves(name, _thin(lines, max_points)).items()
        }

    def _lines(self) -> list[dict[str, Any]]:
        found = []
        for text in self.path.read_bytes().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                # Only the last line can be torn.
                continue
            if isinstance(line, dict) and {"fit", "step", "kind"} <= line.keys():
                found.append(line)
        return found


def _curves(name: str, lines: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    keys = dict.fromkeys(key for line in lines for key in line if key not in ("kind", "fit"))
    return {f"{name} {key}": [_number(line.get(key)) for line in lines] for key in keys}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _thin(lines: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Evenly, with the first and the last."""
    if len(lines) <= most:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (most - 1))] for place in range(most)]
