"""`Run`: what is known of a run, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..training.result import Column, Reported, Result


@dataclass(frozen=True)
class Drawing:
    """A figure: its name, the sentence below it, and its files, SVG before PNG.

    >>> Drawing("flow", "The flow of a NODE.", (Path("figures/flow.svg"),)).name
    'flow'
    """

    name: str
    caption: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Run:
    """A run, as far as it can be read.

    Attributes:
        name: Of its folder.
        record: What `run.json` says: experiment, title, question, preset, settings, options, command, ...
        columns, paper: Those of the record.
        results: One a trial.
        drawings: Its figures.
        notes: A sentence for each thing that is missing or damaged.
        unfinished: Whether it was stopped, or is still going on.

    >>> Run("annuli-1", {"title": "Two annuli"}, (), (), (), (), ()).text("title")
    'Two annuli'
    """

    name: str
    record: Mapping[str, Any]
    columns: tuple[Column, ...]
    paper: tuple[Reported, ...]
    results: tuple[Result, ...]
    drawings: tuple[Drawing, ...]
    notes: tuple[str, ...]
    unfinished: bool = False

    def text(self, key: str) -> str:
        """A text of the record, or nothing."""
        value = self.record.get(key)
        return value if isinstance(value, str) else ""

    def part(self, key: str) -> dict[str, Any]:
        """A dict of the record, or an empty one."""
        value = self.record.get(key)
        return dict(value) if isinstance(value, Mapping) else {}
