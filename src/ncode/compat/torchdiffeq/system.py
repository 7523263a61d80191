"""torchdiffeq's arguments, translated: its methods and options, and one system as a batch of one.

A tensor state y becomes x of shape (1, *y.shape). A tuple becomes x and a control: its first tensor is x, and the
others are a control driven by feedback. So nothing is copied into one long vector, and a large tensor does not hide the
error of a small one, such as the log-density of a continuous normalising flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._torch_private import is_symbolic
from ...errors import InputError, SolveError, check_choice, check_count, check_function, check_number
from ...ode import PID, Solution, solve
from ...ode.problem import GRADIENTS, check_state

Leaves = tuple[Tensor, ...]
State = Tensor | Leaves
Func = Callable[[Any, Any], Any]

ADAPTIVE = {name: name for name in ("dopri5", "dopri8", "bosh3", "tsit5")} | {"adaptive_heun": "heun"}
FIXED = {name: name for name in ("euler", "midpoint", "rk4")} | {"heun2": "heun"}

_MULTISTEP = 'ncode has one-step methods only: use "dopri5", or "rk4" with a step_size'
_IMPLICIT = 'ncode has explicit methods only: use "dopri5" unless the system is stiff'
NO_METHOD = {
    "heun3": 'use "rk4", or ncode.solve(..., method="bosh3", dt=...), which is of order 3 too',
    "fehlberg2": 'use "adaptive_heun", which is of order 2 too, or "bosh3"',
    "scipy_solver": 'use "dopri5", "dopri8" or "bosh3", which SciPy calls RK45, DOP853 and RK23',
    **dict.fromkeys(("explicit_adams", "implicit_adams", "fixed_adams"), _MULTISTEP),
    **dict.fromkeys(("implicit_euler", "implicit_midpoint", "trapezoid", "sdirk2", "trbdf2"), _IMPLICIT),
    **dict.fromkeys(("radauIIA3", "radauIIA5", "gl2", "gl4", "gl6"), _IMPLICIT),
}

FOR_ADAPTIVE = ("safety", "ifactor", "dfactor", "dtype")
FOR_FIXED = ("step_size", "grid_constructor", "interp", "perturb")
FOR_ALL = ("max_num_steps", "gradient")
LOWEST = {"step_size": 0, "safety": 0, "dfactor": 0, "ifactor": 1}
PID_NAMES = {"safety": "safety", "dfactor": "smallest", "ifactor": "largest"}
_BREAK = "solve up to that time, and from there in a second call"
NO_OPTION = {
    "norm": "the error is the root mean square over the state's elements: scale the state's parts to weigh them",
    "first_step": "the first step is found from the slope at t[0]: leave it out",
    "min_step": "a step that grows too small ends the solve with a sentence: leave it out",
    "max_step": "steps follow from rtol and atol: tighten them, or use a method with fixed steps",
    "step_t": _BREAK,
    "jump_t": _BREAK,
}
ONLY_VALUE = {
    "dtype": (torch.float64, "it is the precision of time"),
    "interp": ("cubic", "values between steps are of the method's own order here"),
    "perturb": (False, f"where the field jumps, {_BREAK}"),
}
CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


@dataclass(frozen=True, eq=False)
class System:
    """dy/dt = func(t, y), and how to solve it. States are tuples of leaves here, also if the user's is a tensor."""

    func: Func
    nested: bool  # whether the user's y is a tuple
    fixed: bool  # whether the method has fixed steps
    step_size: float | None
    grid: Callable[[Any, Any, Tensor], Tensor] | None
    max_steps: int | None  # None: no limit
    arguments: Mapping[str, Any]  # of `ncode.solve`

    def nest(self, leaves: Leaves) -> State:
        """Leaves in the form of the user's state."""
        return leaves if self.nested else leaves[0]

    def solve(self, y0: Leaves, t0: float | Tensor, t1: float | Tensor, **more: Any) -> Solution:
        """`ncode.solve` on the batch of one."""
        cache: list[Any] = []
        x, *others = (leaf[None] for leaf in y0)
        arguments: dict[str, Any] = {**self.arguments, "max_steps": self.max_steps or 2**31 - 1, **more}
        # `solve` finds parameters in partials, not in objects of other classes.
        if others:
            arguments |= {"theta": tuple(others), "feedback": partial(_others, self.func, self.nested, cache)}
        try:
            return solve(partial(_first, self.func, self.nested, cache), x, t0, t1, **arguments)
        except SolveError as error:
            where = 'max_steps is options["max_num_steps"] here'
            raise SolveError(error.samples, error.times, error.statuses, None, 1, where) from None


