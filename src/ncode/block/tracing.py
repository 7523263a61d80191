"""A solve looks at values: torch.compile must keep out of it, and torch.export needs steps known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from ..errors import InputError
from .settings import Settings

_P = ParamSpec("_P")
_R = TypeVar("_R")


def traceable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, kept out of a trace; torch.export, which is for steps known beforehand, may look inside."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return cast(Callable[_P, _R], torch.compiler.disable(function))
    return function


def check_export(settings: Settings) -> None:
    """Refuse to export what depends on values."""
    numbers = not isinstance(settings.t0, Tensor) and not isinstance(settings.t1, Tensor)
    planned = settings.dt is not None and settings.gradient == "autograd" and numbers and not settings.compile
    if torch.compiler.is_exporting() and not planned:
        raise InputError(
            "only a block whose steps are known beforehand can be exported: give it a step size dt and"
            ' gradient="autograd"'
        )
