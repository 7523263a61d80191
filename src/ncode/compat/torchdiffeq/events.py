"""Events: the time at which a function of time and state first changes sign, and its gradient."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, SolveError, Status, check_function
from ...ode import Solution
from .system import Leaves, System, slope_of

CHUNK = 32  # steps between two checks: steps beyond the event are wasted
MAX_STEPS = 20_000  # without an event; default of options["max_num_steps"]

Crossing = Callable[[Tensor, Leaves], Tensor]


def crossing_function(event_fn: Any, system: System, t0: Tensor, y0: Leaves) -> Crossing:
    """A function of (t, y) that is at least 0 at first, and negative once a value of event_fn has changed its sign."""
    check_function("event_fn", event_fn, ("t", "y"))

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
def find_event(system: System, positive: Crossing, y0: Leaves, t0: float, span: float) -> tuple[float, Leaves]:
    """The first time at which `positive` is not positive, and the state there; the sign of `span` is the direction.

    Solves a few steps at a time and checks the ends of steps, then bisects on the dense solution to the precision of
    time.
    """
    device, limit, dt = y0[0].device, system.max_steps or MAX_STEPS, system.step_size
    if dt is not None:
        span = math.copysign(CHUNK * dt, span)  # whole steps, so that all lie on one grid

    def crossed(t: float, y: Leaves) -> bool:
        return bool(positive(torch.tensor(t, dtype=torch.float64, device=device), y) <= 0)

    if crossed(t0, y0):
        return t0, y0
    t, y, taken = t0, y0, 0
    while taken < limit and math.isfinite(t + span):
        begin, steps = t, min(CHUNK, limit - taken)
        solution = system.solve(y, t, t + span, dt=dt, dense=True, max_steps=steps, throw=False)
        knots = [] if solution.dense is None else solution.dense.ends[0].tolist()
        for knot in knots:
            if knot != t and crossed(knot, _leaves_at(solution, knot)):
                return _bisect(solution, crossed, t, knot)
            t = knot
        status = solution.status[0]
        if status is Status.MAX_STEPS and t == begin:  # all steps together were too small to change the time
            status = Status.STEP_TOO_SMALL
        if status not in (Status.OK, Status.MAX_STEPS):
            where = "and event_fn had not changed its sign before"
            raise SolveError([0], [t], [status], None, 1, where)
        y = _leaves_at(solution, t) if knots else y
        taken += len(knots)
        if status is Status.OK:
            span *= 2
    raise InputError(
        f"no event between t = {t0:.6g} and {t:.6g}, in {taken} steps: event_fn has not changed its sign; check it and"
        ' the direction of time, or raise options["max_num_steps"]'
    )


def _leaves_at(solution: Solution, t: float) -> Leaves:
    """The leaves at one time of a dense solution."""
    assert solution.dense is not None
    time = torch.full_like(solution.t, t)[:, None]
    return tuple(leaf[0, 0] for leaf in solution.dense(time))


def _bisect(
    solution: Solution, crossed: Callable[[float, Leaves], bool], before: float, after: float
) -> tuple[float, Leaves]:
    width = sys.float_info.epsilon * max(abs(after), abs(after - before))
    while abs(after - before) > width:
        middle = (before + after) / 2
        before, after = (before, middle) if crossed(middle, _leaves_at(solution, middle)) else (middle, after)
    return after, _leaves_at(solution, after)


def attach_time_gradient(system: System, positive: Crossing, t: Tensor, y: Leaves) -> tuple[Tensor, Leaves]:
    """The same event with a differentiable time, by the implicit function theorem.

    With c(t, y(t)) = 0 at the event, and gradients of y taken at a fixed time, dt = -dc / (dc/dt).
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
        slope = slope_of(system.func, system.nested, t.to(y[0].real.dtype), y)
        terms = [(grad.conj() * k).real.sum() for grad, k in zip(grads, (torch.ones_like(t), *slope), strict=False)]
        rate = sum(terms, torch.zeros_like(t))
    if bool(rate == 0):
        raise InputError(
            f"event_fn does not change along the solution at the event, t = {t.item():.6g}, so the event's time has no"
            " derivative: use odeint(..., event_fn=...), which takes that time as a constant, or torch.no_grad()"
        )
    # Newton's step, whose value is zero: only its gradient is used.
    shift = ((c.detach() - c) / rate).to(t.dtype)
    return t + shift, tuple(leaf + k * shift.to(k.real.dtype) for leaf, k in zip(y, slope, strict=True))
