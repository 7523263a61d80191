"""The arguments of `odeint`, checked and joined: a field, a state, times and a solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import check_function
from .adaptive import Adaptive
from .arguments import Tolerance, check_times, read_callbacks, read_options, read_tolerance
from .fixed import Fixed
from .methods import ADAPTIVE, FIXED, check_method, check_precision, kind_of
from .runge_kutta import Field, Method
from .states import Func, Layout, make_field, make_norm, read_state


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


def make_problem(func: Func, y0: Any, t: Any, rtol: Any, atol: Any, method: Any, options: Any) -> Problem:
    """Check the arguments of `odeint`."""
    check_function("func", func, ("t", "y"))
    method = check_method(method)
    layout, y = read_state(y0)
    check_precision(method, layout.narrow or y.dtype)
    read = read_options(method, kind_of(method), options)
    rtol, atol = read_tolerance("rtol", rtol, layout, y), read_tolerance("atol", atol, layout, y)
    one_stage = method == "euler" and read.get("interp") != "cubic"
    t, field = check_times(t, y.device), make_field(func, layout, one_stage)
    if read.get("gradient") == "discrete":
        field = partial(checkpoint, field, use_reentrant=False)
    solver = make_solver(func, method, rtol, atol, read, layout)
    return Problem(func, field, layout, y, t, rtol, atol, method, read, solver)


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
