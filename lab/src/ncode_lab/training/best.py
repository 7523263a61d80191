"""`Best`: the best evaluation so far, and the weights it was of."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from ncode import InputError

BEST_STEP = "best step"


class Best:
    """Keeps a copy of the weights of the best evaluation; of two that are equal, the earlier.

    Args:
        metric: Of an evaluation, what is to be large; with a "-" before it, what is to be small.

    Attributes:
        kept: What a checkpoint needs: the step, its value, its evaluation and its weights. None before the first.

    >>> import torch
    >>> best = Best("-error")
    >>> for step, error in ((10, 0.5), (20, 0.25), (30, 0.75), (40, math.nan)):
    ...     best.see(step, {"error": error}, lambda: {"weight": torch.tensor(error)})
    >>> best.weights, best.evaluation({})
    ({'weight': tensor(0.2500)}, {'error': 0.25, 'best step': 20})
    """

    def __init__(self, metric: str):
        self._metric, self._sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
        self.kept: dict[str, Any] | None = None

    def see(self, step: int, evaluation: dict[str, float], weights: Callable[[], dict[str, Tensor]]) -> None:
        """Look at the evaluation after a step. Only if it is the best so far are the weights asked for."""
        if self._metric not in evaluation:
            raise InputError(_no_such(self._metric, list(evaluation)))
        value = self._sign * evaluation[self._metric]
        # Nothing is larger than nan, nor is nan larger than anything.
        if value > (-math.inf if self.kept is None else self.kept["value"]):
            self.kept = {"step": step, "value": value, "evaluation": evaluation, "weights": weights()}

    @property
    def weights(self) -> dict[str, Tensor] | None:
        """The best ones; None where no evaluation gave a number."""
        return None if self.kept is None else self.kept["weights"]

    def evaluation(self, last: dict[str, float]) -> dict[str, float]:
        """The best one and its step; the last one and nan where none gave a number."""
        if self.kept is None:
            return {**last, BEST_STEP: math.nan}
        return {**self.kept["evaluation"], BEST_STEP: self.kept["step"]}


def _no_such(metric: str, names: list[str]) -> str:
    close = get_close_matches(metric, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"keep_best names {metric!r}, and evaluate returns only: {', '.join(names)}{hint}"
