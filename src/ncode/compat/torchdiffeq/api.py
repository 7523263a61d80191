"""`odeint`, `odeint_adjoint`, `odeint_event` and `odeint_dense`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...ode.api import outside_of_compilation
from .adaptive import Adaptive
from .adjoint import solve_with_adjoint
from .arguments import check_mapping
from .events import attach_time_gradient, crossing_function, forbid_double_backward, solve_until_event
from .problem import make_problem
from .states import Func, State, make_field, read_state

Tolerance = Any  # a number, a sequence of numbers, or a tensor


@outside_of_compilation
def odeint(
    func: Func,
    y0: State,
    t: Tensor,
    *,
    rtol: Tolerance = 1e-7,
    atol: Tolerance = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
) -> Any:
    """Solve dy/dt = func(t, y) from y(t[0]) = y0, and return y at each time of t.

    All of y0 shares one step size. `ncode.solve` gives each sample of a batch its own.

    Args:
        func: func(t, y) -> dy/dt, with t of shape () and y like y0. It may define `callback_step(t, y, dt)`,
            `callback_accept_step` and `callback_reject_step`.
        y0: A tensor of any shape, or a tuple of tensors.
        t: Times, (T,), strictly increasing or decreasing.
        rtol, atol: The tolerance per step: atol + rtol * |y|. One number, one per tensor of a tuple, or a tensor that
            broadcasts with y0.
        method: Adaptive: dopri5 (default), dopri8, tsit5, bosh3, fehlberg2, adaptive_heun. Fixed steps: euler,
            midpoint, heun2, heun3, rk4. Implicit, for stiff problems, also with fixed steps: implicit_euler,
            implicit_midpoint, trapezoid, sdirk2, trbdf2, radauIIA3, radauIIA5, gl4, gl6. Default step: from each time
            of t to the next.
        options: Adaptive: `norm`, `first_step`, `min_step`, `max_step`, `step_t`, `jump_t`, `safety`, `ifactor`,
            `dfactor`, `max_num_steps`, `dtype`. Fixed: `step_size` or `grid_constructor`, `interp`, `perturb`, and
            for implicit methods `max_iters`, the iterations after which a step fails (default 100). For all:
            `gradient`, "autograd" (default) or "discrete", which keeps the states of the stages alone in memory and
            evaluates func again in backward.
        event_fn: event_fn(t, y) -> a tensor. The solve ends where any of its values first changes sign; of t, which
            must have two times, only the first and the direction matter.

    Returns:
        y at the times of t, (T, *y0.shape), a tuple of these if y0 is a tuple. With event_fn, the event's time, without
        a gradient (`odeint_event` has one), and y at t[0] and at that time.

    >>> import math, torch
    >>> y = odeint(lambda t, y: -y, torch.ones(3, dtype=torch.float64), torch.tensor([0.0, 0.5, 1.0]))
    >>> y.shape, bool((y[-1] - math.exp(-1)).abs().max() < 1e-6)
    (torch.Size([3, 3]), True)
    """
    problem = make_problem(func, y0, t, rtol, atol, method, options, ends=event_fn is None)
    solver, field, layout = problem.solver, problem.field, problem.layout
    if event_fn is None:
        return layout.rows(solver.solve(field, problem.y0, problem.t))
    when, states = solve_until_event(solver, field, problem.y0, problem.t, event_fn, layout)
    return when, layout.rows(states)


@outside_of_compilation
def odeint_adjoint(
    func: Func,
    y0: State,
    t: Tensor,
    *,
    rtol: Tolerance = 1e-7,
    atol: Tolerance = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
    adjoint_rtol: Tolerance | None = None,
    adjoint_atol: Tolerance | None = None,
    adjoint_method: str | None = None,
    adjoint_options: dict[str, Any] | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
) -> Any:
    """`odeint` with the adjoint gradient, solved backward in time: memory does not grow with the number of steps.

    The gradient is only as exact as that solve, and has first derivatives only.

    Args:
        func, y0, t, rtol, atol, method, options, event_fn: As in `odeint`.
        adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options: Those of the backward solve. Default: those of the
            forward solve. The norm of `adjoint_options` is "seminorm" or a function of (gradient of t, y, adjoint of y,
            *gradients of parameters). Default: the largest of their norms.
        adjoint_params: The tensors that get a gradient. Default: the parameters of func and all other tensors that it
            uses.

    >>> import torch
    >>> a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    >>> y = odeint_adjoint(lambda t, y: a * y, torch.ones(1, dtype=torch.float64), torch.tensor([0.0, 1.0]))
    >>> y[-1].sum().backward()
    >>> bool((a.grad - a.detach().exp()).abs() < 1e-5)
    True
    """
    if adjoint_method not in (None, method) and options is not None and adjoint_options is None:
        raise InputError(
            f"adjoint_method={adjoint_method!r} differs from method={method!r}, so that adjoint_options cannot be those"
            " of options: pass adjoint_options too"
        )
    for name, given in (("options", options), ("adjoint_options", adjoint_options)):
        if "gradient" in check_mapping(name, given):
            raise InputError(f'{name}["gradient"] is for odeint: odeint_adjoint has the adjoint gradient')
    problem = make_problem(func, y0, t, rtol, atol, method, options, ends=event_fn is None)
    *when, states = solve_with_adjoint(
        problem, event_fn, adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options, adjoint_params
    )
    return (*when, problem.layout.rows(states)) if when else problem.layout.rows(states)


@outside_of_compilation
def odeint_event(
    func: Func,
    y0: State,
    t0: Tensor,
    *,
    event_fn: Callable[[Any, Any], Tensor],
    reverse_time: bool = False,
    odeint_interface: Callable[..., Any] = odeint,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Solve from t0 until any value of event_fn(t, y) changes sign: the event's time, and y at t0 and at that time.

    Both are differentiable with respect to y0, t0 and all tensors that func and event_fn use; first derivatives only.
    If event_fn is zero at t0, the event is at t0. Two sign changes within one step are not detected.

    Args:
        func, y0: As in `odeint`.
        t0: The start time, a tensor with one element.
        event_fn: event_fn(t, y) -> a tensor.
        reverse_time: Whether to solve backward in time.
        odeint_interface: `odeint`, `odeint_adjoint`, or a function like them.
        kwargs: Further arguments for odeint_interface.

    >>> import torch
    >>> y0 = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    >>> t, y = odeint_event(lambda t, y: -y, y0, torch.zeros(1).double(), event_fn=lambda t, y: y - 1.0)
    >>> (slope,) = torch.autograd.grad(t, y0)  # of t = log(y0)
    >>> f"{t:.4f}, {slope.item():.4f}"
    '0.6931, 0.5000'
    """
    if not isinstance(t0, Tensor) or t0.numel() != 1 or not t0.is_floating_point():
        raise InputError(f"t0 must be a floating tensor with one element; given {t0!r}")
    t0 = t0.reshape(())
    away = t0.detach() + (-1.0 if reverse_time else 1.0)
    event_t, solution = odeint_interface(func, y0, torch.stack([t0, away]), event_fn=event_fn, **kwargs)
    layout, start = read_state(y0)
    leaves = (solution,) if layout.shapes is None else solution
    last = leaves[0][-1] if layout.shapes is None else torch.cat([leaf[-1].reshape(-1) for leaf in leaves])
    positive = crossing_function(event_fn, layout, t0.detach().to(event_t.device), start.detach())
    when, last = attach_time_gradient(make_field(func, layout), positive, event_t.detach(), last)
    ends = layout.rows(last[None])
    ends = (ends,) if layout.shapes is None else ends
    values = (torch.cat([leaf[:-1], end]) for leaf, end in zip(leaves, ends, strict=True))
    when, *values = forbid_double_backward(when, *values)
    return when, values[0] if layout.shapes is None else tuple(values)


