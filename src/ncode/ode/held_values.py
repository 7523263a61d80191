"""What functions hold: the values that they can read, through closures, globals that they name, and objects in them.

Some are used at times that no evaluation has shown yet, so that `held_by` finds more than a function mode can see. The
fingerprint of a `survey` is a key that changes with these values, apart from those of tensors, so that a compiled
function is not used beyond what it was compiled for.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import sys
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError

_MOST_NEAR = 1000  # values that `held_by` follows; a longer container is data to it
_MOST_SURVEYED = 20_000
_CONTAINERS = (tuple, list, dict, set, frozenset, deque)
_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MODULE_STATE = frozenset(vars(nn.Module())) - {"training"}  # parameters, buffers and submodules come by name
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LIBRARIES = frozenset({"ncode", "torch", "numpy", "jaxtyping", "beartype", "pytest"}) | sys.stdlib_module_names


def held_by(function: Any) -> Iterator[Any]:
    """The function and every value that it can read, the nearest first; at most about a thousand."""
    return _follow(function, _MOST_NEAR)


def _follow(start: Any, most: int) -> Iterator[Any]:
    queue: deque[Any] = deque([start])
    seen: set[int] = set()
    while queue and len(seen) < most:
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


def survey(functions: Sequence[Any]) -> Survey:
    """Follow everything that functions hold: a fresh lambda with equal values has an equal fingerprint."""
    numbers: dict[int, int] = {}
    values: list[Any] = []  # everything that was met, and held until the end, so that ids stay unique

    def refer(value: Any) -> Hashable:
        if isinstance(value, _VALUES):  # by repr, since nan is not equal to itself
            return type(value), repr(value) if isinstance(value, (float, complex)) else value
        number = numbers.setdefault(id(value), len(values))
        if number == len(values):
            values.append(value)
        return number

    found: list[Hashable] = [tuple(map(refer, functions))]
    for value in values:  # grows on the way
        found.append(_describe(value, refer))
        if len(values) > _MOST_SURVEYED:
            raise InputError(
                f"compiled dynamics are watched for changes of what they can read, and these lead to more than"
                f" {_MOST_SURVEYED} objects, by way of {_largest(functions)}: give solve a function or module that"
                " holds only what it uses, keep data in tensors, or use compile=False"
            )
    return Survey(tuple(found), tuple(value for value in values if isinstance(value, Tensor)))


def _describe(value: Any, refer: Callable[[Any], Hashable]) -> Hashable:
    """What a value is, apart from the contents of a tensor, and which values it leads to."""
    if isinstance(value, Tensor):
        return "tensor", value.requires_grad  # an argument of the graph: its shape is part of the key
    kind: Hashable = value.__code__ if isinstance(value, types.FunctionType) else type(value)
    held = children(value)
    if isinstance(value, _CONTAINERS) and len(value) > _MOST_NEAR:
        contents: Any = value
        with contextlib.suppress(ValueError):  # not only numbers and strings
            return kind, hash(marshal.dumps(contents, 2))  # later versions write equal contents differently
        held = _elements(value)
    if not held and not isinstance(value, (nn.Module, types.FunctionType, *_CONTAINERS)):
        return kind, "id", id(value)
    return kind, tuple((refer(name), refer(child)) for name, child in held)


def _largest(functions: Sequence[Any]) -> str:
    """The type of what leads to most values, of those that the functions hold themselves."""
    direct = [child for function in functions for _, child in children(function) if not isinstance(child, _VALUES)]
    counts = [sum(1 for _ in _follow(value, _MOST_SURVEYED)) for value in direct]
    return f"a value of type {type(direct[counts.index(max(counts))]).__name__}" if direct else "the function itself"


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
    if isinstance(value, _CONTAINERS):
        return _elements(value) if len(value) <= _MOST_NEAR else []
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(value, types.ModuleType):
        plain = (Tensor, *_VALUES)
        return [(name, it) for name, it in vars(value).items() if isinstance(it, plain) and not name.startswith("__")]
    return _of_object(value)


def _elements(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items() if isinstance(container, dict) else enumerate(container))


def _is_foreign(value: Any) -> bool:
    """Whether a value leads to nothing of the user's, as the classes and modules of libraries."""
    if isinstance(value, (type, types.ModuleType)):
        return _is_library(value.__module__ if isinstance(value, type) else value.__name__)
    return isinstance(value, (types.BuiltinFunctionType, types.CodeType, types.GeneratorType))


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
    found += vars(function).items()
    names = _names(function.__code__)
    if not _is_library(function.__module__):
        # A name that is no global may be a module that the function imports itself.
        for space in (function.__globals__, sys.modules):
            found += [(name, space[name]) for name in names if name in space]
    visited: set[int] = set()
    return [it for name, value in found for it in _through_modules(name, value, names, visited)]


def _through_modules(
    path: Hashable, value: Any, names: Sequence[str], visited: set[int]
) -> Iterator[tuple[Hashable, Any]]:
    """A value; in place of a module of the user's, those of its attributes that the code names."""
    if not isinstance(value, types.ModuleType):
        yield path, value
    elif not _is_library(value.__name__) and id(value) not in visited:
        visited.add(id(value))
        for name in names:
            if name in vars(value):
                yield from _through_modules((path, name), vars(value)[name], names, visited)


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
