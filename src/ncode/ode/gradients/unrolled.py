"""The "autograd" gradient: the accepted steps as one plain graph, for second derivatives and forward mode.

A forward pass without autograd finds the steps; they are then replayed with it. With a fixed step size between two
numbers the steps are known in advance, and nothing depends on a value: such a solve can be mapped by torch.func.vmap
and exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...errors import Status
from ..problem import Problem
from ..record import EvenSteps, StepRecord, Steps, Window, find_window, mask_like
from ..system import State, expand_like, first_rows, map_tensors
from .discrete import replay_step
from .function import Outputs


def planned_steps(problem: Problem) -> EvenSteps:
    """The steps of a solve whose times are known numbers."""
    count, dt = problem.fixed_count, problem.options.dt
    assert count is not None and dt is not None and isinstance(problem.t0_given, float)
    assert isinstance(problem.t1_given, float)
    sign = 1.0 if problem.t1_given >= problem.t0_given else -1.0
    times = [problem.t0_given + sign * dt * i for i in range(count)] + [problem.t1_given]

    def full(value: float) -> Tensor:
        return torch.full_like(problem.t0, value)

    records = [StepRecord(None, full(a), full(b), full(b - a), ()) for a, b in pairwise(times)]
    return EvenSteps(records, problem.batch, range(count))


def unroll(problem: Problem, steps: Steps, first: State | None = None) -> Outputs:
    """Take the steps with autograd."""
    order, dense, shown = steps.order, problem.interpolates, problem.system.shown
    reuses_end = dense and problem.options.tableau.dense_needs_end
    z = _ordered(problem.z0, order)
    inputs = map_tensors(lambda leaf: _ordered((leaf,), order)[0], problem.inputs)
    saved = _ordered(_saved_at_start(problem), order)
    states: list[State] = []
    powers: list[State] = []
    slope = first
    for n, size in enumerate(steps.sizes):
        record, part = steps.step(n), tuple(first_rows(leaf, size) for leaf in z)
        given = map_tensors(lambda leaf, size=size: first_rows(leaf, size), inputs)
        window = find_window(given.ts.detach(), record) if given.ts is not None else None
        if slope is not None:
            slope = tuple(first_rows(leaf, size) for leaf in slope)
        stepped, passed = replay_step(problem, record, part, given, window, dense=dense, first=slope)
        if window is not None:
            saved = tuple(_fill(old, new, window) for old, new in zip(saved, passed, strict=True))
        if problem.dense and stepped.dense is not None:
            states.append(part[:shown])
            powers.append(stepped.dense)
        z = tuple(
            torch.cat([new, old[size:]]) if size < old.shape[0] else new for new, old in zip(stepped.z, z, strict=True)
        )
        slope = stepped.end if reuses_end else None
    if order is not None:
        z, saved = _in_sample_order(problem.z0, order, z), _in_sample_order(_saved_at_start(problem), order, saved)
    return Outputs(z, saved, _stack(states), _stack(powers))


def mask_failed(outputs: Outputs, status: Tensor) -> Outputs:
    """The outputs with nan for the samples that failed."""
    failed = status != Status.OK
    return outputs._replace(
        z=tuple(
            torch.where(mask, torch.nan, leaf)
            for mask, leaf in zip(expand_like(failed, outputs.z), outputs.z, strict=True)
        )
    )


def _saved_at_start(problem: Problem) -> State:
    if problem.ts is None:
        return ()
    at_start = problem.ts.detach() == problem.t0.detach()[:, None]
    return tuple(
        torch.where(mask_like(at_start, leaf), leaf[:, None], torch.nan) for leaf in problem.z0[: problem.system.shown]
    )


def _fill(old: Tensor, new: Tensor, window: Window) -> Tensor:
    """The saved values with those of one step filled in."""
    rows, columns = new.shape[0], slice(window.low, window.high)
    filled = torch.where(mask_like(window.inside, new[:, 0]), new, old[:rows, columns])
    some = torch.cat([old[:rows, : window.low], filled, old[:rows, window.high :]], 1)
    return torch.cat([some, old[rows:]]) if rows < old.shape[0] else some


def _ordered(leaves: Sequence[Tensor], order: Tensor | None) -> State:
    return tuple(leaf if order is None else leaf.index_select(0, order) for leaf in leaves)


def _in_sample_order(whole: Sequence[Tensor], order: Tensor, some: Sequence[Tensor]) -> State:
    if all(order.shape[0] == leaf.shape[0] for leaf in whole):  # the usual case, which torch.func can map
        place = torch.argsort(order)
        return tuple(leaf.index_select(0, place) for leaf in some)
    return tuple(a.index_copy(0, order, b) for a, b in zip(whole, some, strict=True))


def _stack(entries: list[State]) -> State:
    return tuple(torch.stack(leaves) for leaves in zip(*entries, strict=True))
