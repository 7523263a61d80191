"""Newton's method for a batch of equations, one per sample, and derivatives of its solutions.

The iteration runs without autograd. The derivatives of a solution y of r(y) = 0 are those of further Newton steps
y - M^-1 r(y), where the residual r is differentiated and the matrix M is not (implicit function theorem).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .linear_solver import LinearSolver

MOST_ITERATIONS = 10
GROWTH = 2.0  # a change that is larger than this times the last one is taken for divergence


class Root(NamedTuple):
    """The solutions of a batch of equations."""

    vector: Tensor
    failed: Tensor  # which samples did not converge
    undefined: Tensor  # which of them met a value that is not finite at once
    spent: Tensor  # evaluations per sample


def find_root(
    change_at: Callable[[Tensor], Tensor],
    y: Tensor,
    scale_at: Callable[[Tensor], Tensor],
    active: Tensor,
    most: int = MOST_ITERATIONS,
    growth: float = GROWTH,
) -> Root:
    """Repeat y - change_at(y) until the change is below its scale, for the samples that are active.

    A sample that has converged does not change any more, so its result does not depend on the others.

    Args:
        change_at: M^-1 r(y) for y (batch, n).
        y: The first guess, (batch, n).
        scale_at: The change of each element at which the iteration has converged, as a function of y.
        active: Which samples to solve, (batch,). The others count as failed.
        most: Number of iterations after which a sample fails.
        growth: A sample fails if its change grows by more than this factor.
    """
    previous, undefined = None, torch.zeros_like(active)
    spent, lost = torch.zeros_like(active, dtype=torch.int32), ~active
    for _ in range(most):
        if not bool(active.any()):
            break
        change = change_at(y)
        y, spent = torch.where(active[:, None], y - change, y), spent + active
        norm = (change / scale_at(y)).abs().amax(1)
        done, diverges = norm <= 1, ~norm.isfinite()
        if previous is None:
            undefined = active & ~norm.isfinite()
        else:
            rate = norm / previous
            done = done | ((rate < 1) & (norm * rate <= 1 - rate))
            diverges = diverges | (rate > growth)
        lost = lost | (active & diverges & ~done)
        active = active & ~(done | diverges)
        previous = norm
    return Root(y, active | lost, undefined, spent)


def rounding_scale(size: Tensor) -> Tensor:
    """The change at which elements (batch, n) of this size have converged to rounding."""
    info = torch.finfo(size.dtype)
    return size.amax(1, keepdim=True) * info.eps**0.75 + info.tiny


def attach_derivatives(
    residual: Callable[[Tensor], Tensor], factors: LinearSolver, y: Tensor, corrections: int
) -> Tensor:
    """The solution y with its derivatives, exact up to the order `corrections`; `factors` are those of dr/dy."""
    for _ in range(corrections):
        y = y - factors.solve(residual(y))
    return y
