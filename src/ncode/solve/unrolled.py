"""The "autograd" gradient: the accepted steps as one plain graph, for second derivatives and forward mode.

A forward pass without autograd finds the steps; they are then taken again with it. With a fixed step size between two
numbers the steps are known beforehand, and nothing depends on a value: such a solve can be mapped by torch.func.vmap
and exported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .field import State
from .join import Outputs
from .problem import Problem
from .record import Moves, Window, spread
from .retake import Stepper, Times, retake
from .status import Status
from .step import Step, like


def planned(problem: Problem) -> list[Moves]:
    """The steps of a solve whose times are known numbers."""
    count, dt = problem.fixed_count, problem.dt
    assert count is not None and dt is not None and isinstance(problem.t0_given, float)
    assert isinstance(problem.t1_given, float)
    sign = 1.0 if problem.t1_given >= problem.t0_given else -1.0
    times = [problem.t0_given + sign * dt * i for i in range(count)] + [problem.t1_given]

    def full(value: float) -> Tensor:
        return torch.full_like(problem.t0, value)

    return [Moves(None, full(a), full(b), full(b - a), ()) for a, b in pairwise(times)]


def unroll(
    problem: Problem, moves: Sequence[Moves], prepare: Callable[[Step], Stepper], first: State | None
) -> Outputs:
    """Take the steps with autograd."""
    field, ts = problem.field, problem.ts
    dense = problem.dense or ts is not None
    hand_on = dense and problem.tableau.dense_needs_end
    whole: State = problem.z0
    saved = _start(problem)
    states: list[State] = []
    powers: list[State] = []
    slope = first
    rows: Tensor | None = None
    z, theta, times = whole, problem.theta, Times(problem.t0, problem.t1, ts)
    for move in moves:
        if move.rows is not rows:
            whole, rows, slope = _put(whole, rows, z), move.rows, None
            z, theta, times = _select(problem, whole, rows)
        window = Window.of(ts.detach(), move) if ts is not None else None
        stepped, passed = retake(problem, prepare, move, z, theta, times, window, dense=dense, first=slope)
        if window is not None:
            saved = tuple(_fill(old, new, window, rows) for old, new in zip(saved, passed, strict=True))
        if problem.dense and stepped.dense is not None:
            states.append(z[: 1 + field.driven])
            powers.append(stepped.dense)
        z, slope = stepped.z, stepped.end if hand_on else None
    whole = _put(whole, rows, z)
    return Outputs(whole, saved, _stack(states), _stack(powers))


def lose(outputs: Outputs, status: Tensor) -> Outputs:
    """Nan for the samples that failed."""
    failed = status != Status.OK
    return outputs._replace(
        z=tuple(
            torch.where(mask, torch.nan, leaf)
            for mask, leaf in zip(like(failed, outputs.z), outputs.z, strict=True)
        )
    )


def _start(problem: Problem) -> State:
    if problem.ts is None:
        return ()
    at_start = problem.ts.detach() == problem.t0.detach()[:, None]
    return tuple(
        torch.where(spread(at_start, leaf), leaf[:, None], torch.nan)
        for leaf in problem.z0[: 1 + problem.field.driven]
    )


def _fill(old: Tensor, new: Tensor, window: Window, rows: Tensor | None) -> Tensor:
    columns = torch.arange(window.low, window.high, device=old.device)
    some = old if rows is None else old[rows]
    filled = some.index_copy(
        1, columns, torch.where(spread(window.inside, new[:, 0]), new, some[:, window.low : window.high])
    )
    return filled if rows is None else old.index_copy(0, rows, filled)


def _put(whole: State, rows: Tensor | None, z: State) -> State:
    return z if rows is None else tuple(a.index_copy(0, rows, b) for a, b in zip(whole, z, strict=True))


def _select(problem: Problem, whole: State, rows: Tensor | None) -> tuple[State, Sequence[Tensor], Times]:
    every = (*whole, *problem.theta, problem.t0, problem.t1, *(() if problem.ts is None else (problem.ts,)))
    some = [leaf if rows is None else leaf[rows] for leaf in every]
    n, m = len(whole), len(whole) + len(problem.theta)
    return (
        tuple(some[:n]),
        tuple(some[n:m]),
        Times(some[m], some[m + 1], some[m + 2] if problem.ts is not None else None),
    )


def _stack(entries: list[State]) -> State:
    return tuple(torch.stack(leaves) for leaves in zip(*entries, strict=True))
