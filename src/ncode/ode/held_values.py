"""What functions hold: the values that they can read, through closures, globals that they name, and objects in them.

Some are used at times that no evaluation has shown yet, so that `held_by` finds more than a function mode can see. The
fingerprint of a `survey` is a key that changes with these values, apart from those of tensors, so that a compiled
function is not used beyond what it was compiled for.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_MOST = 1000  # a longer list is data; and values that are followed
_CONTAINERS = (tuple, list, dict, set, frozenset, deque)
_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MODULE_STATE = frozenset(vars(nn.Module())) - {"training"}  # parameters, buffers and submodules come by name
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LIBRARIES = frozenset({"ncode", "torch", "numpy", "jaxtyping", "beartype", "pytest"}) | sys.stdlib_module_names


def held_by(function: Any) -> Iterator[Any]:
    """The function and every value that it can read, the nearest first; at most about a thousand."""
    queue, seen = deque([function]), set()
    while queue and len(seen) < _MOST:
        value = queue.popleft()
        if id(value) in seen or isinstance(value, _VALUES):
            continue
        seen.add(id(value))
        yield value
        queue.extend(child for _, child in children(value))


class Survey(NamedTuple):
    """What functions hold: a key that is equal for functions that do the same with equal values, and the tensors."""

    fingerprint: Hashable
    tensors: tuple[Tensor, ...]
    whole: bool  # whether everything was followed, or only the nearest values


def survey(functions: Sequence[Any]) -> Survey:
    """Follow everything that functions hold: a fresh lambda with equal values has an equal fingerprint."""
    seen: dict[int, int] = {}
    tensors: list[Tensor] = []
    found = tuple(_fingerprint(function, seen, tensors) for function in functions)
    return Survey(found, tuple(tensors), len(seen) < _MOST)


def _fingerprint(value: Any, seen: dict[int, int], tensors: list[Tensor]) -> Hashable:
    if isinstance(value, _VALUES):
        return type(value), repr(value) if isinstance(value, (float, complex)) else value  # nan is not equal to itself
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, Tensor):
        tensors.append(value)
        return "tensor", value.requires_grad  # an argument of the graph: its shape is part of the key
    kind: Hashable = value.__code__ if isinstance(value, types.FunctionType) else type(value)
    held = children(value) if len(seen) < _MOST else []
    known = isinstance(value, (nn.Module, types.FunctionType, *_CONTAINERS)) and len(seen) < _MOST
    if not held and not known:
        return kind, id(value)
    return kind, tuple((name, _fingerprint(child, seen, tensors)) for name, child in held)


def children(value: Any) -> list[tuple[Any, Any]]:
    """The values that one value leads to, with their names."""
    if isinstance(value, Tensor) or _is_foreign(value):
        return []
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, types.MethodType):
        return [("self", value.__self__), ("function", value.__func__)]
    if isinstance(value, functools.partial):
        return [("function", value.func), *enumerate(value.args), *value.keywords.items()]
    if isinstance(value, dict):
        return list(value.items()) if len(value) <= _MOST else [("length", len(value))]
    if isinstance(value, _CONTAINERS):
        return list(enumerate(value)) if len(value) <= _MOST else [("length", len(value))]
    if isinstance(value, type):
        return _of_class(value)
    return _of_object(value)


def _is_foreign(value: Any) -> bool:
    """Whether a value leads to nothing of the user's: modules, and the classes of libraries."""
    if isinstance(value, type):
        return _is_library(value.__module__)
    return isinstance(value, (types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.GeneratorType))


@functools.lru_cache(maxsize=4096)
def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _of_function(function: types.FunctionType) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that is bound later
            found.append((name, cell.cell_contents))
    found += enumerate(function.__defaults__ or ())
    found += (function.__kwdefaults__ or {}).items()
    if _is_library(function.__module__):
        return found
    space = function.__globals__
    return found + [(name, space[name]) for name in _names(function.__code__) if name in space]


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals that code names, and the code inside of it."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _of_object(value: Any) -> list[tuple[Any, Any]]:
    """The attributes of an object, and what its class leads to."""
    found: list[tuple[Any, Any]] = []
    attributes = getattr(value, "__dict__", {})
    if isinstance(value, nn.Module):
        for place in (value._parameters, value._buffers, value._modules):
            found += place.items()
        found += [(place, hook) for place in _HOOKS for hook in getattr(value, place).values()]
        found += [(name, it) for name, it in attributes.items() if name not in _MODULE_STATE]
    else:
        found += attributes.items()
        slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
        found += [(name, getattr(value, name)) for name in slots if name != "__dict__" and hasattr(value, name)]
    return found + [("class", kind) for kind in type(value).__mro__ if not _is_library(kind.__module__)]


def _of_class(kind: type) -> list[tuple[Any, Any]]:
    found = []
    for name, value in vars(kind).items():
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        value = value.fget if isinstance(value, property) else value
        if isinstance(value, (types.FunctionType, Tensor, nn.Module, *_VALUES, *_CONTAINERS)) and name != "__doc__":
            found.append((name, value))
    return found
