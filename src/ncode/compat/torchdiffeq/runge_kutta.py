"""One explicit Runge-Kutta step on one tensor, in one time: what fixed and adaptive steps share.

Time is a Python float unless t requires a gradient; a step is one autograd graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ode.tableau import Tableau

HALF = (torch.float16, torch.bfloat16)

Field = Callable[[Tensor, Tensor], Tensor]
Weights = tuple[tuple[int, float], ...]  # (index of a slope, weight), without zeros


class Method:
    """A tableau, prepared for the loops."""

    implicit = False

    def __init__(self, tableau: Tableau):
        self.name, self.order, self.nodes = tableau.name, tableau.order, tableau.c
        self.rows = tuple(map(_nonzero, tableau.a))
        self.advance, self.error = _nonzero(tableau.b), _nonzero(tableau.error)
        self.dense = tableau.dense
        self.end_slope = tableau.error_needs_end or tableau.dense_needs_end
        self.inner = tuple(c for c in self.nodes if c < 1)  # the others, at the end of a step, come last
        self.at_end = len(self.nodes) - len(self.inner) + self.end_slope

    def take_step(
        self, f: Field, y: Tensor, step: float | Tensor, times: Sequence[Tensor], max_iters: int
    ) -> tuple[Tensor, list[Tensor]]:
        """The state after a step, and the slopes of its stages; `times` are those of the nodes."""
        slopes: list[Tensor] = []
        return advance(f, self, y, step, times, slopes), slopes


def _nonzero(row: Sequence[float]) -> Weights:
    return tuple((i, weight) for i, weight in enumerate(row) if weight)


def combine(y: Tensor, step: float | Tensor, weights: Weights, slopes: Sequence[Tensor]) -> Tensor:
    """y + step * sum of weighted slopes; a tensor as step keeps its gradient."""
    if not isinstance(step, Tensor):
        for i, weight in weights:
            y = torch.add(y, slopes[i], alpha=step * weight)
        return y
    if not weights:
        return y
    (first, weight), *others = weights
    total = slopes[first] * weight
    for i, weight in others:
        total = torch.add(total, slopes[i], alpha=weight)
    return y + step.to(real_dtype(y)) * total


def advance(
    f: Field, method: Method, y: Tensor, step: float | Tensor, times: Sequence[Tensor], slopes: list[Tensor]
) -> Tensor:
    """The state after a step. `slopes`, the first ones or none, is filled with those of all stages."""
    for i in range(len(slopes), len(method.rows)):
        slopes.append(f(times[i], combine(y, step, method.rows[i], slopes)))
    return combine(y, step, method.advance, slopes)


class Step(NamedTuple):
    """A step from t0 to t1. Adaptive steps have the loop's time, the distance from t[0]."""

    t0: Any  # a float, or of fixed steps with a gradient a tensor
    t1: float
    y0: Tensor
    y1: Tensor
    length: float | Tensor  # signed, in the user's time
    slopes: list[Tensor]
    shift: Tensor | None = None  # of t0, with the gradient of t[0]; its value is 0


class Bracket(NamedTuple):
    """Two times, in the order of the solve, with an event between, and the states there."""

    before: float
    after: float
    state_at: Callable[[float], Tensor]


def real_dtype(y: Tensor) -> torch.dtype:
    """The dtype of time for a state."""
    return y.real.dtype if y.is_complex() else y.dtype


def time_shift(t: Tensor) -> Tensor | None:
    """A number 0 with the gradient of t[0], or None.

    Where step sizes are constants, all times of a solve move with the first one.
    """
    return t[0] - t[0].detach() if t.requires_grad and torch.is_grad_enabled() else None


def towards(t: Tensor, sign: float) -> Tensor:
    """The next number after t in a direction, with the gradient of t."""
    still = t.detach()
    after = torch.nextafter(still, torch.full_like(still, sign * float("inf")))
    return t + (after - still) if t.requires_grad else after
