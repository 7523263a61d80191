"""Closed forms and fast paths: where the dynamics' structure and the control's motion allow for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..control.base import Controller, Theta
from ..control.motion import Motion, Still
from ..dynamics.base import Dynamics
from ..dynamics.structure import Product, Structure
from ..solve.exponential import linear_flow
from ..solve.problem import transforming
from .settings import Settings


class Reached(NamedTuple):
    """Where a shortcut leads."""

    x: Tensor  # at t1
    xs: Tensor | None  # at the saved times


Shortcut = Callable[[Tensor, Theta, Tensor | None], Reached]


def shortcut(dynamics: Dynamics, controller: Controller, settings: Settings, x0: Tensor) -> Shortcut | None:
    """A way around the solver, where there is one and the settings do not forbid it."""
    if not settings.exact or transforming():
        return None
    structure = dynamics.structure
    match structure, controller.motion:
        case Product(rho="identity"), Still() if _exponential(settings, x0):
            return lambda x, theta, ts: _linear(structure, settings, x, theta, ts)
        case _:
            return None


def name_of(structure: Structure, motion: Motion, settings: Settings) -> str | None:
    """What the shortcut is called, for a reader."""
    match structure, motion:
        case Product(rho="identity"), Still() if settings.exact and settings.dt is None:
            return "the matrix exponential"
        case _:
            return None


def _exponential(settings: Settings, x0: Tensor) -> bool:
    # A step size asks for the discretisation, and not for what it approximates.
    return settings.dt is None and x0.dim() == 2 and not x0.is_complex()


def _linear(product: Product, settings: Settings, x0: Tensor, theta: Theta, ts: Tensor | None) -> Reached:
    """x(t) = exp(theta (t - t0)) x0."""
    flow = linear_flow(
        theta[product.control].to(x0.dtype),
        x0,
        settings.t0,
        settings.t1,
        columns=product.columns,
        save_at=ts,
        # An ordinary graph was asked for, with second derivatives.
        formulation="matrix" if settings.gradient == "autograd" else "auto",
    )
    return Reached(flow.x, flow.xs)
