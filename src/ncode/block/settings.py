"""How a block is solved, unless a solve is told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from ..solve import METHODS, PID
from ..solve.problem import GRADIENTS, check_number, choose
from ..solve.status import InputError


@dataclass(frozen=True)
class Settings:
    """The interval, and what `ncode.solve` takes; `exact` lets closed forms take the place of a solver."""

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
        choose("method", self.method, METHODS)
        choose("step", self.step, ("sample", "batch"))
        choose("gradient", self.gradient, GRADIENTS)
        if self.dt is not None:
            check_number("dt", self.dt, low=0.0, strict=True)
        elif not METHODS[self.method].adaptive:
            raise InputError(f'method "{self.method}" has no error estimate: give a step size dt')

    def changed(self, changes: dict[str, Any]) -> Settings:
        """The same with some other values."""
        for name in changes:
            choose("setting", name, [known.name for known in fields(self)])
        return replace(self, **changes) if changes else self

    def told(self) -> dict[str, Any]:
        """Those that are not the default."""
        return {known.name: value for known in fields(self) if (value := getattr(self, known.name)) != known.default}

    def all(self) -> dict[str, Any]:
        """All by name."""
        return {known.name: getattr(self, known.name) for known in fields(self)}

    def solver(self) -> dict[str, Any]:
        """The keyword arguments of `ncode.solve`."""
        return {name: value for name, value in self.all().items() if name not in ("t0", "t1", "exact")}
