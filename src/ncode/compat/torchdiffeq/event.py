"""Events: where along a solution a function of time and state first changes sign, and gradients of that time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...ode import InputError, Solution, SolveError, Status
from .state import Leaves, System

CHUNK = 32  # steps between two looks: what is solved beyond the event is lost
MOST_STEPS = 20_000  # without an event, where options do not say

Crossing = Callable[[Tensor, Leaves], Tensor]


def crossing(event_fn: Any, system: System, t0: Tensor, y0: Leaves) -> Crossing:
    """A function of (t, y) that starts positive (or at zero) and is not once any value of event_fn has changed sign."""
    if not callable(event_fn):
        raise InputError(f"event_fn must be a function of (t, y); given {type(event_fn).__name__}")

    def values(t: Tensor, y: Leaves) -> Tensor:
        c = event_fn(t, system.nest(y))
        if not isinstance(c, Tensor) or c.is_complex() or c.numel() == 0:
            what = f"a tensor of {c.dtype}, shape {tuple(c.shape)}" if isinstance(c, Tensor) else type(c).__name__
            raise InputError(f"event_fn must return a real tensor with at least one element; returned {what}")
        if bool(c.detach().isnan().any()):
            raise InputError(f"event_fn returned nan at t = {t.item():.6g}")
        return c

    with torch.no_grad():
        start = values(t0, y0)
        signs = torch.where(start < 0, -1, 1)
    return lambda t, y: (values(t, y) * signs).min()


@torch.no_grad()
def find(system: System, positive: Crossing, y0: Leaves, t0: float, span: float) -> tuple[float, Leaves]:
    """The first time at which `positive` no longer is, and the state there; `span` is a guess, with the direction.

    Solves a few steps at a time, and looks at the ends of steps. Then bisects on the dense solution, to the
    precision of time.
    """
    device, limit, dt = y0[0].device, system.settings.max_steps or MOST_STEPS, system.settings.step_size
    if dt is not None:
        span = math.copysign(CHUNK * dt, span)  # whole steps, so that all of them lie on one grid

    def over(t: float, y: Leaves) -> bool:
        return bool(positive(torch.tensor(t, dtype=torch.float64, device=device), y) <= 0)

    if over(t0, y0):
        return t0, y0
    t, y, taken = t0, y0, 0
    while taken < limit and math.isfinite(t + span):
        begin, steps = t, min(CHUNK, limit - taken)
        solution = system.solve(y, t, t + span, dt=dt, dense=True, max_steps=steps, throw=False)
        knots = [] if solution.dense is None else solution.dense.ends[0].tolist()
        for knot in knots:
            if knot != t and over(knot, at(solution, knot)):
                return _bisect(solution, over, t, knot)
            t = knot
        status = solution.status[0]
        if status is Status.MAX_STEPS and t == begin:  # all these steps together were too small for time to tell
            status = Status.STEP_TOO_SMALL
        if status not in (Status.OK, Status.MAX_STEPS):
            where = "and event_fn had not changed its sign before"
            raise SolveError([0], [t], [status], None, 1, where)
        y = at(solution, t) if knots else y
        taken += len(knots)
        if status is Status.OK:
            span *= 2
    raise InputError(
        f"no event between t = {t0:.6g} and {t:.6g}, in {taken} steps: event_fn has not changed its sign; check it and"
        ' the direction of time, or raise options["max_num_steps"]'
    )


def at(solution: Solution, t: float) -> Leaves:
    """The leaves at one time of a dense solution."""
    assert solution.dense is not None
    time = torch.full_like(solution.t, t)[:, None]
    return tuple(leaf[0, 0] for leaf in solution.dense(time))


def _bisect(
    solution: Solution, over: Callable[[float, Leaves], bool], before: float, after: float
) -> tuple[float, Leaves]:
    width = sys.float_info.epsilon * max(abs(after), abs(after - before))
    while abs(after - before) > width:
        middle = (before + after) / 2
        before, after = (before, middle) if over(middle, at(solution, middle)) else (middle, after)
    return after, at(solution, after)


def link(system: System, positive: Crossing, t: Tensor, y: Leaves) -> tuple[Tensor, Leaves]:
    """The same event with a time that is differentiable, by the implicit function theorem.

    With c(t, y(t)) = 0 at the event, and y as the gradient knows it, the state at a fixed time, dt = -dc / (dc/dt).
    """
    c = positive(t, y)
    if not any(tensor.requires_grad for tensor in (c, *y)):
        return t, y
    with torch.enable_grad():
        time, *still = (tensor.detach().requires_grad_() for tensor in (t, *y))
        there = positive(time, tuple(still))
    inputs = (time, *still)
    grads = torch.autograd.grad(there, inputs, allow_unused=True, materialize_grads=True) if there.requires_grad else ()
    with torch.no_grad():
        slope = system.slope(t.to(y[0].real.dtype), y)
        terms = [(grad.conj() * k).real.sum() for grad, k in zip(grads, (torch.ones_like(t), *slope), strict=False)]
        rate = sum(terms, torch.zeros_like(t))
    if bool(rate == 0):
        raise InputError(
            f"event_fn does not change along the solution at the event, t = {t.item():.6g}, so the event's time has no"
            " derivative: use odeint(..., event_fn=...), which takes that time as a constant, or torch.no_grad()"
        )
    # Newton's step, without its value: the event has been found already.
    shift = ((c.detach() - c) / rate).to(t.dtype)
    return t + shift, tuple(leaf + k * shift.to(k.real.dtype) for leaf, k in zip(y, slope, strict=True))
