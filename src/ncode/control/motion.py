"""How a control moves: what a controller tells, so that a solver may use it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Still:
    """The control is a constant of the flow."""


@dataclass(frozen=True)
class Free:
    """The control moves, and nothing more is told."""


@dataclass(frozen=True, eq=False)
class Outer:
    """dtheta/dt = mu * x x^T - decay * theta, for the control of this name, from theta_0 (n, n) for all samples."""

    control: str
    mu: Tensor
    theta_0: Tensor
    decay: Tensor | None = None


Motion = Still | Free | Outer
