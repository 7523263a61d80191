"""Reads a run folder, whole or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncode import InputError

from ..training.result import Result
from .read import read_columns, read_object, read_result
from .run import Drawing, Run

RECORD = "run.json"


def read_folder(folder: Path) -> Run:
    """The run in a folder: as much as is there."""
    notes: list[str] = []
    record: Mapping[str, Any] = {}
    try:
        record = read_object(folder / RECORD)
    except InputError as error:
        notes.append(f"What this run was asked to do is not known: {error}.")
    results = _read_trials(folder, record, notes)
    columns, paper = read_columns(record, notes)
    drawings = _drawings(folder, record, notes)
    return Run(
        folder.resolve().name, record, columns, paper, results, drawings, tuple(notes), not record.get("finished")
    )


def _read_trials(folder: Path, record: Mapping[str, Any], notes: list[str]) -> tuple[Result, ...]:
    """In the record's order; those that it does not name come last."""
    named = record.get("trials")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    # A name with a separator in it could point outside the run.
    names = [name for name in names if Path(name).name == name]
    there = {path.parent.name: path for path in sorted(folder.glob("trials/*/result.json"))}
    results = []
    for name in dict.fromkeys([*names, *there]):
        if name in there:
            try:
                results.append(read_result(there[name]))
            except InputError as error:
                notes.append(f"Trial {name}: {error}.")
    absent = [name for name in names if name not in there]
    if not record.get("finished"):
        total = f" of {len(names)}" if names else ""
        notes.insert(0, f"This run has not finished. Trials that are done: {len(there)}{total}.")
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        notes.append(f"No result yet from {', '.join(absent[:5])}{more}.")
    return tuple(results)


def _drawings(folder: Path, record: Mapping[str, Any], notes: list[str]) -> tuple[Drawing, ...]:
    """Those that the record names, then others that lie there: a run that was stopped has not named them yet."""
    there: dict[str, list[Path]] = {}
    for ending in ("svg", "png"):
        for path in sorted(folder.glob(f"figures/*.{ending}")):
            there.setdefault(path.stem, []).append(path)
    listed = record.get("figures")
    captions: dict[str, str] = {}
    for figure in listed if isinstance(listed, list) else []:
        if isinstance(figure, Mapping) and isinstance(figure.get("name"), str):
            captions[figure["name"]] = str(figure.get("caption") or figure["name"])
    notes += [f"The figure {name} is missing." for name in captions if name not in there]
    names = [name for name in dict.fromkeys([*captions, *there]) if name in there]
    return tuple(Drawing(name, captions.get(name, name), tuple(there[name])) for name in names)
