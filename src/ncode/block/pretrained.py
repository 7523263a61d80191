"""Modules in a folder: config.json says what to build, model.safetensors holds the weights.

The layout is that of the Hugging Face hub, so a folder can be uploaded as it is. Nothing in a folder is ever executed.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from ..ode import InputError
from .registry import from_data, to_data

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_pretrained(module: nn.Module, folder: str | Path) -> None:
    """Write a module into a folder. It is built again for a trial first, so that what is written can be read.

    >>> import tempfile, ncode
    >>> from ncode.block import save_pretrained
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2)), folder)
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise InputError("saving to a folder needs the package safetensors: pip install torch-ncode[hub]") from error
    data = to_data(module)
    _check_same(module, _build(data))
    seen: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(parameter), name)
        if first != name:
            raise InputError(f"{first} and {name} are one parameter, which a folder cannot tell: use torch.save")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    save_file(weights, str(folder / WEIGHTS), metadata={"format": "pt"})


def from_pretrained(folder: str | Path, revision: str | None = None) -> nn.Module:
    """The module that was written into a folder, or into a repository of the hub; in evaluation mode.

    >>> import tempfile, ncode
    >>> from ncode.block import from_pretrained, save_pretrained
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2), t1=2.0), folder)
    ...     from_pretrained(folder).settings.t1
    2.0
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise InputError("loading a folder needs the package safetensors: pip install torch-ncode[hub]") from error
    path = Path(folder) if Path(folder).is_dir() else _download(str(folder), revision)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            raise InputError(f"{path} has no {name}: it does not hold a module that was saved by save_pretrained")
    try:
        data = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path / CONFIG} is damaged: {error}") from error
    try:
        weights = load_file(str(path / WEIGHTS))
    except SafetensorError as error:
        raise InputError(f"{path / WEIGHTS} is damaged: {error}") from error
    module = _build(data)
    try:
        module.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InputError(f"{path / WEIGHTS} does not fit {path / CONFIG}: {error}") from error
    return module.eval()


def _build(data: object) -> nn.Module:
    """A module as described, without touching the stream of random numbers."""
    with torch.random.fork_rng(devices=[]):
        try:
            module = from_data(data)
        except TypeError as error:
            raise InputError(f"the configuration does not fit this version of ncode: {error}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the configuration describes a {type(module).__name__}, and not a module")
    return module


def _check_same(module: nn.Module, again: nn.Module) -> None:
    """Whether what was built again has the tensors of the original."""
    old, new = ({name: tuple(v.shape) for name, v in m.state_dict().items()} for m in (module, again))
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            raise InputError(
                f"this {type(module).__name__} was changed after it was built, and cannot be built again from its"
                f" arguments: {name} is {old.get(name, 'missing')}, and would be {new.get(name, 'missing')}"
            )


def _download(name: str, revision: str | None) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/")):
        raise InputError(f"there is no folder {name}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise InputError(
            f"there is no folder {name}; loading it from the hub needs the package huggingface_hub: pip install"
            " torch-ncode[hub]"
        ) from error
    return Path(snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))
