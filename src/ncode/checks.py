"""Checks of arguments, for constructors of your own too: each raises `InputError` with a sentence."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from .errors import InputError

__all__ = ["check_choice", "check_count", "check_fraction", "check_function", "check_number"]


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


def check_fraction(name: str, value: Any) -> float:
    """Return a number that is at least 0 and below 1.

    >>> from ncode.checks import check_fraction
    >>> check_fraction("dropout", 0.5)
    0.5
    """
    number = check_number(name, value, low=0.0)
    if number >= 1.0:
        raise InputError(f"{name} must be at least 0 and below 1; given {value}")
    return number


def check_function(name: str, value: Any, arguments: Sequence[str], hint: str = "") -> Callable[..., Any]:
    """Return a function or module that can be called with these arguments, in this order.

    >>> from ncode.checks import check_function
    >>> check_function("feedback", lambda t, x, theta: theta, ("t", "x", "theta"))(0, 1, 2)
    2
    """
    wanted = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(value):
        raise InputError(f"{wanted}; given {type(value).__name__}{hint}")
    function = value.forward if isinstance(value, nn.Module) else value
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C need not have one
        return value
    try:
        signature.bind(*arguments)
    except TypeError:
        shown = type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", repr(value))
        raise InputError(f"{wanted}; {shown} takes {signature}{hint}") from None
    return value
