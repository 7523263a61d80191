"""Methods, tolerances and options of torchdiffeq, translated to those of `ncode.solve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...checks import check_choice, check_number
from ...errors import InputError
from ...ode import PID
from ...ode.problem import GRADIENTS

ADAPTIVE = {name: name for name in ("dopri5", "dopri8", "bosh3", "tsit5")} | {"adaptive_heun": "heun"}
FIXED = {name: name for name in ("euler", "midpoint", "rk4")} | {"heun2": "heun"}

_MULTISTEP = 'ncode has one-step methods only: use "dopri5", or "rk4" with a step_size'
_IMPLICIT = 'ncode has explicit methods only: use "dopri5" unless the system is stiff'
NO_METHOD = {
    "heun3": 'use "rk4", or ncode.solve(..., method="bosh3", dt=...), which is of order 3 too',
    "fehlberg2": 'use "adaptive_heun", which is of order 2 too, or "bosh3"',
    "explicit_adams": _MULTISTEP,
    "implicit_adams": _MULTISTEP,
    "fixed_adams": _MULTISTEP,
    "scipy_solver": 'use "dopri5", "dopri8" or "bosh3", which SciPy calls RK45, DOP853 and RK23',
    **dict.fromkeys(("implicit_euler", "implicit_midpoint", "trapezoid", "sdirk2", "trbdf2"), _IMPLICIT),
    **dict.fromkeys(("radauIIA3", "radauIIA5", "gl2", "gl4", "gl6"), _IMPLICIT),
}

FOR_ADAPTIVE = ("safety", "ifactor", "dfactor", "dtype")
FOR_FIXED = ("step_size", "grid_constructor", "interp", "perturb")
FOR_ALL = ("max_num_steps", "gradient")
_BREAK = "solve up to that time, and from there in a second call"
NO_OPTION = {
    "norm": "the error is the root mean square over the state's elements: scale the state's parts to weigh them",
    "first_step": "the first step is found from the slope at t[0]: leave it out",
    "min_step": "a step that grows too small ends the solve with a sentence: leave it out",
    "max_step": "steps follow from rtol and atol: tighten them, or use a method with fixed steps",
    "step_t": _BREAK,
    "jump_t": _BREAK,
}

LOWEST = {"step_size": 0, "safety": 0, "dfactor": 0, "ifactor": 1, "max_num_steps": 1}

Grid = Callable[[Any, Any, Tensor], Tensor]


@dataclass(frozen=True)
class Options:
    """How to solve, in the terms of `ncode.solve`."""

    method: str
    rtol: float
    atol: float
    gradient: str
    fixed: bool
    step_size: float | None
    grid: Grid | None
    step_rule: PID
    max_steps: int | None  # None: no limit

    @classmethod
    def read(cls, method: Any, rtol: Any, atol: Any, options: Any, gradient: str | None = None) -> Options:
        """Translate arguments of `odeint`; `gradient` overrides that of `options`."""
        method = "dopri5" if method is None else method
        if isinstance(method, str) and method in NO_METHOD:
            raise InputError(f'method "{method}" is not available: {NO_METHOD[method]}')
        fixed = check_choice("method", method, (*ADAPTIVE, *FIXED)) in FIXED
        options = _check_options(method, fixed, options)
        if gradient is not None and "gradient" in options:
            raise InputError('odeint_adjoint has the "adjoint" gradient: for another, use odeint')
        number = {
            name: check_number(f'options["{name}"]', _item(options[name]), low=low, strict=low == 0)
            for name, low in LOWEST.items()
            if name in options
        }
        if number.get("max_num_steps", 1) % 1:
            raise InputError(f'options["max_num_steps"] must be a whole number; given {options["max_num_steps"]}')
        names = {"safety": "safety", "dfactor": "smallest", "ifactor": "largest"}
        return cls(
            method=(FIXED if fixed else ADAPTIVE)[method],
            rtol=tolerance("rtol", rtol),
            atol=tolerance("atol", atol),
            gradient=check_choice("gradient", gradient or options.get("gradient", "discrete"), GRADIENTS),
            fixed=fixed,
            step_size=number.get("step_size"),
            grid=options.get("grid_constructor"),
            step_rule=PID(**{ours: number[name] for name, ours in names.items() if name in number}),
            max_steps=int(number["max_num_steps"]) if "max_num_steps" in number else None,
        )


def tolerance(name: str, value: Any) -> float:
    """A tolerance, which must be one number."""
    value = _item(value)
    if isinstance(value, (Tensor, tuple, list)):
        raise InputError(
            f"{name} must be one number for the whole state; given a {type(value).__name__}: pass the smallest, or"
            " scale the state's parts so that one fits all"
        )
    return check_number(name, value, low=0.0)


def adjoint_tolerance(name: str, forward: Any, backward: Any) -> float:
    """The tighter of the two, which is used in both directions."""
    both = tolerance(name, forward), tolerance(f"adjoint_{name}", forward if backward is None else backward)
    return min(both)


def check_adjoint(method: Any, options: Any, adjoint_method: Any, adjoint_options: Any) -> None:
    """Refuse arguments for the adjoint that differ from those of the forward solve."""
    if adjoint_method is not None and adjoint_method != (method or "dopri5"):
        raise InputError(
            f"adjoint_method={adjoint_method!r} differs from method={method!r}: ncode solves the adjoint with the"
            " method of the forward solve; leave adjoint_method out"
        )
    if adjoint_options is None:
        return
    wanted = dict(_mapping("adjoint_options", adjoint_options))
    norm = wanted.pop("norm", "seminorm")
    if not (isinstance(norm, str) and norm == "seminorm"):
        raise InputError('adjoint_options["norm"] can only be "seminorm", which is always used here; leave it out')
    given = {} if options is None else options
    differing = [name for name, value in wanted.items() if name not in given or given[name] != value]
    if differing:
        raise InputError(
            f"adjoint_options differ from options in {', '.join(map(repr, differing))}: ncode solves the adjoint as it"
            " solves forward; set it in options, or leave it out"
        )


def _check_options(method: str, fixed: bool, options: Any) -> Mapping[str, Any]:
    """Check the names of options, and the values of those that have no effect here."""
    options = {} if options is None else _mapping("options", options)
    kind, mine, others = ("fixed", FOR_FIXED, FOR_ADAPTIVE) if fixed else ("adaptive", FOR_ADAPTIVE, FOR_FIXED)
    for name in options:
        if name in NO_OPTION:
            raise InputError(f'option "{name}" is not available: {NO_OPTION[name]}')
        if name in others:
            raise InputError(
                f'option "{name}" is not one of method "{method}", which has {kind} steps: leave it out, or choose one'
                f" of {', '.join(ADAPTIVE if fixed else FIXED)}"
            )
        check_choice(f'option of method "{method}"', name, (*mine, *FOR_ALL))
    if options.get("dtype", torch.float64) is not torch.float64:
        raise InputError(f'option "dtype" is torch.float64 here, the precision of time; given {options["dtype"]}')
    if options.get("interp", "cubic") != "cubic":
        raise InputError(
            f'option "interp" can only be "cubic"; given {options["interp"]!r}: values between steps are of the'
            " method's own order here; leave it out"
        )
    if options.get("perturb"):
        raise InputError(f'option "perturb" is not available: where the field jumps, {_BREAK}')
    if "step_size" in options and "grid_constructor" in options:
        raise InputError("options have both step_size and grid_constructor: they exclude each other")
    return options


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a dict of options; given {type(value).__name__}")
    return value


def _item(value: Any) -> Any:
    """A tensor of one element as a number."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
