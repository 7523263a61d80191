"""What a reader sees of a block."""

from __future__ import annotations

from ..control import Controller
from ..dynamics import Dynamics
from .fit import table
from .settings import Settings
from .shortcuts import name_of


def describe(dynamics: Dynamics, controller: Controller, settings: Settings) -> str:
    """The equations, the interval, and how it is solved."""
    shapes = dynamics.control_shapes
    name = type(dynamics).__name__
    lines = [f"dx/dt = {name}(t, x, theta), {controller.equation}" if shapes else f"dx/dt = {name}(t, x)"]
    if shapes:
        lines.append(f"theta: {table(shapes)}")
    shortcut = name_of(dynamics.structure, controller.motion, settings)
    told = {"method": settings.method, **settings.told()}
    how = ", ".join(f"{key}={value!r}" for key, value in told.items() if key not in ("t0", "t1", "exact"))
    lines.append(f"t from {settings.t0} to {settings.t1}, {f'by {shortcut}; else ' if shortcut else ''}{how}")
    return "\n".join(lines)
