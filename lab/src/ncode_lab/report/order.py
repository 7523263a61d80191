"""The order of results, whatever their files are called."""

from __future__ import annotations

from collections.abc import Sequence

from ..training.result import Result


def in_order(results: Sequence[Result], models: Sequence[str]) -> list[Result]:
    """Results as a run has them: problems by their numbers, models in the order named, and then any others.

    >>> about = ("", 0, {}, {}, 1, 1.0, "", {}, "", "")
    >>> found = [Result("memory", "node", f"n {n}", *about, {"n": n}) for n in (10, 2)]
    >>> found += [Result("memory", "ncode", f"n {n}", *about, {"n": n}) for n in (10, 2)]
    >>> [(each.dataset, each.model) for each in in_order(found, ["ncode", "node"])]
    [('n 2', 'ncode'), ('n 2', 'node'), ('n 10', 'ncode'), ('n 10', 'node')]
    """
    found = sorted(results, key=lambda result: [_padded(value) for value in result.about.values()])
    problems = list(dict.fromkeys(result.dataset for result in found))
    return sorted(found, key=lambda result: (problems.index(result.dataset), _place(models, result.model)))


def _place(models: Sequence[str], model: str) -> int:
    return models.index(model) if model in models else len(models)


def _padded(value: object) -> str:
    """So that numbers are in order as words: 10 after 2."""
    return f"{value:020.6f}" if isinstance(value, int | float) else str(value)
