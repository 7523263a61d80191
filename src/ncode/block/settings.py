"""The settings of a block: its interval, the options of the solver, and whether closed forms may replace it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..closed_forms.select import ClosedForm, closed_form
from ..control import Controller
from ..dynamics import Dynamics
from ..errors import InputError, check_choice, check_flag, check_number, check_tensor, format_value
from ..ode import SolveOptions

_OWN = ("t0", "t1", "exact")


@dataclass(frozen=True)
class Settings:
    """The interval of a block, the options of the solver, and whether closed forms may replace it.

    >>> settings = Settings(t1=2.0).changed({"method": "rk4", "dt": 0.5})
    >>> settings.t1, settings.options.method, settings.options.dt
    (2.0, 'rk4', 0.5)
    """

    t0: float | Tensor = 0.0
    t1: float | Tensor = 1.0
    exact: bool = True
    options: SolveOptions = field(default_factory=SolveOptions)

    def __post_init__(self) -> None:
        for name in ("t0", "t1"):
            value = getattr(self, name)
            _ = check_tensor(name, value) if isinstance(value, Tensor) else check_number(name, value, low=-math.inf)
        check_flag("exact", self.exact)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """The same settings with other values of t0, t1, exact, or options of the solver."""
        for name in changes:
            check_choice("setting", name, [*_OWN, *self.options.as_dict()])
        own = {name: value for name, value in changes.items() if name in _OWN}
        options = {name: value for name, value in changes.items() if name not in _OWN}
        return replace(self, **own, options=self.options.changed(**options)) if changes else self

    def as_dict(self) -> dict[str, Any]:
        """All settings by name: the keyword arguments of `NCODE`."""
        return {**{name: getattr(self, name) for name in _OWN}, **self.options.as_dict()}

    def closed_form(self, dynamics: Dynamics, controller: Controller) -> ClosedForm | None:
        """The closed form that may replace the solver, or None."""
        if not self.exact:
            return None
        return closed_form(dynamics.structure, controller.motion, self.t0, self.t1, self.options)

    def changes_from(self, base: Settings) -> dict[str, Any]:
        """The settings that differ from those of `base`, as the keyword arguments of `NCODE` that files can hold."""
        before, now = base.as_plain_dict(), self.as_plain_dict()
        return {name: value for name, value in now.items() if value != before[name]}

    def as_plain_dict(self) -> dict[str, Any]:
        """All settings by name, tolerances per component as lists."""
        settings = self.as_dict()
        for name in ("rtol", "atol"):
            settings[name] = settings[name].tolist() if isinstance(settings[name], Tensor) else settings[name]
        return settings

    def for_export(self) -> Settings:
        """The settings with which a block is exported or traced, as `SolveOptions.for_export` changes them."""
        fix = 'export block.with_options(method="rk4", dt=0.1), which shares its weights and takes fixed steps'
        options = self.options.for_export((self.t0, self.t1), fix)
        return self if options is self.options else replace(self, options=options, exact=False)


def check_settings(solver: Any) -> Mapping[str, Any]:
    """Return settings of a block by name, as a model takes them; None for none."""
    if solver is not None and not isinstance(solver, Mapping):
        raise InputError(f'solver must be a dict such as {{"method": "rk4", "dt": 0.1}}; given {format_value(solver)}')
    return solver or {}
