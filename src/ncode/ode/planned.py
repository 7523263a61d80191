"""Solves whose steps are known in advance: with a fixed step size between two numbers, as a plain graph.

Nothing depends on a value: such a solve can be mapped by torch.func.vmap and exported.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import Status
from .gradients.unrolled import mask_failed, unroll
from .independence import Positions
from .probe import explain_errors
from .problem import Problem
from .record import StepRecord
from .solution import Stats
from .solver import Solved, step_times
from .system import State
from .tape import EvenSteps


def solve_planned(problem: Problem) -> Solved:
    """Steps that are known in advance, as a plain graph: no value is read on the way."""
    system = problem.system
    start = (system.clock(problem.theta, torch.zeros_like(problem.t0)), problem.z0)
    with explain_errors(system, *start, problem.theta):
        slope = system.bind(problem.theta)(*start)
    if problem.options.implicit:
        positions = Positions((), problem.batch, method=problem.options.jacobian_of)
        positions.check_start(system, *problem.start, tuple(k.detach() for k in slope), problem.midway)
    steps = _planned_steps(problem)
    outputs = unroll(problem, steps, slope)
    finite = torch.stack([leaf.detach().isfinite().reshape(problem.batch, -1).all(1) for leaf in outputs.z]).all(0)
    if problem.ts is not None and not problem.exceeds_max_steps:
        finite = finite & _saved_finite(problem.ts, outputs.saved)
    for leaf in outputs.powers:  # (steps, batch, ...)
        finite = finite & leaf.detach().isfinite().transpose(0, 1).flatten(1).all(1)
    ended = Status.MAX_STEPS if problem.exceeds_max_steps else Status.OK
    codes = torch.where(finite, ended, Status.NOT_FINITE).to(torch.int32)
    count = torch.full_like(codes, len(steps.records))
    step = problem.options.make_step(system, dense=problem.interpolates)
    nfe = count * step.evaluations + int(step.needs_end)
    stats = Stats(nfe, count, torch.zeros_like(count))
    times = step_times(problem, steps.records) if problem.dense and steps.records else None
    has_result = finite if problem.keep_last else codes == Status.OK
    ends = [torch.zeros_like(problem.t0), *(it.t_next for it in steps.records)]
    table = torch.stack(ends, 1) if problem.save_steps else None
    reached = steps.reached(problem.span.detach())
    return Solved(mask_failed(outputs, has_result), stats, codes, reached, times, None, table)


def _planned_steps(problem: Problem) -> EvenSteps:
    """The steps of a solve whose times are known numbers."""
    count, dt, duration = problem.fixed_count, problem.options.dt, problem.duration
    assert count is not None and dt is not None and duration is not None
    times = [math.copysign(dt, duration) * i for i in range(count + 1)]
    if not problem.exceeds_max_steps:
        times[-1] = duration

    def full(value: float) -> Tensor:
        return torch.full_like(problem.t0, value)

    records = [StepRecord(None, full(a), full(b), full(b - a), ()) for a, b in pairwise(times)]
    return EvenSteps(records, problem.batch, range(count))


def _saved_finite(ts: Tensor, saved: State) -> Tensor:
    """Which samples have finite values at all of their saved times; nan pads these."""
    finite = [leaf.detach().isfinite().flatten(2).all(2) if leaf.dim() > 2 else leaf.isfinite() for leaf in saved]
    return (torch.stack(finite).all(0) | ts.detach().isnan()).all(1)
