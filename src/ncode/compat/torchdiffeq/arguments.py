"""torchdiffeq's arguments, checked: times, tolerances, options and callbacks."""

from __future__ import annotations

import difflib
import operator
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import (
    InputError,
    SolveError,
    Status,
    check_choice,
    check_count,
    check_number,
    check_tensor,
    format_value,
)
from .states import Layout, Leaves

Tolerance = float | Tensor


class NoEvent(InputError, AssertionError, RuntimeError):
    """No event was met. torchdiffeq raises AssertionError with adaptive steps, and RuntimeError with fixed ones."""


class SolverFailed(SolveError, AssertionError):
    """A `SolveError` that code for torchdiffeq catches too: there it is a failed assertion."""

    def __init__(self, status: Status, t: float, where: str = 'max_steps is options["max_num_steps"] here'):
        super().__init__([0], [t], [status], None, 1, where)

    def __str__(self) -> str:
        status, where = self.statuses[0], self.args[-1]
        sentence = status.sentence if status != Status.NOT_FINITE else "func returned nan or inf, or y overflowed"
        return f"stopped at t = {self.times[0]:.6g}: {status.name}: {sentence} ({where})"


LOWEST = {"step_size": 0, "safety": 0, "dfactor": 0, "ifactor": 1, "first_step": 0, "min_step": 0}
FOR_FIXED = ("step_size", "grid_constructor", "interp", "perturb", "norm", "gradient")
FOR_ADAPTIVE = (
    *("first_step", "min_step", "max_step", "step_t", "jump_t", "safety", "ifactor", "dfactor", "max_num_steps"),
    *("norm", "dtype", "gradient"),
)
OPTIONS = {"fixed": FOR_FIXED, "implicit": (*FOR_FIXED, "max_iters"), "adaptive": FOR_ADAPTIVE}  # by kind of method
GRADIENTS = ("autograd", "discrete")


def check_times(t: Any, device: torch.device, name: str = "t") -> Tensor:
    """Return t on a device; raise unless it is a floating tensor (T,) that increases or decreases."""
    if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() != 1 or len(t) == 0:
        what = f"{t.dtype} of shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
        raise InputError(f"{name} must be a floating tensor of shape (T,), with at least one time; given {what}")
    values = check_tensor(name, t).tolist()
    finite = abs(values[0]) < float("inf") and abs(values[-1]) < float("inf")
    rises, falls = (all(map(order, values, values[1:])) for order in (operator.lt, operator.gt))
    if not finite or not (rises or falls):
        raise InputError(f"{name} must be finite and strictly increasing or decreasing; given {values}"[:300])
    if t.device != device:
        warn(f"{name} is on {t.device} and y0 on {device}: {name} is moved there")
    return t.to(device)


