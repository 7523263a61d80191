"""What the forward and the backward pass of `plastic.py` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ode.tableau import Tableau


@dataclass(frozen=True, eq=False)
class Plan:
    """What an episode is, apart from its tensors."""

    tableau: Tableau
    sizes: Sequence[float]  # the steps of one presentation
    rho: Callable[[Tensor], Tensor]
    formed: bool  # whether theta is formed for each sample, at the start of each step
    scale: Sequence[float]  # at each evaluation, of theta_0, or of the step's first theta where that is formed
    total: Sequence[float]  # at each evaluation, of theta_0
    keep: Sequence[float]  # of theta over each step

    @property
    def stages(self) -> int:
        """Evaluations a step."""
        return self.tableau.stages


def product(theta: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """theta x for x (..., batch, n) and theta (n, n) or (batch, n, n)."""
    if theta.dim() == 2:
        return torch.matmul(x, theta.mT, out=out)
    # A row times a matrix: seven times faster on a CPU than a matrix times a column.
    return torch.matmul(x[..., None, :], theta.mT, out=None if out is None else out[..., None, :])[..., 0, :]


def outer_sum(weights: Tensor, vectors: Tensor) -> Tensor:
    """sum_k w_k x_k x_k^T (batch, n, n), of vectors (k, batch, n)."""
    return (weights[:, None, None] * vectors).permute(1, 2, 0) @ vectors.transpose(0, 1)


def weigh(row: Sequence[float], slopes: Sequence[Tensor]) -> Tensor | None:
    """sum_i row_i slope_i; None where nothing is added."""
    total: Tensor | None = None
    for weight, slope in zip(row, slopes, strict=False):
        if weight:
            total = weight * slope if total is None else torch.add(total, slope, alpha=weight)
    return total


def advance(x: Tensor, h: float, slopes: Sequence[Tensor], row: Sequence[float]) -> Tensor:
    """x + h sum_i row_i slope_i."""
    total = weigh(row, slopes)
    return x if total is None else torch.add(x, total, alpha=h)
