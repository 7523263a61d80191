"""Taking an accepted step again, with autograd: what "discrete" and "autograd" gradients have in common.

Step sizes count as constants, apart from the scale of the interval: a step from t0 + tau (t1 - t0) of length
delta (t1 - t0) keeps its tau and delta. So gradients with respect to t0 and t1 are exact too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .field import State
from .problem import Problem
from .record import Moves, Window
from .step import Step, Stepped, evaluate


class Times(NamedTuple):
    """The times that a gradient may be wanted for, a row a sample."""

    t0: Tensor
    t1: Tensor
    ts: Tensor | None

    @property
    def wanted(self) -> bool:
        """Whether any of them takes part in autograd."""
        return any(time is not None and time.requires_grad for time in self)


def retake(
    problem: Problem,
    move: Moves,
    z: State,
    theta: Sequence[Tensor],
    times: Times,
    window: Window | None,
    *,
    dense: bool = False,
    first: State | None = None,
) -> tuple[Stepped, State]:
    """The step, and the values at the saved times that it passes (within `window`, each (rows, columns, ...))."""
    t, h = move.t, move.h
    if times.wanted:
        t0, span = times.t0.detach(), times.t1.detach() - times.t0.detach()
        span = torch.where(span == 0, 1.0, span)
        tau, delta = (t - t0) / span, h / span
        t, h = times.t0 + tau * (times.t1 - times.t0), delta * (times.t1 - times.t0)
    step = Step(problem.field, problem.tableau, dense=dense or window is not None)
    stepped = step(t, h, z, theta, first)
    if window is None or stepped.dense is None:
        return stepped, ()
    sigma = window.sigma
    if times.wanted and times.ts is not None:
        columns = times.ts[:, window.low : window.high]
        whole = torch.where(window.inside, columns - t[:, None], 0.0)
        sigma = whole / torch.where(window.inside, h[:, None], 1.0)
    return stepped, evaluate(z, stepped.dense, sigma)
