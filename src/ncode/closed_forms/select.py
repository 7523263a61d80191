"""Which closed form solves a block, by the structure of its dynamics and the motion of its control.

    dx/dt = W x, constant control W                         `LinearForm`: the matrix exponential or its action
    dx/dt = rho(W x), dW/dt = mu * x x^T - decay W,         `PlasticForm`: W as a sum of outer products that is never
    fixed steps                                             formed

Each gives the result of the solver, and `exact=False` switches it off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._modules import Theta
from .._torch_private import is_transforming
from ..control.base import Constant, Motion, OuterProduct
from ..dynamics.base import ACTIVATIONS, Product, Structure, dense_rows
from ..ode.problem import SolveOptions
from ..ode.step import fixed_steps
from .linear import linear_flow
from .plastic import PlasticEpisode, plastic_episode
from .taylor import ACTION_REACH

_MAX_KERNEL_ROWS, _MAX_KERNEL_NONZEROS = 1024, 32


class ClosedFormResult(NamedTuple):
    """What a closed form computes of a solution."""

    x: Tensor  # at t1
    xs: Tensor | None  # at the saved times
    theta: Callable[[], Theta]  # the control at t1, computed when it is needed
    steps: int = 0
    nfe: int = 0


@dataclass(frozen=True, eq=False)
class LinearForm:
    """x(t) = exp(W (t - t0)) x0."""

    name = "the matrix exponential"
    product: Product
    t0: float | Tensor
    t1: float | Tensor
    second_derivatives: bool

    def solve(self, x0: Tensor, theta: Theta, save_at: Tensor | None) -> ClosedFormResult:
        """Solve from x0 (batch, m) under a constant control."""
        return ClosedFormResult(*self._flow(x0, theta[self.product.control].to(x0.dtype), save_at), lambda: theta)

    def _flow(self, x0: Tensor, w: Tensor, save_at: Tensor | None) -> tuple[Tensor, Tensor | None]:
        t0, t1, columns = self.t0, self.t1, self.product.columns
        if not isinstance(t0, Tensor) and not isinstance(t1, Tensor):
            if w.dim() == 2 and (save_at is None or save_at.dim() == 1):
                return _shared_flow(w, columns, x0, float(t0), float(t1), save_at)
            if columns is not None and save_at is None and not self.second_derivatives and kernels_fit(w, columns):
                from ._linear_kernels import flow

                return flow(w.expand(len(x0), *w.shape[-2:]), columns, x0, float(t1) - float(t0)), None
        w = w.expand(len(x0), *w.shape[-2:])
        formulation = "matrix" if self.second_derivatives else "auto"
        return linear_flow(w, x0, t0, t1, columns=columns, save_at=save_at, formulation=formulation)


@dataclass(frozen=True, eq=False)
class PlasticForm:
    """theta as theta_0 and a sum of outer products, never formed."""

    name = "outer products"
    product: Product
    rule: OuterProduct  # its theta_0 may be (n, n) or (batch, n, n)
    t0: float
    t1: float
    options: SolveOptions

    def solve(self, x0: Tensor, theta: Theta, save_at: Tensor | None) -> ClosedFormResult:
        """Solve from x0 (batch, n); the control starts at the rule's theta_0, and times are not saved."""
        result, steps = self.episode(x0[:, None]), fixed_steps(self.t1 - self.t0, self.options.dt or 1.0)
        nfe = steps * self.options.tableau.stages
        return ClosedFormResult(result.x, None, lambda: {self.product.control: result.trace.theta()}, steps, nfe)

    def episode(self, stimuli: Tensor) -> PlasticEpisode:
        """Present stimuli (batch, P, n) one after another."""
        return plastic_episode(
            stimuli,
            self.rule.theta_0,
            self.rule.mu,
            duration=self.t1 - self.t0,
            dt=self.options.dt,
            method=self.options.method,
            rho=ACTIVATIONS[self.product.rho],
            decay=0.0 if self.rule.decay is None else self.rule.decay,
        )


ClosedForm = LinearForm | PlasticForm


def closed_form(
    structure: Structure, motion: Motion, t0: float | Tensor, t1: float | Tensor, options: SolveOptions
) -> ClosedForm | None:
    """The closed form of a block, or None."""
    match structure, motion:
        # A step size requests the discretisation, not what it approximates.
        case Product(rho="identity"), Constant() if options.dt is None:
            return LinearForm(structure, t0, t1, second_derivatives=options.gradient == "autograd")
        case Product(columns=None), OuterProduct() if structure.control == motion.control:
            # Steps must be fixed, forward in time and not too many.
            if isinstance(t0, Tensor) or isinstance(t1, Tensor) or options.dt is None or not t1 > t0:
                return None
            if options.gradient == "discrete" and fixed_steps(t1 - t0, options.dt) <= options.max_steps:
                return PlasticForm(structure, motion, float(t0), float(t1), options)
    return None


def can_solve(form: ClosedForm, x0: Tensor, cost: Any, save_at: Tensor | None, dense: bool) -> bool:
    """Whether a closed form gives what is requested of a solve from x0."""
    if cost is not None or dense or is_transforming() or x0.dim() != 2 or x0.is_complex():
        return False
    return isinstance(form, LinearForm) or save_at is None


def kernels_fit(theta: Tensor, columns: Tensor) -> bool:
    """Whether the Triton kernels can solve a flow with these sparse rows."""
    if theta.device.type != "cuda" or theta.dtype not in ACTION_REACH or theta.numel() == 0:
        return False
    m, k = columns.shape
    return m <= _MAX_KERNEL_ROWS and k <= _MAX_KERNEL_NONZEROS and _has_triton(theta.device.index or 0)


@functools.cache
def _has_triton(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def _shared_flow(
    w: Tensor, columns: Tensor | None, x0: Tensor, t0: float, t1: float, ts: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The flow of one matrix that all samples share: one exponential per time."""
    x, a = x0.double(), w.double() if columns is None else dense_rows(w.double(), columns)
    end = (x @ torch.linalg.matrix_exp(a * (t1 - t0)).mT).to(x0.dtype)
    if ts is None:
        return end, None
    flows = torch.linalg.matrix_exp(a * (ts.to(a) - t0)[:, None, None])
    return end, torch.einsum("tij,bj->bti", flows, x).to(x0.dtype)
