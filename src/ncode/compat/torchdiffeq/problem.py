"""The arguments of `odeint`, checked and joined: a field, a state, times and a solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import InputError, check_function
from ...ode.captures import evaluate_with_time_use
from .adaptive import Adaptive
from .arguments import Tolerance, check_times, read_callbacks, read_options, read_tolerance
from .fixed import Fixed
from .methods import ADAPTIVE, FIXED, check_method, check_precision, kind_of
from .runge_kutta import Field, Method, real_dtype
from .states import Func, Layout, make_field, make_norm, read_state

# The largest rounding of the times that func is told, relative to the interval: in 64 bits, and in fewer.
COARSEST, COARSEST_NARROW = 0.01, 0.1


@dataclass(frozen=True, eq=False)
class Problem:
    """dy/dt = field(t, y) on one tensor, and how to solve it."""

    func: Func  # the user's
    field: Field
    layout: Layout
    y0: Tensor
    t: Tensor
    rtol: Tolerance
    atol: Tolerance
    method: str
    options: dict[str, Any]
    solver: Adaptive | Fixed


def make_problem(
    func: Func, y0: Any, t: Any, rtol: Any, atol: Any, method: Any, options: Any, ends: bool = True
) -> Problem:
    """Check the arguments of `odeint`; `ends`: whether it ends at t[-1], and not at an event."""
    check_function("func", func, ("t", "y"))
    method = check_method(method)
    layout, y = read_state(y0)
    check_precision(method, layout.narrow or y.dtype)
    read = read_options(method, kind_of(method), options)
    rtol, atol = read_tolerance("rtol", rtol, layout, y), read_tolerance("atol", atol, layout, y)
    one_stage = method == "euler" and read.get("interp") != "cubic"
    t, field = check_times(t, y.device), make_field(func, layout, one_stage)
    if ends:
        check_resolution(func, layout.show(y.detach()), t, rtol, atol, method in ADAPTIVE)
    if read.get("gradient") == "discrete":
        field = partial(checkpoint, field, use_reentrant=False)
    solver = make_solver(func, method, rtol, atol, read, layout)
    return Problem(func, field, layout, y, t, rtol, atol, method, read, solver)


def check_resolution(func: Func, y: Any, t: Tensor, rtol: Tolerance, atol: Tolerance, adaptive: bool) -> None:
    """Refuse times that are rounded too much for a func that uses them, as `ncode.solve` does.

    Below 64 bits only those that func could hardly tell apart: its code may live with the rest, as in torchdiffeq.
    """
    first, last = t[0].item(), t[-1].item()
    dtype = real_dtype(y if isinstance(y, Tensor) else y[0])  # of the times that func is told
    latest, span, limit = max(abs(first), abs(last)), abs(last - first), COARSEST_NARROW
    if dtype == torch.float64:
        tight = adaptive and isinstance(rtol, float) and isinstance(atol, float)
        limit = min(30 * max(rtol, atol, 10 * torch.finfo(dtype).eps), COARSEST) if tight else COARSEST
    rounding = torch.finfo(dtype).eps * latest
    if not span or rounding <= limit * span:
        return
    copied = y.clone() if isinstance(y, Tensor) else tuple(leaf.clone() for leaf in y)
    with torch.no_grad():
        _, uses_time = evaluate_with_time_use(func, torch.tensor(first, dtype=dtype, device=t.device), copied)
    if uses_time:
        tight = limit < COARSEST
        hint = "" if dtype == torch.float64 else ", or use a y0 of 64 bits"
        raise InputError(
            f"times near {latest:.6g} are rounded by about {rounding:.2g} in {dtype}, too much for an interval of"
            f" length {span:.3g}{' at these tolerances' if tight else ''}, and func uses t: let time start at 0"
            f"{', loosen rtol' if tight else ''}{hint}"
        )


def make_solver(
    func: Func, method: str, rtol: Tolerance, atol: Tolerance, options: dict[str, Any], layout: Any, suffix: str = ""
) -> Adaptive | Fixed:
    """A solver with checked options. `layout` shows the state to norms and callbacks; `suffix` is of the latter."""
    fixed = method in FIXED
    callbacks = read_callbacks(func, method, fixed, layout.show, suffix)
    own = {key: value for key, value in options.items() if key not in ("norm", "gradient", "grid_constructor")}
    own["precision"] = layout.narrow
    if not fixed:
        rtol = _above_noise(rtol, ADAPTIVE[method], layout.narrow)
        return Adaptive(ADAPTIVE[method], rtol, atol, make_norm(options.get("norm"), layout), callbacks, **own)
    make_grid = options.get("grid_constructor")
    grid = None if make_grid is None else lambda y, t: make_grid(func, layout.show(y), t)
    return Fixed(FIXED[method], callbacks, grid_constructor=grid, **own)


def _above_noise(rtol: Tolerance, method: Method, dtype: torch.dtype | None) -> Tolerance:
    """A relative tolerance that is at least what the rounding of func to 16 bits adds to the error of a step."""
    if dtype is None:
        return rtol
    least = torch.finfo(dtype).eps * sum(abs(weight) for _, weight in method.error)
    return rtol.clamp(min=least) if isinstance(rtol, Tensor) else max(rtol, least)
