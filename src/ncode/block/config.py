"""Modules as plain data and back: what config.json of a saved model holds, and the names of classes in it.

For each module the data hold the name of its class and the arguments of its constructor. A class or function is named
in one of four ways:

    "ncode.MLP"                  a public name of this library
    "torch.nn.Linear"            a module of torch
    "Trunk"                      a name given by `ncode.register`
    "mypackage.nets:Trunk"       an import path

Loading a file from someone else must not run code of their choice. So the first three are looked up in tables, and an
import path is followed only if the caller allows its package. Nor may it use up the memory of the machine: a module is
built under a `MemoryLimit`.
"""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._modules import constructor_arguments
from .._torch_private import StorageWeakRef, TorchDispatchMode, pytree
from ..errors import InputError, check_choice, format_value

CLASS, ARGUMENTS = "class", "args"
MAX_DEPTH = 200  # of lists and objects in a configuration
_PUBLIC = ("ncode", "ncode.dynamics", "ncode.control", "ncode.models")
_RENAMED = {"ncode.NCODE": {"pid": "step_rule"}}  # arguments in files of earlier versions

_T = TypeVar("_T", bound=Callable[..., Any])
_registered: dict[str, Callable[..., Any]] = {}


def register(thing: _T, *, name: str | None = None) -> _T:
    """Give a module class or a function of your own a name in saved files, independent of where it is defined.

    Use it as a decorator, before saving and before loading. A module that is neither a dynamics nor a controller and
    whose constructor has arguments needs a method `config()` that returns them.

    Args:
        thing: A class or a function.
        name: Its name in files. Default: its own name.

    >>> import torch, ncode
    >>> @ncode.register
    ... class Trunk(torch.nn.Sequential):
    ...     def __init__(self, width):
    ...         super().__init__(torch.nn.Linear(2, width), torch.nn.Tanh())
    ...     def config(self):
    ...         return {"width": self[0].out_features}
    """
    name = getattr(thing, "__name__", None) if name is None else name
    if name in (None, "<lambda>") or not callable(thing):
        raise InputError(f"register takes a class or a function with a name; given {thing!r}")
    known = _registered.get(name, thing)
    if (known.__module__, known.__qualname__) != (thing.__module__, thing.__qualname__):
        raise InputError(f"{name!r} is registered for {known.__module__}.{known.__qualname__}: choose another name")
    _registered[name] = thing
    return thing


