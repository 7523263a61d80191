"""How a problem is solved: `SolveOptions`, the checked keyword arguments that `solve` and `NCODE` share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from .._torch_private import is_tracing
from ..errors import InputError, check_choice, check_count, check_function, check_number, format_type
from .backends import Backend, find_backend
from .implicit_tableau import DirkTableau
from .methods import ALL_METHODS, Method, find_method, is_implicit, make_step
from .step import PID, Step, StepLimits, StepSizeRule
from .system import RightHandSide
from .tolerance import check_tolerance, smallest_positive

GRADIENTS = ("discrete", "adjoint", "autograd")
STEPS = ("sample", "batch")
KEEPS = ("auto", "graph", "states")
MOST_STEPS = 2**31 - 1  # counts are 32-bit integers


@dataclass(frozen=True)
class SolveOptions:
    """How a problem is solved: the keyword arguments of `ncode.solve` of the same names, checked.

    >>> from ncode import SolveOptions
    >>> SolveOptions(method="rk4", dt=0.5).changed(dt=0.25).non_default()
    {'method': 'rk4', 'dt': 0.25}
    """

    method: str | Method = "dopri5"
    rtol: Any = 1e-3  # a number, a tensor, or a tuple or dict of these
    atol: Any = 1e-6
    dt: float | None = None
    min_dt: float | None = None
    max_dt: float | None = None
    step: str = "sample"
    gradient: str = "discrete"
    compile: bool | str | Backend = False
    max_steps: int = 10_000
    checkpoint_every: int = 1
    keep: str | int = "auto"
    step_rule: StepSizeRule | None = None

    def __post_init__(self) -> None:
        self._check_method()
        check_choice("step", self.step, STEPS)
        check_choice("gradient", self.gradient, GRADIENTS)
        self._check_keep()
        for name in ("max_steps", "checkpoint_every"):
            object.__setattr__(self, name, min(check_count(name, getattr(self, name)), MOST_STEPS))
        self._check_compiled()
        if self.step_rule is not None and not isinstance(self.step_rule, StepSizeRule):
            raise InputError(
                f"step_rule must be a StepSizeRule, such as PID(p=0.2); given {format_type(self.step_rule)}"
            )
        if self.step_rule is not None:
            name = f"the method factor of {type(self.step_rule).__name__}"
            check_function(name, self.step_rule.factor, ("order", "ratio", "previous", "earlier"))

    def _check_method(self) -> None:
        tableau = self.tableau
        rtol, atol = check_tolerance("rtol", self.rtol), check_tolerance("atol", self.atol)
        for name, value in (("rtol", rtol), ("atol", atol)):
            if not isinstance(value, float):
                object.__setattr__(self, name, value)
        if isinstance(rtol, float) and isinstance(atol, float) and rtol == atol == 0.0:
            raise InputError("rtol and atol are both 0: no step is that exact")
        for name in ("dt", "min_dt", "max_dt"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_number(name, getattr(self, name), low=0.0, strict=True))
        self._check_limits()
        if self.dt is not None:
            return
        if not tableau.adaptive:
            adaptive = ", ".join(name for name, known in ALL_METHODS.items() if known.adaptive)
            raise InputError(
                f'method "{tableau.name}" has no error estimate: give a step size dt, or use one of {adaptive}'
            )

    def _check_keep(self) -> None:
        if isinstance(self.keep, str):
            check_choice("keep", self.keep, KEEPS)
        else:
            object.__setattr__(self, "keep", check_count("keep", self.keep))

    def _check_compiled(self) -> None:
        if isinstance(self.tableau, DirkTableau) and self.backend.fuses:
            raise InputError(
                f"method {self.tableau.name!r} iterates until each sample has converged, which cannot be compiled: use"
                ' compile=False, or method="rodas5p"'
            )

    def _check_limits(self) -> None:
        low, high = self.limits
        if self.dt is not None and (self.min_dt is not None or self.max_dt is not None):
            raise InputError("dt fixes the step size: leave out min_dt and max_dt, or dt")
        if low > high:
            raise InputError(f"min_dt = {low:g} is larger than max_dt = {high:g}: no step would do")

    @cached_property
    def tableau(self) -> Method:
        """The coefficients of the method."""
        return find_method(self.method)

    @cached_property
    def _tightest(self) -> tuple[float, float]:
        """The smallest rtol and atol, read once: a step that is made while a compiler traces cannot read tensors."""
        return smallest_positive(self.rtol), smallest_positive(self.atol)

    def make_step(
        self, system: RightHandSide, *, estimate: bool = False, dense: bool = False, slopes: bool = False
    ) -> Step:
        """The method's step for a system."""
        return make_step(
            self.tableau,
            system,
            estimate=estimate,
            dense=dense,
            slopes=slopes,
            tolerance=self._tightest if self.dt is None else None,
            corrections=2 if self.gradient == "autograd" else 1,
        )

    @property
    def jacobian_of(self) -> str | None:
        """The name of a method that needs a Jacobian per sample."""
        return self.tableau.name if self.implicit else None

    @cached_property
    def implicit(self) -> bool:
        """Whether steps use Jacobians."""
        return is_implicit(self.tableau)

    @property
    def backend(self) -> Backend:
        """The backend that `compile` asks for."""
        return find_backend(self.compile)

    @property
    def shared_step(self) -> bool:
        """Whether all samples take the same steps."""
        return self.step == "batch"

    @cached_property
    def limits(self) -> StepLimits:
        """The smallest and the largest step."""
        return StepLimits(self.min_dt or 0.0, math.inf if self.max_dt is None else self.max_dt)

    @cached_property
    def rule(self) -> StepSizeRule:
        """The rule that chooses step sizes."""
        return PID() if self.step_rule is None else self.step_rule

    def changed(self, **changes: Any) -> SolveOptions:
        """The same options with some other values; an unknown name is refused."""
        for name in changes:
            check_choice("option", name, self.as_dict())
        return replace(self, **changes) if changes else self

    def for_export(self, times: Iterable[Any], fix: str) -> SolveOptions:
        """The options with which a solve is exported or traced: fixed steps as a plain graph, with the same values.

        Args:
            times: t0 and t1.
            fix: What to do about steps that are chosen by their error, for the message.
        """
        if not torch.compiler.is_exporting() and not is_tracing():
            return self
        if self.dt is None:
            raise InputError(
                "only a solve whose steps are known beforehand can be exported or traced, and this one chooses them by"
                f" their error: {fix}; choose dt by comparing with the results of adaptive steps"
            )
        if any(isinstance(time, Tensor) for time in times):
            raise InputError(
                "only a solve whose steps are known beforehand can be exported or traced, and t0 or t1 is a tensor,"
                " which leaves their number open: give numbers"
            )
        return self.changed(gradient="autograd", compile=False)

    def non_default(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        default = {it.name: it.default for it in fields(self)}
        options, nested = self.as_dict().items(), (Tensor, tuple, dict)
        return {name: value for name, value in options if isinstance(value, nested) or value != default[name]}

    def as_dict(self) -> dict[str, Any]:
        """All options by name: the keyword arguments of `ncode.solve`."""
        return {it.name: getattr(self, it.name) for it in fields(self)}


def make_options(**given: Any) -> SolveOptions:
    """Options by keyword; those of plain values are checked once, and found again."""
    if isinstance(given["method"], str) and all(isinstance(given[name], float) for name in ("rtol", "atol")):
        try:
            return _known_options(**given)
        except TypeError:  # a value that has no hash: its own check says what is wrong with it, if anything
            pass
    return SolveOptions(**given)


_known_options = lru_cache(maxsize=256, typed=True)(SolveOptions)
