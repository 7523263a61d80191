"""Within torch.compile: a solve looks at values, which cannot be traced, and runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def traceable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, kept out of a trace; torch.export, which is for steps known beforehand, may look inside."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return cast(Callable[_P, _R], torch.compiler.disable(function))
    return function