def to_data(value: Any) -> Any:
    """Convert a value to plain data: numbers, strings, lists and dicts."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_data(item) for item in value]
    if isinstance(value, types.FunctionType):
        return {CLASS: _name_of(value)}
    if type(value) is nn.Sequential:
        return {CLASS: "torch.nn.Sequential", ARGUMENTS: [to_data(child) for child in value]}
    if type(value) in vars(nn).values():
        return {CLASS: f"torch.nn.{type(value).__name__}", **_torch_arguments(value)}
    if isinstance(value, nn.Module):
        config = getattr(value, "config", dict)
        return {CLASS: _name_of(type(value)), **to_data(config())}
    if is_dataclass(value) and not isinstance(value, type):
        return {CLASS: _name_of(type(value)), **{it.name: to_data(getattr(value, it.name)) for it in fields(value)}}
    raise InputError(
        f"cannot save a {type(value).__name__}: files hold numbers, strings, modules, functions and dataclasses; make"
        " it a dataclass, or set it after loading"
    )


def from_data(data: Any, allow_imports: Sequence[str] | None = ()) -> Any:
    """Build what plain data describes. `allow_imports=None` allows every package."""
    if isinstance(data, list):
        return [from_data(item, allow_imports) for item in data]
    if not isinstance(data, dict):
        return data
    inner = {key: from_data(item, allow_imports) for key, item in data.items() if key != CLASS}
    if CLASS not in data:
        return inner
    name = data[CLASS]
    thing = _find(name, allow_imports)
    if isinstance(thing, types.FunctionType):
        return thing
    renamed = _RENAMED.get(name, {})
    inner = {str(renamed.get(key, key)): item for key, item in inner.items()}
    return thing(*inner.pop(ARGUMENTS, []), **inner)


def _name_of(thing: Any) -> str:
    for name, other in {**_registered, **_public_classes()}.items():
        if other is thing:
            return name
    module = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__" or _attribute(module, thing.__qualname__) is not thing:
        raise InputError(
            f"{thing.__qualname__} is not known to ncode and cannot be imported from another program, so a file cannot"
            " name it: move it to the top level of a module, or register it before saving and before loading, with"
            " @ncode.register"
        )
    return f"{thing.__module__}:{thing.__qualname__}"


def _find(name: Any, allow_imports: Sequence[str] | None) -> Callable[..., Any]:
    """The class or function that a file names."""
    if not isinstance(name, str):
        raise InputError(f"the name of a class must be text; the file has {format_value(name)}")
    if name.startswith("torch.nn."):
        cls = vars(nn).get(name.removeprefix("torch.nn."))
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise InputError(f"the file names {name}, which this torch does not have")
        return cls
    if ":" in name and name not in _registered:
        return _import(name, allow_imports)
    known = {**_public_classes(), **_registered}
    return known[check_choice("class in the file", name, sorted(known))]


@functools.cache
def _public_classes() -> dict[str, type]:
    """The classes of the library that a file may name."""
    packages = map(import_module, _PUBLIC)
    found = {f"ncode.{name}": getattr(package, name) for package in packages for name in package.__all__}
    return {name: thing for name, thing in found.items() if _is_buildable(thing)}


def _import(path: str, allow_imports: Sequence[str] | None) -> Callable[..., Any]:
    """The module class or function at an import path, if its package is allowed."""
    module, _, name = path.partition(":")
    allowed = allow_imports is None or any(module == each or module.startswith(f"{each}.") for each in allow_imports)
    if not allowed:
        raise InputError(
            f"the file names {path}, and importing it would run code of that package: if you trust it, pass"
            f' allow_imports=["{module.partition(".")[0]}"]; or register what it names with'
            f' ncode.register(..., name="{path}")'
        )
    try:
        thing = _attribute(import_module(module), name)
    except ImportError as error:
        raise InputError(f"the file names {path}, which cannot be imported: {error}") from error
    if not _is_buildable(thing) and not isinstance(thing, types.FunctionType):
        raise InputError(f"the file names {path}, which is neither a torch module class nor a function")
    return thing


def _is_buildable(thing: Any) -> bool:
    return isinstance(thing, type) and (issubclass(thing, nn.Module) or is_dataclass(thing))


def _attribute(module: Any, qualified_name: str) -> Any:
    return functools.reduce(lambda parent, part: getattr(parent, part, None), qualified_name.split("."), module)


def _torch_arguments(module: nn.Module) -> dict[str, Any]:
    """The arguments of a module of torch.nn, which keeps them as attributes; bias=True as a parameter of that name."""
    arguments = constructor_arguments(module, skip=("device", "dtype"))
    return {
        name: value is not None if name in module._parameters else to_data(value) for name, value in arguments.items()
    }


def build_module(data: object, allow_imports: Sequence[str] | None, max_memory: float = math.inf) -> nn.Module:
    """Build the module that plain data describe, without advancing the global random number generator."""
    _check_depth(data)
    try:
        with torch.random.fork_rng(devices=[]), MemoryLimit(max_memory):
            module = from_data(data, allow_imports)
    except InputError:
        raise
    except TypeError as error:
        raise InputError(f"the configuration does not fit this version of ncode: {error}") from error
    except Exception as error:  # whatever a constructor raises for arguments that it was not made for
        raise InputError(f"the configuration cannot be built ({type(error).__name__}: {error})") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the configuration describes a {type(module).__name__}, not a module")
    return module


def _check_depth(data: object) -> None:
    """Refuse deep nests before the functions that call themselves meet them: Python's own limit can be moved."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [child for it in level for child in _children(it)]
        if not level:
            return
    raise InputError(f"the configuration is nested too deeply: it has more than {MAX_DEPTH} lists and objects in turn")


def _children(data: object) -> Iterable[object]:
    if isinstance(data, dict):
        return data.values()
    return data if isinstance(data, list) else ()


class MemoryLimit(TorchDispatchMode):
    """Raise `InputError` before the tensors that are made inside take more than `limit` bytes.

    Tensors that are no longer in use do not count. Each of the others counts `OVERHEAD` more, for the objects around
    it, so that a limit also ends the building of a billion small layers.

    >>> with MemoryLimit(1e6):
    ...     layer = nn.Linear(1000, 1000)
    Traceback (most recent call last):
    ncode.errors.InputError: the configuration asks for more than 1,000,000 bytes of memory...
    """

    OVERHEAD = 2**17

    def __init__(self, limit: float):
        super().__init__()
        self.limit, self.used = limit, 0
        self.made: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(argument.name == "device" for argument in func._schema.arguments):
            self.check(_bytes_to_make(func, args, kwargs))
        result = func(*args, **kwargs)
        if not any(output.alias_info for output in func._schema.returns):
            for tensor in pytree.tree_leaves(result):
                self.add(tensor)
        return result

    def add(self, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes() + self.OVERHEAD
        self.made.append((StorageWeakRef(storage), size))
        self.used += size
        self.check(0)

    def check(self, size: int) -> None:
        if self.used + size > self.limit:
            self.made = [(storage, size) for storage, size in self.made if not storage.expired()]
            self.used = sum(size for _, size in self.made)
        if self.used + size > self.limit:
            raise InputError(
                f"the configuration asks for more than {self.limit:,.0f} bytes of memory; if you trust its sizes, pass"
                " max_memory=..."
            )


def _bytes_to_make(function: Any, args: Any, kwargs: Any) -> int:
    """The size of the tensor that a function with an argument `device` is going to make."""
    generator = {"generator": None} if "generator" in kwargs else {}
    with suppress(RuntimeError, TypeError):  # the function itself will raise it
        return function(*args, **{**kwargs, **generator, "device": torch.device("meta")}).nbytes
    return 0
