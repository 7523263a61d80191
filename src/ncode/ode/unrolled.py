"""The "autograd" gradient: the accepted steps as one plain graph, for second derivatives and forward mode.

A forward pass without autograd finds the steps; they are then taken again with it. With a fixed step size between two
numbers the steps are known beforehand, and nothing depends on a value: such a solve can be mapped by torch.func.vmap
and exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import Status
from .field import State
from .join import Outputs
from .problem import Problem
from .record import Moves, Window, spread
from .retake import Times, retake
from .step import like
from .tape import Even, Steps


def planned(problem: Problem) -> Even:
    """The steps of a solve whose times are known numbers."""
    count, dt = problem.fixed_count, problem.dt
    assert count is not None and dt is not None and isinstance(problem.t0_given, float)
    assert isinstance(problem.t1_given, float)
    sign = 1.0 if problem.t1_given >= problem.t0_given else -1.0
    times = [problem.t0_given + sign * dt * i for i in range(count)] + [problem.t1_given]

    def full(value: float) -> Tensor:
        return torch.full_like(problem.t0, value)

    return Even(
        [Moves(None, full(a), full(b), full(b - a), ()) for a, b in pairwise(times)], problem.batch, range(count)
    )


def unroll(problem: Problem, steps: Steps, first: State | None = None) -> Outputs:
    """Take the steps with autograd."""
    field, order = problem.field, steps.order
    dense = problem.dense or problem.ts is not None
    hand_on = dense and problem.tableau.dense_needs_end
    z = _ordered(problem.z0, order)
    rows = _ordered(problem.rows, order)
    saved = _ordered(_start(problem), order)
    states: list[State] = []
    powers: list[State] = []
    slope = first
    for n, size in enumerate(steps.sizes):
        move, part = steps.move(n), tuple(_first(leaf, size) for leaf in z)
        theta, times = _split(problem, [_first(row, size) for row in rows])
        window = Window.of(times.ts.detach(), move) if times.ts is not None else None
        if slope is not None:
            slope = tuple(_first(leaf, size) for leaf in slope)
        stepped, passed = retake(problem, move, part, theta, times, window, dense=dense, first=slope)
        if window is not None:
            saved = tuple(_fill(old, new, window) for old, new in zip(saved, passed, strict=True))
        if problem.dense and stepped.dense is not None:
            states.append(part[: 1 + field.driven])
            powers.append(stepped.dense)
        z = tuple(
            torch.cat([new, old[size:]]) if size < old.shape[0] else new for new, old in zip(stepped.z, z, strict=True)
        )
        slope = stepped.end if hand_on else None
    if order is not None:
        z, saved = _placed(problem.z0, order, z), _placed(_start(problem), order, saved)
    return Outputs(z, saved, _stack(states), _stack(powers))


def lose(outputs: Outputs, status: Tensor) -> Outputs:
    """Nan for the samples that failed."""
    failed = status != Status.OK
    return outputs._replace(
        z=tuple(
            torch.where(mask, torch.nan, leaf) for mask, leaf in zip(like(failed, outputs.z), outputs.z, strict=True)
        )
    )


def _start(problem: Problem) -> State:
    if problem.ts is None:
        return ()
    at_start = problem.ts.detach() == problem.t0.detach()[:, None]
    return tuple(
        torch.where(spread(at_start, leaf), leaf[:, None], torch.nan) for leaf in problem.z0[: 1 + problem.field.driven]
    )


def _fill(old: Tensor, new: Tensor, window: Window) -> Tensor:
    """The saved values with those of one step filled in."""
    rows, columns = new.shape[0], slice(window.low, window.high)
    filled = torch.where(spread(window.inside, new[:, 0]), new, old[:rows, columns])
    some = torch.cat([old[:rows, : window.low], filled, old[:rows, window.high :]], 1)
    return torch.cat([some, old[rows:]]) if rows < old.shape[0] else some


def _ordered(leaves: Sequence[Tensor], order: Tensor | None) -> State:
    return tuple(leaf if order is None else leaf.index_select(0, order) for leaf in leaves)


def _placed(whole: Sequence[Tensor], order: Tensor, some: Sequence[Tensor]) -> State:
    if all(order.shape[0] == leaf.shape[0] for leaf in whole):  # as a rule; and torch.func knows how to map it
        place = torch.argsort(order)
        return tuple(leaf.index_select(0, place) for leaf in some)
    return tuple(a.index_copy(0, order, b) for a, b in zip(whole, some, strict=True))


def _first(leaf: Tensor, size: int) -> Tensor:
    """The first samples. Not as a view where that is all: its gradient would be written into zeros first."""
    return leaf if size == leaf.shape[0] else leaf[:size]


def _split(problem: Problem, rows: Sequence[Tensor]) -> tuple[Sequence[Tensor], Times]:
    count = len(problem.theta)
    t0, t1, *ts = rows[count:]
    return rows[:count], Times(t0, t1, ts[0] if ts else None)


def _stack(entries: list[State]) -> State:
    return tuple(torch.stack(leaves) for leaves in zip(*entries, strict=True))
