"""torchdiffeq's implicit methods by name, as data.

`implicit_euler` and `trapezoid` are those of the core. Coefficients: Hairer and Wanner, "Solving Ordinary Differential
Equations II", section IV.5 (Gauss and Radau IIA); Alexander (1977), "Diagonally implicit Runge-Kutta methods for stiff
O.D.E.'s" (sdirk2); Hosea and Shampine (1996), "Analysis and implementation of TR-BDF2" (trbdf2).
"""

from __future__ import annotations

from math import sqrt

from ...ode.implicit_tableau import STIFF_METHODS, DirkTableau
from .implicit import ImplicitMethod


def _of_core(name: str) -> ImplicitMethod:
    tableau = STIFF_METHODS[name]
    assert isinstance(tableau, DirkTableau)
    return ImplicitMethod.of(tableau)


def _sdirk2() -> ImplicitMethod:
    gamma = 1 - sqrt(2) / 2
    last = (1 - gamma, gamma)
    return ImplicitMethod("sdirk2", 2, c=(gamma, 1.0), a=((gamma, 0.0), last), b=last)


def _trbdf2() -> ImplicitMethod:
    """The trapezoidal rule to 2 gamma h, then the BDF formula of order 2 to h."""
    gamma, outer = 1 - sqrt(2) / 2, sqrt(2) / 4
    last = (outer, outer, gamma)
    return ImplicitMethod("trbdf2", 2, c=(0.0, 2 * gamma, 1.0), a=((0.0, 0.0, 0.0), (gamma, gamma, 0.0), last), b=last)


def _radau3() -> ImplicitMethod:
    last = (3 / 4, 1 / 4)
    return ImplicitMethod("radauIIA3", 3, c=(1 / 3, 1.0), a=((5 / 12, -1 / 12), last), b=last)


def _radau5() -> ImplicitMethod:
    root = sqrt(6)
    last = ((16 - root) / 36, (16 + root) / 36, 1 / 9)
    return ImplicitMethod(
        "radauIIA5",
        5,
        c=((4 - root) / 10, (4 + root) / 10, 1.0),
        a=(
            ((88 - 7 * root) / 360, (296 - 169 * root) / 1800, (-2 + 3 * root) / 225),
            ((296 + 169 * root) / 1800, (88 + 7 * root) / 360, (-2 - 3 * root) / 225),
            last,
        ),
        b=last,
    )


def _gauss4() -> ImplicitMethod:
    """With the nodes of Gauss's formula; torchdiffeq has the first one twice."""
    shift = sqrt(3) / 6
    return ImplicitMethod(
        "gl4",
        4,
        c=(1 / 2 - shift, 1 / 2 + shift),
        a=((1 / 4, 1 / 4 - shift), (1 / 4 + shift, 1 / 4)),
        b=(1 / 2, 1 / 2),
    )


def _gauss6() -> ImplicitMethod:
    root = sqrt(15)
    return ImplicitMethod(
        "gl6",
        6,
        c=(1 / 2 - root / 10, 1 / 2, 1 / 2 + root / 10),
        a=(
            (5 / 36, 2 / 9 - root / 15, 5 / 36 - root / 30),
            (5 / 36 + root / 24, 2 / 9, 5 / 36 - root / 24),
            (5 / 36 + root / 30, 2 / 9 + root / 15, 5 / 36),
        ),
        b=(5 / 18, 4 / 9, 5 / 18),
    )


_ALL = (
    _of_core("implicit_euler"),
    ImplicitMethod("implicit_midpoint", 2, c=(1 / 2,), a=((1 / 2,),), b=(1.0,)),
    _of_core("trapezoid"),
    _sdirk2(),
    _trbdf2(),
    _radau3(),
    _radau5(),
    _gauss4(),
    _gauss6(),
)
IMPLICIT = {method.name: method for method in _ALL}
