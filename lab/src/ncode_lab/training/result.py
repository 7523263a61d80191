"""What a trial is, and what is written down about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Trial:
    """One model, on one problem, with one seed: what is trained in one go.

    Attributes:
        model: Its name in tables: "open-loop".
        dataset: What it is trained on: "annuli", "n=100 patterns=3 degradation=0.5".
        seed: Of its weights and data.
        about: What tells the problem from others of the same experiment, as numbers: {"n": 100, "patterns": 3}.

    >>> Trial("open-loop", "n=100 patterns=3", 0).name
    'open-loop-n=100-patterns=3-seed-0'
    """

    model: str
    dataset: str
    seed: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for its folder, that no other trial of the run has."""
        return re.sub(r"[^\w.=+]+", "-", f"{self.model}-{self.dataset}-seed-{self.seed}")


@dataclass(frozen=True)
class Result:
    """One JSON object a trial, as it stands in `result.json` and under `results/`.

    `seconds` are those of all lives of the trial together: a life that was killed counts up to its last checkpoint.

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
        """A dict of plain values, the numbers of curves with six digits: more are not seen, and take room."""
        return {
            **asdict(self),
            "curves": {name: [_short(each) for each in curve] for name, curve in self.curves.items()},
        }


def _short(value: float) -> float:
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Column(NamedTuple):
    """A metric as a table shows it.

    Attributes:
        metric: Its name in `Result.metrics`.
        title: The head of the column, with its unit: "error, %".
        digits: After the point.
        scale: What the metric is multiplied by first: 100 for per cent.

    >>> Column("error", "error, %", digits=1, scale=100.0).title
    'error, %'
    """

    metric: str
    title: str
    digits: int = 2
    scale: float = 1.0


class Reported(NamedTuple):
    """A number that the paper prints, in the metric's own unit. `note` says how it was read, where that is open.

    >>> Reported("ncode", "cifar10", "accuracy", 0.601, note="read off figure 4").value
    0.601
    """

    model: str
    dataset: str
    metric: str
    value: float
    note: str = ""
