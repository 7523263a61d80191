"""Events: the time at which a function of time and state first changes its sign, and the gradient of that time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, check_function
from .adaptive import Adaptive
from .fixed import Fixed
from .runge_kutta import Field, real_dtype
from .states import Layout

Crossing = Callable[[Tensor, Tensor], Tensor]
FIRST_ONLY = "the gradient of an event has first derivatives only (create_graph=False)"
EPSILON = torch.finfo(torch.float64).eps


def crossing_function(event_fn: Any, layout: Layout, t0: Tensor, y0: Tensor) -> Crossing:
    """A function of (t, y) that is at least 0 at first, and negative once a value of event_fn has changed its sign."""
    check_function("event_fn", event_fn, ("t", "y"))

    def values(t: Tensor, y: Tensor) -> Tensor:
        c = event_fn(t, layout.show(y))
        if not isinstance(c, Tensor) or c.is_complex() or c.numel() == 0:
            what = f"a tensor of {c.dtype}, shape {tuple(c.shape)}" if isinstance(c, Tensor) else type(c).__name__
            raise InputError(f"event_fn must return a real tensor with at least one element; returned {what}")
        return c

    with torch.no_grad():
        signs = torch.where(values(t0, y0) < 0, -1, 1)
    return lambda t, y: (values(t, y) * signs).min()


def solve_until_event(
    solver: Adaptive | Fixed, f: Field, y0: Tensor, t: Tensor, event_fn: Any, layout: Layout
) -> tuple[Tensor, Tensor]:
    """The time of the event, without a gradient, and the states (2, ...) at t[0] and then, with theirs."""
    if len(t) != 2:
        raise InputError(f"with event_fn, t must have two times: the start, and another for the direction; given {t!r}")
    dtype = real_dtype(y0) if isinstance(solver, Fixed) else torch.float64
    begin = t[0].detach().to(dtype)
    positive = crossing_function(event_fn, layout, begin, y0)

    @torch.no_grad()
    def value(time: float, y: Tensor) -> float:
        c = float(positive(torch.tensor(time, dtype=dtype, device=y.device), y))
        if c != c:
            raise InputError(f"event_fn returned nan at t = {time:.6g}")
        return c

    start = value(begin.item(), y0)
    if start <= 0:
        return t[0].detach().clone(), torch.stack([y0, y0])
    last = [start]  # values at the ends of the current step

    def crossed(time: float, y: Tensor) -> bool:
        last.append(value(time, y))
        return last[-1] <= 0

    bracket = solver.until_event(f, y0, t, crossed)
    with torch.no_grad():
        when = _find_root(
            lambda time: value(time, bracket.state_at(time)), bracket.before, bracket.after, last[-2], last[-1]
        )
    return torch.tensor(when, dtype=t.dtype, device=t.device), torch.stack([y0, bracket.state_at(when)])


def _find_root(value: Callable[[float], float], a: float, b: float, va: float, vb: float) -> float:
    """The first time at which value(t) <= 0, to the precision of time; va = value(a) > 0 >= vb = value(b).

    The ITP method (Oliveira and Takahashi, 2020): regula falsi, kept so close to the middle of the bracket that it
    never takes longer than bisection plus one step. Where the value is exactly 0, bisection looks for the first such
    time, unless the value just before is positive.
    """
    width, precision = abs(b - a), 2 * EPSILON * max(abs(a), abs(b), abs(b - a))
    radius, probed = precision, False
    while radius < width:
        radius *= 2
    while abs(b - a) > precision:
        middle = time = (a + b) / 2
        if vb < 0:
            falsi, towards_middle = (va * b - vb * a) / (va - vb), 1.0
            if middle < falsi:
                towards_middle = -1.0
            truncation = min(0.2 / width * (b - a) ** 2, abs(middle - falsi))
            guess = falsi + towards_middle * truncation
            reach = max(radius - abs(b - a) / 2, 0.0)
            guess = guess if abs(guess - middle) <= reach else middle - towards_middle * reach
            time = guess if min(a, b) < guess < max(a, b) else middle
        elif not probed:
            time, probed = b - math.copysign(precision, b - a), True
        v = value(time)
        a, va, b, vb = (time, v, b, vb) if v > 0 else (a, va, time, v)
        radius /= 2
    return b


def attach_time_gradient(f: Field, positive: Crossing, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same event with a differentiable time, by the implicit function theorem.

    With c(t, y(t)) = 0 at the event, and gradients of y taken at a fixed time, dt = -dc / (dc/dt).
    """
    c = positive(t, y)
    if not (c.requires_grad or y.requires_grad):
        return t, y
    with torch.enable_grad():
        time, still = t.detach().requires_grad_(), y.detach().requires_grad_()
        there = positive(time, still)
    with torch.no_grad():
        slope, rate = f(t.to(real_dtype(y)), y), torch.zeros_like(t)
        if there.requires_grad:
            by_time, by_state = torch.autograd.grad(there, (time, still), allow_unused=True, materialize_grads=True)
            rate = by_time + (by_state.conj() * slope).real.sum()
    # Newton's step, whose value is zero: only its gradient is used.
    constant = bool(rate == 0)
    shift = ((c.detach() - c) / (1.0 if constant else rate)).to(t.dtype)
    if not shift.requires_grad:
        return t, y
    if constant:
        shift.register_hook(_no_derivative(t.item()))
    return t + shift, y + slope * shift.to(real_dtype(y))


def _no_derivative(t: float) -> Callable[[Tensor], None]:
    def refuse(grad: Tensor) -> None:
        raise InputError(
            f"event_fn does not change along the solution at the event, t = {t:.6g}, so the event's time has no"
            " derivative: use odeint(..., event_fn=...), which takes that time as a constant"
        )

    return refuse


def forbid_double_backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, whose gradients refuse a graph of their own."""

    def refuse(grad: Tensor) -> None:
        if torch.is_grad_enabled():  # in backward, only with create_graph=True
            raise InputError(FIRST_ONLY)

    # Copies, since views could not be changed in place by the caller.
    tensors = tuple(tensor.clone() if tensor.requires_grad else tensor for tensor in tensors)
    for tensor in tensors:
        if tensor.requires_grad:
            tensor.register_hook(refuse)
    return tensors
