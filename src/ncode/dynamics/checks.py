"""Checks of what constructors are given."""

from __future__ import annotations

from typing import Any

from ..solve.status import InputError


def count(name: str, value: Any, *, low: int = 1) -> int:
    """A whole number above a bound."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number; given {value!r}")
    if value < low:
        raise InputError(f"{name} must be at least {low}; given {value}")
    return value
