"""How a block is solved, unless a solve is told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from ..checks import check_choice, check_count
from ..ode import PID
from ..ode.problem import GRADIENTS, check_method


@dataclass(frozen=True)
class Settings:
    """The interval, and what `ncode.solve` takes; `exact` lets closed forms take the place of a solver.

    >>> from ncode.block import Settings
    >>> Settings(t1=2.0).changed({"method": "rk4", "dt": 0.5}).told()
    {'t1': 2.0, 'method': 'rk4', 'dt': 0.5}
    """

    t0: float | Tensor = 0.0
    t1: float | Tensor = 1.0
    method: str = "dopri5"
    rtol: float = 1e-3
    atol: float = 1e-6
    dt: float | None = None
    step: str = "sample"
    gradient: str = "discrete"
    compile: bool = False
    max_steps: int = 10_000
    checkpoint_every: int = 1
    pid: PID | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        check_method(self.method, self.rtol, self.atol, self.dt)
        check_choice("step", self.step, ("sample", "batch"))
        check_choice("gradient", self.gradient, GRADIENTS)
        for name in ("max_steps", "checkpoint_every"):
            check_count(name, getattr(self, name))

    def changed(self, changes: dict[str, Any]) -> Settings:
        """The same with some other values."""
        for name in changes:
            check_choice("setting", name, [known.name for known in fields(self)])
        return replace(self, **changes) if changes else self

    def told(self) -> dict[str, Any]:
        """Those that are not the default."""
        values = {known.name: (getattr(self, known.name), known.default) for known in fields(self)}
        return {name: now for name, (now, usual) in values.items() if isinstance(now, Tensor) or now != usual}

    def all(self) -> dict[str, Any]:
        """All by name."""
        return {known.name: getattr(self, known.name) for known in fields(self)}

    def solver(self) -> dict[str, Any]:
        """The keyword arguments of `ncode.solve`."""
        return {name: value for name, value in self.all().items() if name not in ("t0", "t1", "exact")}
