"""`Pretrained`: what a block and a network of blocks have in common, saving and other solver options."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import nn

from ..errors import InputError
from .saving import from_pretrained, save_pretrained
from .settings import Settings

_M = TypeVar("_M", bound=nn.Module)


class Pretrained(nn.Module):
    """A module that is saved in a folder and loaded from it, and whose blocks can be solved with other options."""

    def save_pretrained(
        self, folder: str | Path, notes: Mapping[str, str] | None = None, name: str | None = None
    ) -> None:
        """Write this module into a folder, as `ncode.save_pretrained` does."""
        save_pretrained(self, folder, notes, name)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        revision: str | None = None,
        allow_imports: Sequence[str] = (),
        max_memory: float | None = None,
    ) -> Self:
        """Load a module of this class; the arguments are those of `ncode.from_pretrained`."""
        module = from_pretrained(folder, revision, allow_imports, max_memory)
        if not isinstance(module, cls):
            raise InputError(
                f"{folder} holds a {type(module).__name__}, not a {cls.__name__}: use ncode.from_pretrained"
            )
        return module

    def with_options(self, **changes: Any) -> Self:
        """Return this module with other settings of its blocks: method, dt, rtol, t1, compile, ...

        Weights are shared: training one of the two, or moving it to another device, changes both. The settings are
        checked as by the constructor of `NCODE`.

        >>> import torch, ncode
        >>> block = ncode.NCODE(ncode.dynamics.MLP(2))  # adaptive steps
        >>> fixed = block.with_options(method="rk4", dt=0.25)  # for torch.export and ONNX
        >>> x = torch.randn(3, 2)
        >>> bool((fixed(x) - block(x)).abs().max() < 1e-3)
        True
        """
        changed = _with_options(self, changes)
        if changed is self:
            raise InputError(f"this {type(self).__name__} has no block whose settings could be changed")
        return changed


def shallow_copy(module: _M) -> _M:
    """Return a module with the same parameters, buffers and children, which can be given others."""
    again = copy.copy(module)
    again.__dict__.update({key: copy.copy(value) for key, value in vars(module).items() if isinstance(value, dict)})
    return again


def _with_options(module: _M, changes: Mapping[str, Any]) -> _M:
    """The module itself if there is no block in it, otherwise a copy of it whose blocks have other settings."""
    settings = getattr(module, "settings", None)
    if isinstance(settings, Settings):  # a block
        again = shallow_copy(module)
        again.settings = settings.changed(changes)  # pyright: ignore[reportArgumentType]
        return again
    children = {name: _with_options(child, changes) for name, child in module.named_children()}
    if all(child is module._modules[name] for name, child in children.items()):
        return module
    again = shallow_copy(module)
    again._modules.update(children)
    return again
