"""One system as a batch of one: torchdiffeq's states and functions in the form that `ncode.solve` takes.

A tensor state y becomes x of shape (1, *y.shape). A tuple becomes x and a control: its first tensor is x, and the
others are a control driven by feedback. So nothing is copied into one long vector, and a large tensor does not hide the
error of a small one, such as the log-density of a continuous normalising flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..._torch_private import is_symbolic
from ...errors import InputError, SolveError
from ...ode import Solution, solve
from .options import Options

Leaves = tuple[Tensor, ...]
State = Tensor | Leaves
Func = Callable[[Any, Any], Any]

CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


@dataclass(frozen=True, eq=False)
class System:
    """dy/dt = func(t, y), and how to solve it. States are tuples of leaves here, also if the user's is a tensor."""

    func: Func
    nested: bool  # whether the user's y is a tuple
    options: Options

    @classmethod
    def check(cls, func: Func, y0: Any, options: Options) -> tuple[System, Leaves]:
        """The system, and the leaves of its state at the start."""
        if not callable(func):
            raise InputError(f"func must be a function of (t, y); given {type(func).__name__}")
        for name in (*CALLBACKS, *(f"{name}_adjoint" for name in CALLBACKS)):
            if getattr(func, name, None) is not None:
                raise InputError(
                    f"func has a method {name}, which would not be called: ncode has no callbacks; remove it, or do in"
                    " func itself what it does"
                )
        return cls(func, not isinstance(y0, Tensor), options), _check_state(y0)

    def nest(self, leaves: Leaves) -> State:
        """Leaves in the form of the user's state."""
        return leaves if self.nested else leaves[0]

    def solve(self, y0: Leaves, t0: float | Tensor, t1: float | Tensor, **more: Any) -> Solution:
        """`ncode.solve` on the batch of one."""
        options = self.options
        x, *others = (leaf[None] for leaf in y0)
        cache: list[Any] = []
        arguments: dict[str, Any] = {
            "theta": tuple(others) or None,
            "feedback": partial(_others, self.func, self.nested, cache) if others else None,
            "method": options.method,
            "rtol": options.rtol,
            "atol": options.atol,
            "gradient": options.gradient,
            "step_rule": options.step_rule,
            "max_steps": options.max_steps or 2**31 - 1,
        }
        try:
            # `solve` finds parameters in partials, not in objects of other classes.
            return solve(partial(_first, self.func, self.nested, cache), x, t0, t1, **(arguments | more))
        except SolveError as error:
            where = 'max_steps is options["max_num_steps"] here'
            raise SolveError(error.samples, error.times, error.statuses, None, 1, where) from None


def final_leaves(solution: Solution) -> Leaves:
    """The leaves at t1."""
    return tuple(leaf[0] for leaf in (solution.x, *(solution.theta or ())))


def saved_leaves(solution: Solution) -> Leaves:
    """The leaves at the saved times, (T, ...)."""
    assert solution.xs is not None
    return tuple(leaf[0] for leaf in (solution.xs, *(solution.thetas or ())))


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
    if k.device != y.device:
        raise InputError(f"func returned a tensor on {k.device}; expected {y.device}, where the state is")
    if k.is_complex() and not y.is_complex():
        raise InputError(f"func returned {k.dtype} for a state of {y.dtype}: make y0 complex")
    return k.to(y.dtype)  # as torchdiffeq does: func may compute under autocast


def _first(func: Func, nested: bool, cache: list[Any], t: Tensor, x: Tensor, theta: Any) -> Tensor:
    """dx/dt; dtheta/dt of the same evaluation is cached for `_others`."""
    y = tuple(leaf[0] for leaf in (x, *(theta or ())))
    first, *others = (k[None] for k in slope_of(func, nested, t[0], y))
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
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise InputError(f"y0 must be of a floating or complex dtype; given {leaf.dtype}: use y0.float()")
        if leaf.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f"y0 is {leaf.dtype}, too coarse to step in: keep the state in float32 and use torch.autocast in func"
            )
        if leaf.numel() == 0:
            raise InputError(f"y0 has no elements: its shape is {tuple(leaf.shape)}")
        if leaf.dtype != leaves[0].dtype or leaf.device != leaves[0].device:
            raise InputError(
                "the tensors of y0 must be of one dtype, on one device; given"
                f" {', '.join(f'{other.dtype} on {other.device}' for other in leaves)}"
            )
        if not is_symbolic() and not bool(leaf.detach().isfinite().all()):
            raise InputError("y0 is not finite: it contains nan or inf")
    return leaves
