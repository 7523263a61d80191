"""`odeint`, `odeint_adjoint` and `odeint_event`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from .events import attach_time_gradient, crossing_function, find_event
from .system import Func, Leaves, State, System, adjoint_tolerance, check_adjoint, leaves_of, make_system

FIRST_ONLY = "this gradient has first derivatives only (create_graph=False)"
AUTOGRAD = 'for second ones, use odeint with options={"gradient": "autograd"}'


def odeint(
    func: Func,
    y0: State,
    t: Tensor,
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
) -> Any:
    """Solve dy/dt = func(t, y) from y(t[0]) = y0, and return y at each time of t.

    y0 is one system: samples of a batch inside y0 share a step size. `ncode.solve` gives each its own, and is faster.

    Args:
        func: func(t, y) -> dy/dt, with t of shape () and y like y0.
        y0: A tensor of any shape, or a tuple of tensors of one dtype.
        t: Times, (T,), strictly increasing or decreasing.
        rtol, atol: The tolerance per step: atol + rtol * |y|, root mean square over the elements of the state.
        method: Adaptive: dopri5 (default), dopri8, tsit5, bosh3, adaptive_heun. Fixed steps: euler, midpoint, heun2,
            rk4. Default step: from each time of t to the next.
        options: For all: `max_num_steps`; `gradient`, "discrete" (default) or "autograd" (has second derivatives, needs
            more memory). Adaptive: `safety`, `ifactor`, `dfactor`. Fixed: `step_size` or `grid_constructor`.
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
    return _odeint(*make_system(func, y0, method, rtol, atol, options), t, event_fn)


def odeint_adjoint(
    func: Func,
    y0: State,
    t: Tensor,
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
    adjoint_rtol: float | None = None,
    adjoint_atol: float | None = None,
    adjoint_method: str | None = None,
    adjoint_options: dict[str, Any] | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
) -> Any:
    """`odeint` with the adjoint gradient, solved backward in time: memory does not grow with the number of steps.

    The gradient is only as exact as that solve. `odeint` has an exact one, and keeps one state per step.

    Args:
        func, y0, t, rtol, atol, method, options, event_fn: As in `odeint`.
        adjoint_rtol, adjoint_atol: The tighter of these and of rtol, atol is used in both directions.
        adjoint_method, adjoint_options: Those of the forward solve, or None; "norm" may be "seminorm", which is
            always used.
        adjoint_params: Not needed: gradients reach every tensor that func uses and that requires one.

    >>> import torch
    >>> a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    >>> y = odeint_adjoint(lambda t, y: a * y, torch.ones(1, dtype=torch.float64), torch.tensor([0.0, 1.0]))
    >>> y[-1].sum().backward()
    >>> bool((a.grad - a.detach().exp()).abs() < 1e-5)
    True
    """
    wrong = [type(parameter).__name__ for parameter in adjoint_params or () if not isinstance(parameter, Tensor)]
    if wrong:
        raise InputError(f"adjoint_params must be tensors; given {wrong[0]}: leave them out, all parameters are found")
    rtol, atol = adjoint_tolerance("rtol", rtol, adjoint_rtol), adjoint_tolerance("atol", atol, adjoint_atol)
    system, leaves = make_system(func, y0, method, rtol, atol, options, "adjoint")
    check_adjoint(method, options, adjoint_method, adjoint_options)
    return _odeint(system, leaves, t, event_fn)


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
    system, start = make_system(func, y0, None, 0.0, 0.0, None)
    leaves: Leaves = solution if system.nested else (solution,)
    positive = crossing_function(event_fn, system, t0.detach().to(event_t.device), start)
    when, last = attach_time_gradient(system, positive, event_t.detach(), tuple(leaf[-1] for leaf in leaves))
    values = (torch.cat([leaf[:-1], new[None]]) for leaf, new in zip(leaves, last, strict=True))
    when, *values = _forbid_double_backward(FIRST_ONLY, (when, *values))
    return when, system.nest(tuple(values))


def _odeint(system: System, y0: Leaves, t: Any, event_fn: Any) -> Any:
    _check_times(t)
    t = t.to(y0[0].device)
    if event_fn is not None:
        when, values = _solve_until_event(system, y0, t, event_fn)
    elif system.fixed and system.step_size is None:
        when, values = None, _solve_on_grid(system, y0, t)
    else:
        solution = system.solve(y0, *_ends(t), dt=system.step_size, save_at=t)
        when, values = None, leaves_of(solution.xs, solution.thetas)
    if system.arguments["gradient"] != "autograd":
        values = _forbid_double_backward(f"{FIRST_ONLY}: {AUTOGRAD}", values)
    return system.nest(values) if when is None else (when, system.nest(values))


