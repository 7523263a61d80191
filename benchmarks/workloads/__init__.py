"""The problems: one file each, with a `TITLE` and a function `contest(settings)`. A new file is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names() -> list[str]:
    """What `--only` knows: the files' names, with hyphens."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """The module of a workload."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
