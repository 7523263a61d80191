"""A controller is bound once."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from ..errors import InputError
from .base import Shapes


def check_unbound(who: nn.Module, names: Iterable[str]) -> None:
    """Refuse a second block: the weights that a controller makes belong to one."""
    bound = tuple(names)
    if bound:
        raise InputError(
            f"this {type(who).__name__} already controls {', '.join(bound)} of another block: give each block a"
            " controller of its own"
        )


def check_bound(who: nn.Module, bound: bool) -> None:
    """Refuse to work before there is a block."""
    if not bound:
        raise InputError(
            f"this {type(who).__name__} is not part of a block yet: pass it to ncode.NCODE(dynamics, controller)"
        )


def describe(shapes: Shapes) -> str:
    """Shapes for a reader."""
    shown = (f"{name!r} {tuple('any' if n is None else n for n in shape)}" for name, shape in shapes.items())
    return ", ".join(shown).replace("'any'", "any") or "none"
