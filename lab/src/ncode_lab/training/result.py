"""What a trial is, and what is recorded about it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self, get_origin, get_type_hints

from ncode import InputError


@dataclass(frozen=True)
class Trial:
    """One model on one problem with one seed.

    Attributes:
        model: Its name in tables: "open-loop".
        dataset: What it is trained on: "annuli", "n=100 patterns=3 degradation=0.5".
        seed: Seed of its weights and data.
        about: Numbers that distinguish the problem from others of the same experiment: {"n": 100, "patterns": 3}.

    >>> Trial("open-loop", "n=100 patterns=3", 0).name
    'open-loop-n=100-patterns=3-seed-0'
    """

    model: str
    dataset: str
    seed: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for its folder, unique within the run."""
        return re.sub(r"[^\w.=+]+", "-", f"{self.model}-{self.dataset}-seed-{self.seed}")


@dataclass(frozen=True)
class Result:
    """The result of a trial, as stored in `result.json` and under `results/`.

    `seconds` is the time of all processes that ran the trial; of a killed one, the time up to its last checkpoint.

    >>> result = Result("annuli", "node", "annuli", "quick", 0, {}, {"error": 1 / 3}, 42, 1.5, "CPU", {}, "", "",
    ...                 curves={"train loss": [2 / 3, 1 / 3]})
    >>> result.as_json()["metrics"], result.as_json()["curves"]
    ({'error': 0.3333333333333333}, {'train loss': [0.666667, 0.333333]})
    """

    experiment: str
    model: str
    dataset: str
    preset: str
    seed: int
    settings: dict[str, Any]
    metrics: dict[str, float]
    parameters: int
    seconds: float
    device: str
    versions: dict[str, str]
    commit: str
    command: str
    about: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """A dict of plain values. Curves have six digits: more would not be visible, and take space."""
        curves = {
            name: [float(f"{each:.6g}") if isinstance(each, float) else each for each in curve]
            for name, curve in self.curves.items()
        }
        return {**asdict(self), "curves": curves}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `as_json` gave. Fields of other versions are ignored; null stands for nan.

        >>> Result.from_json({"experiment": "annuli"})
        Traceback (most recent call last):
        ncode.errors.InputError: not a result: model, dataset, preset, ... missing
        """
        required = [each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING]
        missing = [name for name in required if name not in data]
        if missing:
            raise InputError(f"not a result: {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} missing")
        types = {name: get_origin(hint) or hint for name, hint in get_type_hints(cls).items()}
        known = {name: data[name] for name in types if name in data}
        for name, value in known.items():
            if not isinstance(value, int | float if types[name] is float else types[name]):
                raise InputError(f"not a result: {name} is {value!r:.60}")
        known["seconds"] = _number("seconds", data["seconds"])
        known["metrics"] = {name: _number(name, value) for name, value in data["metrics"].items()}
        known["curves"] = {name: _curve(name, values) for name, values in data.get("curves", {}).items()}
        return cls(**known)


def _curve(name: str, values: Any) -> list[float]:
    if not isinstance(values, list):
        raise InputError(f"not a result: {name} is {values!r:.60}")
    numbers = [_number(name, value) for value in values]
    # Steps stay integers.
    return [value if isinstance(value, int) else number for value, number in zip(values, numbers, strict=True)]


def _number(name: str, value: Any) -> float:
    """A number that JSON holds; null stands for nan."""
    if value is None:
        return math.nan
    try:
        if isinstance(value, int | float):
            return float(value)
    except OverflowError:
        pass
    raise InputError(f"not a result: {name} is {value!r:.60}")


class Column(NamedTuple):
    """A metric as a column of a table.

    Attributes:
        metric: Its name in `Result.metrics`.
        title: The head of the column, with its unit: "error, %".
        digits: Digits after the decimal point.
        scale: Factor applied to the metric first: 100 for per cent.

    >>> Column("error", "error, %", digits=1, scale=100.0).title
    'error, %'
    """

    metric: str
    title: str
    digits: int = 2
    scale: float = 1.0


class Reported(NamedTuple):
    """A number reported in the paper, in the metric's own unit. `note` says how it was read, if that is not obvious.

    >>> Reported("ncode", "cifar10", "accuracy", 0.601, note="read off figure 4").value
    0.601
    """

    model: str
    dataset: str
    metric: str
    value: float
    note: str = ""
