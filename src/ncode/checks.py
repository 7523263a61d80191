"""Checks of arguments, for constructors of your own too: each raises `InputError` with a sentence."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

from .errors import InputError


def check_choice(kind: str, given: Any, known: Iterable[str]) -> str:
    """Return `given` if it is one of the known names; otherwise raise with the nearest one.

    >>> from ncode.checks import check_choice
    >>> check_choice("norm", "sphere", ["none", "sphere"])
    'sphere'
    """
    known = list(known)
    if isinstance(given, str) and given in known:
        return given
    near = difflib.get_close_matches(str(given), known, n=1, cutoff=0.4)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise InputError(f"unknown {kind} {given!r}{hint} (known: {', '.join(known)})")


def check_number(name: str, value: Any, *, low: float, strict: bool = False) -> float:
    """Return a finite number that is at least `low` (above `low` if `strict`).

    >>> from ncode.checks import check_number
    >>> check_number("rtol", 1e-3, low=0.0)
    0.001
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number; given {value!r}")
    if value < low or (strict and value == low):
        raise InputError(f"{name} must be {'above' if strict else 'at least'} {low:g}; given {value}")
    return float(value)


def check_count(name: str, value: Any, *, low: int = 1) -> int:
    """Return a whole number that is at least `low`.

    >>> from ncode.checks import check_count
    >>> check_count("hidden", 16)
    16
    """
    number = check_number(name, value, low=low)
    if number != int(number):
        raise InputError(f"{name} must be a whole number; given {value}")
    return int(number)
