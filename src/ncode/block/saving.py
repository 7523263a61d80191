"""Modules saved in a folder: config.json says what to build, model.safetensors holds the weights.

A folder can be uploaded to the Hugging Face hub as it is. config.json holds, for each module, the name of its class and
the arguments of its constructor. A class or function is named in one of four ways:

    "ncode.MLP"                  a public name of this library
    "torch.nn.Linear"            a module of torch
    "Trunk"                      a name given by `ncode.register`
    "mypackage.nets:Trunk"       an import path

Loading a file from someone else must not run code of their choice. So the first three are looked up in tables, and an
import path is followed only if the caller allows its package: `from_pretrained(folder, allow_imports=["mypackage"])`.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn

from .._modules import constructor_arguments
from ..errors import InputError, check_choice

CONFIG, WEIGHTS = "config.json", "model.safetensors"
CLASS, ARGUMENTS = "class", "args"
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


def save_pretrained(module: nn.Module, folder: str | Path) -> None:
    """Write a module into a folder: config.json says what to build, model.safetensors holds the weights.

    Needs the package safetensors. Classes and functions of your own are named by their import path, or as given to
    `ncode.register`.

    >>> import tempfile, ncode
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2)), folder)
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    safetensors = _optional("safetensors.torch", "saving to a folder")
    data = to_data(module)
    _check_same(module, _build(data, None))
    seen: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(parameter), name)
        if first != name:
            raise InputError(f"{first} and {name} are one parameter, which a folder cannot express: use torch.save")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    safetensors.save_file(weights, str(folder / WEIGHTS), metadata={"format": "pt"})


def from_pretrained(folder: str | Path, revision: str | None = None, allow_imports: Sequence[str] = ()) -> nn.Module:
    """Load a module from a folder, or from a repository of the Hugging Face hub; in evaluation mode.

    Args:
        folder: A folder written by `save_pretrained`, or the name of a repository, "user/name".
        revision: The revision of a repository.
        allow_imports: Packages that the file may import classes and functions from, such as ["mypackage"]. Importing a
            package runs its code: allow only what you trust.

    >>> import tempfile, ncode
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2), t1=2.0), folder)
    ...     from_pretrained(folder).settings.t1
    2.0
    """
    safetensors = _optional("safetensors.torch", "loading a folder")
    path = Path(folder) if Path(folder).is_dir() else _download(str(folder), revision)
    data = _read(path / CONFIG, lambda file: json.loads(file.read_text(encoding="utf-8")))
    weights = _read(path / WEIGHTS, safetensors.load_file)
    module = _build(data, [allow_imports] if isinstance(allow_imports, str) else allow_imports)
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InputError(f"{path / WEIGHTS} does not fit {path / CONFIG}: {error}") from error
    return module.eval()


class Pretrained(nn.Module):
    """A module with methods that save it in a folder and load it."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write this module into a folder, as `ncode.block.save_pretrained` does."""
        save_pretrained(self, folder)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, revision: str | None = None, allow_imports: Sequence[str] = ()
    ) -> Self:
        """Load a module of this class; the arguments are those of `ncode.block.from_pretrained`."""
        module = from_pretrained(folder, revision, allow_imports)
        if not isinstance(module, cls):
            raise InputError(f"{folder} holds a {type(module).__name__}, not a {cls.__name__}")
        return module


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
    name = str(name)
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


def _build(data: object, allow_imports: Sequence[str] | None) -> nn.Module:
    """Build a module without advancing the global random number generator."""
    with torch.random.fork_rng(devices=[]):
        try:
            module = from_data(data, allow_imports)
        except TypeError as error:
            raise InputError(f"the configuration does not fit this version of ncode: {error}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the configuration describes a {type(module).__name__}, not a module")
    return module


def _check_same(module: nn.Module, again: nn.Module) -> None:
    """Check that the module built again has the tensors of the original."""
    old, new = ({name: tuple(v.shape) for name, v in m.state_dict().items()} for m in (module, again))
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            raise InputError(
                f"this {type(module).__name__} was changed after it was built, and cannot be built again from its"
                f" arguments: {name} is {old.get(name, 'missing')}, and would be {new.get(name, 'missing')}"
            )


def _read(file: Path, read: Callable[[Path], Any]) -> Any:
    if not file.is_file():
        raise InputError(f"{file.parent} has no {file.name}: it does not hold a module saved by save_pretrained")
    try:
        return read(file)
    except Exception as error:  # safetensors has exceptions of its own
        raise InputError(f"{file} is damaged: {error}") from error


def _download(name: str, revision: str | None) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/")):
        raise InputError(f"there is no folder {name}")
    hub = _optional("huggingface_hub", f"there is no folder {name}; loading it from the hub")
    return Path(hub.snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))


def _optional(module: str, task: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f"{task} needs the package {package}: pip install torch-ncode[hub]") from error
