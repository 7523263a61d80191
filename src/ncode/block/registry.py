"""Modules as plain data, and back: what a configuration file can hold.

A module is written as the name of its class and the arguments that build it. Names are looked up in a table, never
imported, so a file can name nothing but ncode's own classes, those of torch.nn, and what was registered by hand.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import nn

from .. import control, dynamics
from ..checks import check_choice
from ..ode import PID, InputError

KIND = "class"
_Any = TypeVar("_Any", bound=Callable[..., Any])

_OWN: tuple[type, ...] = (
    *(dynamics.Augmented, dynamics.ConvBlock, dynamics.Function, dynamics.Linear, dynamics.MLP),
    *(dynamics.Recurrent, dynamics.SecondOrder, dynamics.SparseLinear),
    *(control.ClosedLoop, control.DataControl, control.Drift, control.Feedback, control.Hebbian),
    *(control.OpenLoop, control.Parts, control.Static, control.TimeVarying, control.Zero),
    PID,
)
_known: dict[str, Callable[..., Any]] = {f"ncode.{cls.__name__}": cls for cls in _OWN}


def register(thing: _Any, *, name: str | None = None) -> _Any:
    """Make a module class or a function of your own known by its name, so that blocks with it can be saved and loaded.

    A class must have a method `config()` that returns the arguments which build the object again, as ncode's own
    classes do; a class without arguments needs none. Use it as a decorator, before saving and before loading. A name
    other than the thing's own can be given.

    >>> import torch, ncode
    >>> @ncode.register
    ... class Trunk(torch.nn.Sequential):
    ...     def __init__(self, width):
    ...         super().__init__(torch.nn.Linear(2, width), torch.nn.Tanh())
    ...     def config(self):
    ...         return {"width": self[0].out_features}
    """
    name = thing.__name__ if name is None else name
    if name == "<lambda>" or not callable(thing):
        raise InputError(f"register takes a class or a function with a name; given {thing!r}")
    if name in _known and _known[name].__qualname__ != thing.__qualname__:
        raise InputError(f"{name!r} is already registered: choose another name")
    _known[name] = thing
    return thing


def to_data(value: Any) -> Any:
    """A value as plain data: numbers, strings, lists, and dicts by name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_data(item) for item in value]
    if isinstance(value, types.FunctionType):
        return {KIND: _name(value, value.__name__)}
    if isinstance(value, PID):
        return {KIND: _name(value, "PID"), **asdict(value)}
    if type(value) is nn.Sequential:
        return {KIND: "torch.nn.Sequential", "args": [to_data(child) for child in value]}
    if type(value) in vars(nn).values():
        return {KIND: f"torch.nn.{type(value).__name__}", **_arguments(value)}
    if isinstance(value, nn.Module):
        return {
            KIND: _name(value, type(value).__name__),
            **to_data(value.config() if isinstance(value, Configured) else {}),
        }
    raise InputError(f"cannot write a {type(value).__name__} down: {value!r}")


def from_data(data: Any) -> Any:
    """The value that was written down."""
    if isinstance(data, list):
        return [from_data(item) for item in data]
    if not isinstance(data, dict):
        return data
    inner = {key: from_data(item) for key, item in data.items() if key not in (KIND, "args")}
    if KIND not in data:
        return {**inner, **({"args": from_data(data["args"])} if "args" in data else {})}
    name = data[KIND]
    if isinstance(name, str) and name.startswith("torch.nn."):
        cls = vars(nn).get(name.removeprefix("torch.nn."))
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise InputError(f"the file names {name}, which this torch does not have")
        return cls(*from_data(data.get("args", [])), **inner)
    thing = _known[check_choice("class in the file", name, _known)]
    return thing if isinstance(thing, types.FunctionType) else thing(**inner)


def _name(value: Any, name: str) -> str:
    """The name that a registered class or function is known by."""
    thing = value if isinstance(value, types.FunctionType) else type(value)
    for known, other in _known.items():
        if other is thing:
            return known
    raise InputError(
        f"{name} is not known to ncode, so a file cannot name it: register it before saving and before loading, with"
        " @ncode.register"
    )


@runtime_checkable
class Configured(Protocol):
    """A module that tells how to build it again."""

    def config(self) -> Mapping[str, Any]:
        """The arguments that build it again."""
        ...


def _arguments(module: nn.Module) -> dict[str, Any]:
    """The arguments of a module of torch.nn, which keeps them as attributes of the same names."""
    arguments = {}
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name in ("self", "device", "dtype") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name not in vars(module) and name not in module._parameters:
            raise InputError(
                f"cannot tell the argument {name!r} of torch.nn.{type(module).__name__}: put the module into a class of"
                " your own and register it with @ncode.register"
            )
        value = module._parameters[name] is not None if name in module._parameters else getattr(module, name)
        arguments[name] = to_data(value)
    return arguments
