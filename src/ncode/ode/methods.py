"""All methods by name, and the step that belongs to a method."""

from __future__ import annotations

from typing import Any

from ..errors import check_choice
from .auto import AUTO, AutoMethod, AutoStep
from .implicit import DirkStep, RosenbrockStep
from .implicit_tableau import STIFF_METHODS, DirkTableau, RosenbrockTableau
from .step import ExplicitStep, Step
from .system import RightHandSide
from .tableau import METHODS, Tableau

Method = Tableau | RosenbrockTableau | DirkTableau | AutoMethod
ALL_METHODS: dict[str, Method] = {**METHODS, **STIFF_METHODS, AUTO.name: AUTO}


def find_method(method: Any) -> Method:
    """The coefficients of a method, given by name or as they are."""
    if isinstance(method, Method):
        return method
    return ALL_METHODS[check_choice("method", method, ALL_METHODS)]


def make_step(
    method: Method,
    system: RightHandSide,
    *,
    estimate: bool = False,
    dense: bool = False,
    slopes: bool = False,
    tolerance: tuple[float, float] | None = None,
    corrections: int = 1,
) -> Step:
    """The step of a method for a system; see `Step` and, for the last two arguments, `DirkStep`."""
    if isinstance(method, Tableau):
        return ExplicitStep(system, method, estimate, dense, slopes)
    if isinstance(method, RosenbrockTableau):
        return RosenbrockStep(system, method, estimate, dense, slopes)
    if isinstance(method, AutoMethod):
        return AutoStep(system, method, estimate, dense, slopes)
    return DirkStep(system, method, estimate, dense, slopes, tolerance, corrections)


def is_implicit(method: Method) -> bool:
    """Whether steps of a method use Jacobians."""
    return not isinstance(method, Tableau)