def _solve_until_event(system: System, y0: Leaves, t: Tensor, event_fn: Any) -> tuple[Tensor, Leaves]:
    """Find the event, and solve again up to its time for the gradient."""
    if len(t) != 2:
        raise InputError(
            f"with event_fn, t must have two times, the start and another for the direction; given {len(t)}"
        )
    if system.fixed and system.step_size is None:
        raise InputError('with event_fn, a method with fixed steps needs options={"step_size": ...}')
    positive = crossing_function(event_fn, system, t[0].detach(), y0)
    begin, away = t.detach().tolist()
    when, found = find_event(system, positive, y0, begin, away - begin)
    solution = system.solve(y0, _ends(t)[0], when, dt=system.step_size)
    # The value is that of the dense solution, on which event_fn is zero to the last digit.
    solved = zip(leaves_of(solution.x, solution.theta), found, strict=True)
    last = [leaf + (value - leaf).detach() for leaf, value in solved]
    values = tuple(torch.stack([first, leaf]) for first, leaf in zip(y0, last, strict=True))
    return torch.tensor(when, dtype=t.dtype, device=t.device), values


def _solve_on_grid(system: System, y0: Leaves, t: Tensor) -> Leaves:
    """One fixed step between every two times of a grid. Default grid: t."""
    make = system.grid
    if make is None and system.arguments["gradient"] != "adjoint" and not t.requires_grad and _is_uniform(t):
        begin, away = _ends(t)
        solution = system.solve(y0, begin, away, dt=abs(away - begin) / (len(t) - 1), save_at=t)
        return leaves_of(solution.xs, solution.thetas)
    grid = t if make is None else _check_grid(make(system.func, system.nest(y0), t), t)
    sign = torch.sign(t[-1] - t[0]).detach()
    y, rows = y0, [tuple(leaf[None] for leaf in y0)]
    lengths = grid.detach().double().diff().abs().tolist()
    pairs = pairwise(grid if grid.requires_grad else grid.tolist())
    for (a, b), length in zip(pairs, lengths, strict=True):
        passed = t[((t - a) * sign > 0) & ((t - b) * sign <= 0)]
        solution = system.solve(y, a, b, dt=length, save_at=passed)
        y = leaves_of(solution.x, solution.theta)
        rows.append(leaves_of(solution.xs, solution.thetas))
    return tuple(torch.cat(leaves) for leaves in zip(*rows, strict=True))


def _ends(t: Tensor) -> tuple[Any, Any]:
    """The first and the last time, as numbers if they need no gradient, which is faster."""
    return (t[0], t[-1]) if t.requires_grad else (t[0].item(), t[-1].item())


def _is_uniform(t: Tensor) -> bool:
    """Whether times are evenly spaced, up to their rounding."""
    steps = t.double().diff()
    return len(t) > 1 and bool((steps - steps.mean()).abs().max() <= 4 * torch.finfo(t.dtype).eps * t.abs().max())


def _check_times(t: Any) -> None:
    if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() != 1 or len(t) == 0:
        what = f"{t.dtype} of shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
        raise InputError(f"t must be a floating tensor of shape (T,), with at least one time; given {what}")
    steps = t.detach().diff()
    if not bool(t.detach().isfinite().all() and ((steps > 0).all() or (steps < 0).all())):
        raise InputError(f"t must be finite and strictly increasing or decreasing; given {t.detach().tolist()}"[:300])


def _check_grid(grid: Any, t: Tensor) -> Tensor:
    _check_times(grid)
    if grid[0] != t[0] or grid[-1] != t[-1]:
        begin, *_, away = t.tolist()
        raise InputError(
            f'options["grid_constructor"] must give times from t[0] to t[-1], {begin:.6g} to {away:.6g};'
            f" gave {grid.tolist()}"[:300]
        )
    return grid


def _forbid_double_backward(sentence: str, leaves: Leaves) -> Leaves:
    def refuse(grad: Tensor) -> None:
        if torch.is_grad_enabled():  # in backward, only with create_graph=True
            raise InputError(sentence)

    # Copies, since views could not be changed in place by the caller.
    leaves = tuple(leaf.clone() if leaf.requires_grad else leaf for leaf in leaves)
    for leaf in leaves:
        if leaf.requires_grad:
            leaf.register_hook(refuse)
    return leaves
