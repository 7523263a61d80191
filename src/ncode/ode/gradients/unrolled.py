"""The "autograd" gradient: the accepted steps as one plain graph, for second derivatives and forward mode.

A forward pass without autograd finds the steps, unless they are known in advance (planned.py); they are then replayed
with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import all_finite
from ..problem import Problem
from ..record import Window, find_window, mask_like
from ..system import State, expand_like, first_rows, map_tensors, where
from ..tape import Steps
from .function import Outputs
from .replay import replay_step


def unroll(problem: Problem, steps: Steps, first: State | None = None) -> Outputs:
    """Take the steps with autograd."""
    order, dense, shown = steps.order, problem.interpolates, problem.system.shown
    reuses_end = problem.options.make_step(problem.system, dense=dense).needs_end and not problem.system.bounded
    start = _start_slope(problem, first)
    z = _ordered(problem.z0, order)
    if steps.held is not None:
        ok, others = steps.held
        z = where(ok, z, others)
    inputs = map_tensors(lambda leaf: _ordered((leaf,), order)[0], problem.inputs)
    at_start = saved_at_start(problem, start)
    saved = _ordered(at_start, order)
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
        z, saved = _in_sample_order(problem.z0, order, z), _in_sample_order(at_start, order, saved)
    if start is not None:
        still = expand_like(problem.span.detach() == 0, z)
        ends = _shifted(problem.z0, start, problem.span)
        z = tuple(torch.where(mask, end, leaf) for mask, end, leaf in zip(still, ends, z, strict=True))
    return Outputs(z, saved, _stack(states), _stack(powers))


def mask_failed(outputs: Outputs, kept: Tensor) -> Outputs:
    """The outputs with nan for the samples that have no result."""
    masks = expand_like(kept, outputs.z)
    return outputs._replace(
        z=tuple(torch.where(mask, leaf, torch.nan) for mask, leaf in zip(masks, outputs.z, strict=True))
    )


def _start_slope(problem: Problem, first: State | None) -> State | None:
    """dz/dt at t0, where a time that needs a gradient may coincide with t0."""
    times = [time for time in (problem.span, problem.ts) if time is not None and time.requires_grad]
    if not times or first is not None:
        return first if times else None
    if not any(bool((time == 0).any()) for time in times):
        return None
    system, theta = problem.system, problem.theta
    slope = system.bind(theta)(system.clock(theta, torch.zeros_like(problem.t0)), problem.z0)
    # The graph of a sample that failed would spoil the gradients of the others.
    return slope if all_finite(slope) else tuple(k.detach() for k in slope)


def _shifted(z0: State, slope: State, time: Tensor) -> State:
    """z0 + time * dz/dt, for times (batch,) since t0 that are 0: only their gradients matter."""
    shifts = expand_like(torch.where(time == 0, time, 0.0), z0)
    return tuple(z + by.to(z.real.dtype) * k for z, by, k in zip(z0, shifts, slope, strict=True))


def saved_at_start(problem: Problem, slope: State | None = None) -> State:
    """The values at saved times that coincide with t0, nan at the others; `slope` gives these times a gradient."""
    if problem.ts is None:
        return ()
    shown = problem.z0[: problem.system.shown]
    at_start = problem.ts.detach() == 0
    values = [leaf[:, None] for leaf in shown]
    if slope is not None:
        columns = [_shifted(shown, slope[: len(shown)], time) for time in problem.ts.unbind(1)]
        values = [torch.stack(leaves, 1) for leaves in zip(*columns, strict=True)] or values
    pairs = zip(shown, values, strict=True)
    return tuple(torch.where(mask_like(at_start, leaf), value, torch.nan) for leaf, value in pairs)


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