def warn(message: str) -> None:
    """Warn at the line of the user's code that called the library."""
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").startswith("ncode."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def read_tolerance(name: str, value: Any, layout: Layout, y: Tensor) -> Tolerance:
    """A tolerance: one number, one per tensor of a tuple state, or for a tensor state one that broadcasts with it."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise InputError(f"{name} must not require a gradient; pass {name}.detach()")
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if not isinstance(value, (Tensor, tuple, list)):
        return check_number(name, value, low=0.0)
    if layout.shapes is not None:
        if len(value) != len(layout.shapes):
            raise InputError(
                f"{name} must be one number, or one per tensor of y0; given {len(value)} for {len(layout.shapes)}"
            )
        parts = zip(value, layout.sizes, strict=True)
        tensor = torch.cat([_nonnegative(name, part, y).reshape(-1).expand(size) for part, size in parts])
    else:
        tensor = _nonnegative(name, value, y)
    try:
        expanded = tensor.expand_as(y)
    except RuntimeError:
        raise InputError(
            f"{name} must be one number, or broadcast with y0 of shape {tuple(y.shape)}; given shape"
            f" {tuple(tensor.shape)}"
        ) from None
    # One number for all is faster, and means the same.
    return tensor.item() if tensor.numel() == 1 else expanded


def _nonnegative(name: str, value: Any, y: Tensor) -> Tensor:
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64).to(y.device)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, or numbers; given {value!r}") from None
    if not bool((tensor >= 0).all()):
        raise InputError(f"{name} must be at least 0; given {value!r}")
    return tensor


def check_mapping(name: str, options: Any) -> Mapping[str, Any]:
    """Return options, an empty dict for None."""
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"{name} must be a dict; given {type(options).__name__}")
    return options or {}


def read_options(method: str, kind: str, options: Any, name: str = "options") -> dict[str, Any]:
    """The options that a method has, with checked values; others are left out with a warning, as in torchdiffeq."""
    known, read = OPTIONS[kind], {}
    for key, value in check_mapping(name, options).items():
        if key in known:
            read[key] = _read_option(f'{name}["{key}"]', key, value)
            continue
        near = difflib.get_close_matches(str(key), known, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        warn(f'{name} has {key!r}, which method "{method}" does not have: it is ignored{hint}')
    if "step_size" in read and "grid_constructor" in read:
        raise InputError(f"{name} have both step_size and grid_constructor: they exclude each other")
    return {key: value for key, value in read.items() if value is not None}


def _read_option(label: str, key: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1 and key not in ("step_t", "jump_t"):
        value = value.item()
    if value is None:
        return None
    if key in ("max_num_steps", "max_iters"):
        return check_count(label, value)
    if key in LOWEST:
        return check_number(label, value, low=LOWEST[key], strict=key in ("step_size", "safety", "dfactor"))
    if key == "max_step" and value != float("inf"):
        return check_number(label, value, low=0, strict=True)
    if key in ("step_t", "jump_t"):
        return _read_landings(label, value)
    if key == "interp":
        return check_choice(label, value, ("linear", "cubic"))
    if key == "gradient":
        return check_choice(label, value, GRADIENTS)
    if key in ("norm", "grid_constructor") and not callable(value):
        raise InputError(f"{label} must be a function; given {value!r}")
    return value


def _read_landings(label: str, value: Any) -> Tensor:
    """Times to land on, (K,): a tensor, a sequence of numbers, or one number."""
    try:
        times = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        times = torch.full((1,), torch.nan)
    if times.dim() > 1 or bool(times.isnan().any()):
        raise InputError(f"{label} must be times, a tensor of shape (K,) or a list; given {format_value(value)}")
    return times.reshape(-1)


class Callbacks(NamedTuple):
    """What func wants to be told: callback(t0, y0, dt) at each step, and as it is accepted or rejected."""

    step: Callable[..., Any] | None = None
    accept: Callable[..., Any] | None = None
    reject: Callable[..., Any] | None = None


NO_CALLBACKS = Callbacks()


def read_callbacks(
    func: Any, method: str, fixed: bool, unflatten: Callable[[Tensor], Any], suffix: str = ""
) -> Callbacks:
    """The callbacks that func defines."""
    found = {name: getattr(func, f"callback_{name}{suffix}", None) for name in ("step", "accept_step", "reject_step")}
    if not any(found.values()):
        return NO_CALLBACKS
    late = [f"callback_{name}{suffix}" for name in ("accept_step", "reject_step") if found[name] is not None]
    if fixed and late:
        warn(f'method "{method}" has fixed steps: {" and ".join(late)} of func are not called')
        found = {"step": found["step"], "accept_step": None, "reject_step": None}

    def told(callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if callback is None:
            return None
        return lambda t, y, dt: callback(_scalar(t, y), unflatten(y), _scalar(dt, y))

    return Callbacks(*map(told, found.values()))


def _scalar(value: float, y: Tensor) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=y.device)


def check_tensors(name: str, values: Any) -> Leaves:
    """Return tensors as a tuple."""
    values = tuple(values)
    wrong = [type(value).__name__ for value in values if not isinstance(value, Tensor)]
    if wrong:
        raise InputError(f"{name} must be tensors; given {wrong[0]}")
    return values