def make_system(
    func: Func, y0: Any, method: Any, rtol: Any, atol: Any, options: Any, gradient: str | None = None
) -> tuple[System, Leaves]:
    """The system and the leaves of y0, of arguments of `odeint`; `gradient` overrides that of `options`."""
    method = "dopri5" if method is None else method
    if isinstance(method, str) and method in NO_METHOD:
        raise InputError(f'method "{method}" is not available: {NO_METHOD[method]}')
    fixed = check_choice("method", method, (*ADAPTIVE, *FIXED)) in FIXED
    options = _check_options(method, fixed, options)
    if gradient is not None and "gradient" in options:
        raise InputError('odeint_adjoint has the "adjoint" gradient: for another, use odeint')
    arguments = {
        "method": (FIXED if fixed else ADAPTIVE)[method],
        "rtol": _tolerance("rtol", rtol),
        "atol": _tolerance("atol", atol),
        "gradient": check_choice("gradient", gradient or options.get("gradient", "discrete"), GRADIENTS),
        "step_rule": PID(**{ours: options[name] for name, ours in PID_NAMES.items() if name in options}),
    }
    _check_function(func)
    leaves, nested = _check_state(y0), not isinstance(y0, Tensor)
    step_size, grid, limit = map(options.get, ("step_size", "grid_constructor", "max_num_steps"))
    return System(func, nested, fixed, step_size, grid, limit, arguments), leaves


def adjoint_tolerance(name: str, forward: Any, backward: Any) -> float:
    """The tighter of the two, which is used in both directions."""
    return min(_tolerance(name, forward), _tolerance(f"adjoint_{name}", forward if backward is None else backward))


def check_adjoint(method: Any, options: Any, adjoint_method: Any, adjoint_options: Any) -> None:
    """Refuse arguments for the adjoint that differ from those of the forward solve."""
    if adjoint_method is not None and adjoint_method != (method or "dopri5"):
        raise InputError(
            f"adjoint_method={adjoint_method!r} differs from method={method!r}: ncode solves the adjoint with the"
            " method of the forward solve; leave adjoint_method out"
        )
    wanted = dict(_mapping("adjoint_options", adjoint_options))
    norm = wanted.pop("norm", "seminorm")
    if not (isinstance(norm, str) and norm == "seminorm"):
        raise InputError('adjoint_options["norm"] can only be "seminorm", which is always used here; leave it out')
    given = _mapping("options", options)
    differing = [name for name, value in wanted.items() if name not in given or given[name] != value]
    if differing:
        raise InputError(
            f"adjoint_options differ from options in {', '.join(map(repr, differing))}: ncode solves the adjoint as it"
            " solves forward; set it in options, or leave it out"
        )


def _check_options(method: str, fixed: bool, options: Any) -> Mapping[str, Any]:
    """Check the names of options and their values; returns numbers as such, where tensors are given too."""
    options = _mapping("options", options)
    kind, mine, others = ("fixed", FOR_FIXED, FOR_ADAPTIVE) if fixed else ("adaptive", FOR_ADAPTIVE, FOR_FIXED)
    for name, value in options.items():
        if name in NO_OPTION:
            raise InputError(f'option "{name}" is not available: {NO_OPTION[name]}')
        if name in others:
            raise InputError(
                f'option "{name}" is not one of method "{method}", which has {kind} steps: leave it out, or choose one'
                f" of {', '.join(ADAPTIVE if fixed else FIXED)}"
            )
        check_choice(f'option of method "{method}"', name, (*mine, *FOR_ALL))
        if name in ONLY_VALUE and value != ONLY_VALUE[name][0]:
            only, why = ONLY_VALUE[name]
            raise InputError(f'option "{name}" can only be {only!r}; given {value!r}: {why}; leave it out')
    if "step_size" in options and "grid_constructor" in options:
        raise InputError("options have both step_size and grid_constructor: they exclude each other")
    return {name: _check_value(name, value) for name, value in options.items()}


