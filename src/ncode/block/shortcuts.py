"""Closed forms and fast paths, where the dynamics' structure and the control's motion allow for them.

Each takes the place of the solver, gives the same answer, and is switched off by `exact=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_transforming
from ..closed_forms import fused
from ..closed_forms.exponential import linear_flow
from ..closed_forms.plastic import episode
from ..control.base import Controller, Theta
from ..control.motion import Motion, Outer, Still
from ..dynamics.activations import ACTIVATIONS
from ..dynamics.base import Dynamics
from ..dynamics.structure import Product, Structure
from ..ode import METHODS
from ..ode.stepsize import fixed_steps
from .episode import Episode
from .request import Request
from .settings import Settings


class Reached(NamedTuple):
    """Where a shortcut leads."""

    x: Tensor  # at t1
    xs: Tensor | None  # at the saved times
    theta: Callable[[], Theta]  # the control at t1; made when it is asked for
    steps: int = 0
    nfe: int = 0


def shortcut(dynamics: Dynamics, controller: Controller, request: Request) -> Callable[[], Reached] | None:
    """A way around the solver, where there is one and nothing forbids it."""
    structure, motion, x0 = dynamics.structure, controller.motion, request.x0
    if name_of(structure, motion, request.settings) is None or request.cost is not None or request.dense:
        return None
    if is_transforming() or x0.dim() != 2 or x0.is_complex():
        return None
    match structure, motion:
        case Product(), Still():
            theta = controller.control(x0.new_zeros(request.batch), request.state)
            return partial(_linear, structure, request, theta)
        case Product(), Outer() if request.save_at is None:
            return partial(_plastic, structure, motion, request)
        case _:
            return None


def name_of(structure: Structure, motion: Motion, settings: Settings) -> str | None:
    """What the shortcut is called, for a reader; None where there is none."""
    if not settings.exact:
        return None
    match structure, motion:
        # A step size asks for the discretisation, and not for what it approximates.
        case Product(rho="identity"), Still() if settings.dt is None:
            return "the matrix exponential"
        case Product(columns=None), Outer() if structure.control == motion.control and _forward_steps(settings):
            return "outer products"
        case _:
            return None


def plastic_way(dynamics: Dynamics, controller: Controller, request: Request) -> Callable[[Tensor], Episode] | None:
    """The way through an episode whose first presentation is the request, for stimuli (batch, P, n)."""
    structure, motion = dynamics.structure, controller.motion
    if shortcut(dynamics, controller, request) is None:
        return None
    match structure, motion:
        case Product(), Outer():
            return partial(_present, structure, motion, request)
        case _:
            return None


def _forward_steps(settings: Settings) -> bool:
    """Whether steps are fixed, forward in time and not too many."""
    t0, t1, dt = settings.t0, settings.t1, settings.dt
    if dt is None or isinstance(t0, Tensor) or isinstance(t1, Tensor) or settings.gradient != "discrete":
        return False
    return t1 > t0 and fixed_steps(t1 - t0, dt) <= settings.max_steps


def _linear(product: Product, request: Request, theta: Theta) -> Reached:
    """x(t) = exp(theta (t - t0)) x0."""
    x0, ts, t0, t1 = request.x0, request.save_at, request.settings.t0, request.settings.t1
    w, columns = theta[product.control].to(x0.dtype), product.columns
    numbers = not isinstance(t0, Tensor) and not isinstance(t1, Tensor)
    if w.dim() == 2 and numbers and (ts is None or ts.dim() == 1):
        return Reached(*_shared(w, columns, x0, float(t0), float(t1), ts), lambda: theta)
    w = w.expand(request.batch, *w.shape[-2:])
    once = request.settings.gradient != "autograd"  # no second derivatives are asked for
    if columns is not None and numbers and ts is None and once and fused.available(w, columns):
        return Reached(fused.flow(w, columns, x0, float(t1) - float(t0)), None, lambda: theta)
    flow = linear_flow(
        w,
        x0,
        t0,
        t1,
        columns=columns,
        save_at=ts,
        formulation="auto" if once else "matrix",
    )
    return Reached(flow.x, flow.xs, lambda: theta)


def _shared(
    w: Tensor, columns: Tensor | None, x0: Tensor, t0: float, t1: float, ts: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """One matrix for all samples: one exponential a time."""
    m, x, a = x0.shape[1], x0.double(), w.double()
    if columns is not None:
        a = a.new_zeros(m, m).scatter_add(1, columns, a)
    end = (x @ torch.linalg.matrix_exp(a * (t1 - t0)).mT).to(x0.dtype)
    if ts is None:
        return end, None
    flows = torch.linalg.matrix_exp(a * (ts.to(a) - t0)[:, None, None])
    return end, torch.einsum("tij,bj->bti", flows, x).to(x0.dtype)


def _plastic(product: Product, rule: Outer, request: Request) -> Reached:
    """One presentation."""
    settings, shown = request.settings, _present(product, rule, request, request.x0[:, None])
    steps = fixed_steps(float(settings.t1) - float(settings.t0), settings.dt or 1.0)
    return Reached(shown.x, None, shown.theta, steps, steps * METHODS[settings.method].stages)


def _present(product: Product, rule: Outer, request: Request, stimuli: Tensor) -> Episode:
    """Presentations one after another: theta is theta_0 and a sum of outer products, and never formed."""
    settings, name = request.settings, product.control
    shown = episode(
        stimuli,
        request.state.driven[name] if request.given else rule.theta_0,
        rule.mu,
        duration=float(settings.t1) - float(settings.t0),
        dt=settings.dt,
        method=settings.method,
        rho=ACTIVATIONS[product.rho],
        decay=0.0 if rule.decay is None else rule.decay,
    )
    return Episode(shown.x, shown.xs, lambda: {name: shown.trace.theta()})
