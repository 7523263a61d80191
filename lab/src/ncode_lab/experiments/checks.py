"""Checks that settings share."""

from __future__ import annotations

from collections.abc import Sequence

from ncode import InputError
from ncode.checks import check_choice


def check_positive(**settings: float) -> None:
    """Numbers above zero.

    >>> check_positive(steps=3)
    >>> check_positive(steps=0)
    Traceback (most recent call last):
    ncode.errors.InputError: steps must be above 0; given 0
    """
    for name, value in settings.items():
        if not value > 0:
            raise InputError(f"{name} must be above 0; given {value!r}")


def check_choices(name: str, given: Sequence[str], known: Sequence[str]) -> None:
    """At least one of the known names, each once."""
    if not given:
        raise InputError(f"{name}s must name at least one of: {', '.join(known)}")
    for value in given:
        check_choice(name, value, known)
    if len(set(given)) < len(given):
        raise InputError(f"{name}s must be named once each; given {', '.join(given)}")