def _check_value(name: str, value: Any) -> Any:
    if name == "max_num_steps":
        return check_count('options["max_num_steps"]', _item(value))
    if name in LOWEST:
        return check_number(f'options["{name}"]', _item(value), low=LOWEST[name], strict=LOWEST[name] == 0)
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"{name} must be a dict of options; given {type(value).__name__}")
    return {} if value is None else value


def _item(value: Any) -> Any:
    """A tensor of one element as a number."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _tolerance(name: str, value: Any) -> float:
    value = _item(value)
    if isinstance(value, (Tensor, tuple, list)):
        raise InputError(
            f"{name} must be one number for the whole state; given a {type(value).__name__}: pass the smallest, or"
            " scale the state's parts so that one fits all"
        )
    return check_number(name, value, low=0.0)


def _check_function(func: Any) -> None:
    check_function("func", func, ("t", "y"))
    for name in (*CALLBACKS, *(f"{name}_adjoint" for name in CALLBACKS)):
        if getattr(func, name, None) is not None:
            raise InputError(
                f"func has a method {name}, which would not be called: ncode has no callbacks; remove it, or do in"
                " func itself what it does"
            )


def leaves_of(x: Any, theta: Any) -> Leaves:
    """The leaves of y, from the x and theta of the batch of one."""
    return tuple(leaf[0] for leaf in (x, *(theta or ())))


def slope_of(func: Func, nested: bool, t: Tensor, y: Leaves) -> Leaves:
    """The leaves of dy/dt, checked against those of y."""
    got = func(t, y if nested else y[0])
    if nested and not isinstance(got, (tuple, list)):
        raise InputError(f"func must return a tuple, as y0 is one; returned {type(got).__name__}")
    leaves = tuple(got) if nested else (got,)
    if len(leaves) != len(y):
        raise InputError(f"func returned {len(leaves)} tensors for a state of {len(y)}")
    return tuple(map(_fit, leaves, y))


def _fit(k: Any, y: Tensor) -> Tensor:
    if not isinstance(k, Tensor):
        raise InputError(f"func must return a tensor for each one of the state; returned {type(k).__name__}")
    if k.shape != y.shape:
        raise InputError(f"func returned shape {tuple(k.shape)}; expected that of the state, {tuple(y.shape)}")
    if k.is_complex() and not y.is_complex():
        raise InputError(f"func returned {k.dtype} for a state of {y.dtype}: make y0 complex")
    return k.to(y.dtype)  # as torchdiffeq does: func may compute under autocast


def _first(func: Func, nested: bool, cache: list[Any], t: Tensor, x: Tensor, theta: Any) -> Tensor:
    """dx/dt; dtheta/dt of the same evaluation is cached for `_others`."""
    first, *others = (k[None] for k in slope_of(func, nested, t[0], leaves_of(x, theta)))
    if others:
        cache[:] = [t, x, tuple(others)]
    return first


def _others(func: Func, nested: bool, cache: list[Any], t: Tensor, x: Tensor, theta: Any) -> Leaves:
    """dtheta/dt."""
    if not cache or cache[0] is not t or cache[1] is not x:
        _first(func, nested, cache, t, x, theta)
    others = cache.pop()
    cache.clear()  # otherwise the last evaluation's graph would live as long as the system
    return others


def _check_state(y0: Any) -> Leaves:
    if not isinstance(y0, (Tensor, tuple)):
        raise InputError(f"y0 must be a tensor or a tuple of tensors; given {type(y0).__name__}")
    leaves = (y0,) if isinstance(y0, Tensor) else y0
    if not leaves:
        raise InputError("y0 is an empty tuple: there is nothing to solve")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputError(f"y0 must be a tensor or a tuple of tensors; given a tuple with {type(leaf).__name__}")
        check_state(leaf[None], "y0")
        if leaf.dtype != leaves[0].dtype or leaf.device != leaves[0].device:
            raise InputError(
                "the tensors of y0 must be of one dtype, on one device; given"
                f" {', '.join(f'{other.dtype} on {other.device}' for other in leaves)}"
            )
        if not is_symbolic() and not bool(leaf.detach().isfinite().all()):
            raise InputError("y0 is not finite: it contains nan or inf")
    return leaves
