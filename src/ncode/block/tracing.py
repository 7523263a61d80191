"""Within torch.compile: a solve that looks at values cannot be traced, and runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

from .settings import Settings

_P = ParamSpec("_P")
_R = TypeVar("_R")


def traceable(function: Callable[_P, _R], settings: Settings) -> Callable[_P, _R]:
    """The function; kept out of a trace unless its steps are known beforehand."""
    if torch.compiler.is_compiling() and not settings.planned:
        return cast(Callable[_P, _R], torch.compiler.disable(function))
    return function
