"""Compiling the attempt and the step, once for each system and shape.

torch.compile keeps what it compiled with a function's code and gives up after a few versions of one code. So every system
gets a copy of the code of its own, and systems are recognised by what they do: a fresh lambda over the same things is the
same system.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

from .field import Field
from .loop import Attempt
from .step import Step

_LIMIT = 64  # systems kept, the least recently used are forgotten
_kept: OrderedDict[Hashable, tuple[Any, Callable[..., Any]]] = OrderedDict()


def prepare_attempt(compile: bool) -> Callable[[Attempt], Callable[..., Any]]:
    """What `run` does with an attempt."""
    return _compiled_attempt if compile else lambda attempt: attempt


def prepare_step(compile: bool) -> Callable[[Step], Callable[..., Any]]:
    """What backward does with a step."""
    return _compiled_step if compile else lambda step: step


def _compiled_attempt(attempt: Attempt) -> Callable[..., Any]:
    settings = (attempt.pid, attempt.tolerance, attempt.fixed, attempt.together, attempt.max_steps)
    return _once(("attempt", *_identity_of_step(attempt.step), *settings), attempt)


def _compiled_step(step: Step) -> Callable[..., Any]:
    return _once(("step", *_identity_of_step(step)), step)


def _once(key: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function unless one of the same identity was compiled before."""
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][1]

    def call(*args: Any) -> Any:
        return function(*args)

    own = types.FunctionType(call.__code__.replace(), call.__globals__, "call", None, call.__closure__)
    compiled = torch.compile(own)
    _kept[key] = function, compiled  # holding the function keeps the ids in its key from being reused
    while len(_kept) > _LIMIT:
        _kept.popitem(last=False)
    return compiled


def _identity_of_step(step: Step) -> tuple[Hashable, ...]:
    field = step.field
    assert isinstance(field, Field)
    functions = tuple(_identity(function) for function in (field.dynamics, field.feedback, field.cost))
    return (*functions, str(field.spec), field.dtype, step.tableau.name, step.estimate, step.dense, step.slopes)


def _identity(function: Any) -> Hashable:
    """Equal for functions that do the same with the same things."""
    if not isinstance(function, types.FunctionType):
        return function
    cells = tuple(id(cell.cell_contents) for cell in function.__closure__ or ())
    defaults = tuple(map(id, function.__defaults__ or ()))
    return function.__code__, cells, defaults, id(function.__globals__)
