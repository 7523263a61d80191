"""`Settings`: the interval of a block and how it is solved; and the text that `print(block)` shows of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .._modules import format_shapes
from ..checks import check_choice
from ..closed_forms.select import ClosedForm, closed_form
from ..control import Controller
from ..dynamics import Dynamics
from ..errors import InputError
from ..ode.problem import SolveOptions

_OWN = ("t0", "t1", "exact")


@dataclass(frozen=True)
class Settings:
    """The interval of a block, the options of the solver, and whether closed forms may replace it.

    >>> from ncode.block import Settings
    >>> settings = Settings(t1=2.0).changed({"method": "rk4", "dt": 0.5})
    >>> settings.t1, settings.options.method, settings.options.dt
    (2.0, 'rk4', 0.5)
    """

    t0: float | Tensor = 0.0
    t1: float | Tensor = 1.0
    exact: bool = True
    options: SolveOptions = field(default_factory=SolveOptions)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """The same settings with some other values: of t0, t1, exact, or of an option of the solver."""
        for name in changes:
            check_choice("setting", name, [*_OWN, *SolveOptions.names()])
        own = {name: value for name, value in changes.items() if name in _OWN}
        options = {name: value for name, value in changes.items() if name not in _OWN}
        return replace(self, **own, options=self.options.changed(**options)) if changes else self

    def as_dict(self) -> dict[str, Any]:
        """All settings by name: the keyword arguments of `NCODE`."""
        return {**{name: getattr(self, name) for name in _OWN}, **self.options.as_dict()}

    def closed_form(self, dynamics: Dynamics, controller: Controller) -> ClosedForm | None:
        """The closed form that may replace the solver, or None."""
        return (
            closed_form(dynamics.structure, controller.motion, self.t0, self.t1, self.options) if self.exact else None
        )

    def check_export(self) -> None:
        """Raise `InputError` during torch.export of a block whose operations depend on values."""
        numbers = not isinstance(self.t0, Tensor) and not isinstance(self.t1, Tensor)
        options = self.options
        static = options.dt is not None and options.gradient == "autograd" and numbers and not options.compile
        if torch.compiler.is_exporting() and not static:
            raise InputError(
                "only a block whose steps are known beforehand can be exported: give it a step size dt and"
                ' gradient="autograd"'
            )


def describe(dynamics: Dynamics, controller: Controller, settings: Settings) -> str:
    """The equations, the interval, and how it is solved."""
    shapes = dynamics.control_shapes
    name = type(dynamics).__name__
    lines = [f"dx/dt = {name}(t, x, theta), {controller.equation}" if shapes else f"dx/dt = {name}(t, x)"]
    if shapes:
        lines.append(f"theta: {format_shapes(shapes)}")
    form = settings.closed_form(dynamics, controller)
    options = {"method": settings.options.method, **settings.options.non_default()}
    solver = ", ".join(f"{key}={value!r}" for key, value in options.items())
    lines.append(f"t from {settings.t0} to {settings.t1}, {f'by {form.name}; else ' if form else ''}{solver}")
    return "\n".join(lines)