@outside_of_compilation
def odeint_dense(
    func: Func,
    y0: State,
    t0: Tensor,
    t1: Tensor,
    *,
    rtol: Tolerance = 1e-7,
    atol: Tolerance = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[[Any], Any]:
    """Solve from t0 to t1, and return a function that gives y at any time between them.

    The function takes a number or a tensor without dimensions, and a tensor (T,) for y at several times. Gradients
    reach y0 and all tensors that func uses, but not times.

    Args:
        func, y0, rtol, atol, options: As in `odeint`.
        t0, t1: The ends, numbers or tensors with one element.
        method: One with adaptive steps. Default: dopri5.

    >>> import torch
    >>> y = odeint_dense(lambda t, y: -y, torch.ones(2, dtype=torch.float64), torch.tensor(0.0), torch.tensor(1.0))
    >>> y(0.5).shape, bool((y(0.5) - torch.exp(torch.tensor(-0.5))).abs().max() < 1e-6)
    (torch.Size([2]), True)
    """
    begin, end = float(t0), float(t1)
    times = torch.tensor([begin, end], dtype=torch.float64)
    problem = make_problem(func, y0, times, rtol, atol, method, options)
    if not isinstance(problem.solver, Adaptive):
        raise InputError(f'odeint_dense needs a method with adaptive steps; given "{problem.method}"')
    loop, steps = problem.solver.dense(problem.field, problem.y0, problem.t)
    ends = [step.t1 for step in steps]

    def evaluate(t: Any) -> Any:
        given = torch.as_tensor(t, dtype=torch.float64).detach().cpu()
        if given.dim() > 1:
            raise InputError(f"t must be a number or a tensor (T,); given shape {tuple(given.shape)}")
        if not bool((min(begin, end) <= given).all() & (given <= max(begin, end)).all()):
            raise InputError(f"the solution reaches from {begin:.6g} to {end:.6g}; given t = {given.tolist()}"[:300])
        at = [loop.values(steps[bisect_left(ends, loop.distance(time))], [time]) for time in given.reshape(-1).tolist()]
        states = problem.layout.rows(torch.cat(at) if at else problem.y0[None][:0])
        if given.dim():
            return states
        return states[0] if problem.layout.shapes is None else tuple(leaf[0] for leaf in states)

    return evaluate
