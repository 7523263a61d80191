"""Reads result files that lie outside a run folder: one JSON object each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncode import InputError

from ..training.result import Result
from .order import in_order
from .read import as_result, read_columns, read_object
from .run import Run


def read_loose(files: Sequence[Path], about: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """One run for each experiment and preset."""
    groups: dict[tuple[str, str], list[Result]] = {}
    damaged: list[str] = []
    for path in files:
        try:
            result = as_result(read_object(path))
            groups.setdefault((result.experiment, result.preset), []).append(result)
        except InputError as error:
            damaged.append(f"{Path(path.parent.name, path.name)} is left out: {error}.")
    if not groups and damaged:
        raise InputError(f"there is no result that can be read: {' '.join(damaged)}")
    runs = [_loose_run(*key, results, about.get(key[0], {})) for key, results in groups.items()]
    if damaged:
        runs[0] = replace(runs[0], notes=(*damaged, *runs[0].notes))
    return runs


def _loose_run(experiment: str, preset: str, results: Sequence[Result], about: Mapping[str, Any]) -> Run:
    notes: list[str] = []
    seen = [(result.model, result.dataset, result.seed) for result in results]
    for model, dataset, seed in dict.fromkeys(key for key in seen if seen.count(key) > 1):
        notes.append(
            f"There is more than one result of {model} on {dataset} with seed {seed}: the spread is too small."
        )
    columns, paper = read_columns(about, notes)
    record = {**_shared(results), **about, "experiment": experiment, "preset": preset}
    ordered = in_order(results, about.get("models", ()))
    return Run(experiment, record, columns, paper, tuple(ordered), (), tuple(notes))


def _shared(results: Sequence[Result]) -> dict[str, Any]:
    """What all results say of themselves; where they differ, each thing that one says."""
    texts = {name: ", ".join(_values(results, name)) for name in ("device", "commit")}
    first = results[0]
    alike: dict[str, Any] = {}
    for name in ("settings", "versions"):
        value = getattr(first, name)
        alike[name] = {key: v for key, v in value.items() if all(getattr(r, name).get(key) == v for r in results)}
    return {**texts, **alike, "command": "\n".join(_values(results, "command"))}


def _values(results: Sequence[Result], name: str) -> list[str]:
    return list(dict.fromkeys(str(getattr(result, name)) for result in results))
