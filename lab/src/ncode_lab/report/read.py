"""Files of a run, as objects. What is wrong with one is said in a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from ncode import InputError

from ..training.result import Column, Reported, Result

Line = TypeVar("Line", Column, Reported)

NEEDED = tuple(f.name for f in fields(Result) if f.default is MISSING and f.default_factory is MISSING)
KNOWN = tuple(f.name for f in fields(Result))
KINDS = {
    "experiment": str,
    "model": str,
    "dataset": str,
    "preset": str,
    "seed": int,
    "settings": dict,
    "metrics": dict,
    "parameters": int,
    "seconds": (int, float),
    "versions": dict,
}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.name} is missing") from error
    # RecursionError: brackets nested without end are damage too.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path.name} holds a {type(value).__name__}; one JSON object was expected")
    return value


def as_result(data: Mapping[str, Any]) -> Result:
    """The result that a JSON object describes. Fields that this version does not know are left out.

    >>> as_result({"experiment": "annuli"})
    Traceback (most recent call last):
    ncode.errors.InputError: it is no result: it has no model, dataset, preset, ...
    """
    missing = [name for name in NEEDED if name not in data]
    if missing:
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise InputError(f"it is no result: it has no {named}")
    for name, kind in KINDS.items():
        if not isinstance(data[name], kind):
            raise InputError(f"it is no result: {name} is {data[name]!r:.60}")
    known: dict[str, Any] = {name: data[name] for name in KNOWN if name in data}
    known["metrics"] = {str(name): _number(name, value) for name, value in data["metrics"].items()}
    return Result(**known)


def read_result(path: Path) -> Result:
    """The result in a file."""
    data = read_object(path)
    try:
        return as_result(data)
    except InputError as error:
        raise InputError(f"{path.name} is left out: {error}") from error


def as_lines(kind: type[Line], value: object) -> tuple[Line, ...]:
    """Columns, or numbers of the paper, as `run.json` has them: lists of values, or of objects with names.

    >>> as_lines(Column, [["error", "error, %", 1, 100.0], {"metric": "nfe", "title": "NFE"}])[1]
    Column(metric='nfe', title='NFE', digits=2, scale=1.0)
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"a list of {kind.__name__} was expected; given {value!r:.60}")
    return tuple(_line(kind, item) for item in value)


def read_columns(record: Mapping[str, Any], notes: list[str]) -> tuple[tuple[Column, ...], tuple[Reported, ...]]:
    """Columns and the paper's numbers of a record. What cannot be read is left out, and noted."""
    columns: tuple[Column, ...] = ()
    paper: tuple[Reported, ...] = ()
    try:
        columns = as_lines(Column, record.get("columns", []))
        paper = as_lines(Reported, record.get("paper", []))
    except InputError as error:
        notes.append(f"The columns of the table, or the paper's numbers, cannot be read: {error}.")
    return columns, paper


def _line(kind: type[Line], item: object) -> Line:
    try:
        if isinstance(item, Mapping):
            item = kind(**item)
        elif isinstance(item, Sequence) and not isinstance(item, str):
            item = kind(*item)
    except TypeError as error:
        raise InputError(f"{item!r:.60} is no {kind.__name__}: {error}") from error
    if not isinstance(item, kind):
        raise InputError(f"{item!r:.60} is no {kind.__name__}: give its fields {', '.join(kind._fields)}")
    numbers = (item.digits, item.scale) if isinstance(item, Column) else (item.value,)
    if not all(isinstance(number, int | float) for number in numbers):
        raise InputError(f"{item!r:.80} holds a text where a number was expected")
    return item


def _number(name: object, value: object) -> float:
    """A metric. JSON proper has no word for what is not finite, so null stands for it."""
    if value is None:
        return float("nan")
    if not isinstance(value, int | float):
        raise InputError(f"it is no result: the metric {name} is {value!r:.60}, and not a number")
    return float(value)
