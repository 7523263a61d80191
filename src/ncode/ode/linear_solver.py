"""Batched linear systems W x = r with W = I - s J: one matrix per sample, factorised once, solved several times.

Derivatives of x need solutions with the transposed matrix alone: with y = W^-T g, the gradient g of x gives y for r,
s y_i x_j for J_ij and y J x for s. Written as a function of differentiable operations, this also has derivatives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._torch_private import is_traced
from .linearise import UNROLLED


class Factors(ABC):
    """A factorised matrix per sample, without derivatives."""

    singular: Tensor
    """Which samples' matrices are singular, (batch,)."""

    @abstractmethod
    def solve(self, right: Tensor, transposed: bool = False) -> Tensor:
        """The solution (batch, n) for a right-hand side (batch, n)."""


@dataclass(frozen=True, eq=False)
class LinearSolver:
    """Solves with W = I - scale * J, where J is given by its n rows (batch, n) and the scale is (batch,)."""

    factors: Factors
    scale: Tensor
    rows: tuple[Tensor, ...]

    @property
    def singular(self) -> Tensor:
        return self.factors.singular

    def solve(self, right: Tensor) -> Tensor:
        """The solution (batch, n) for a right-hand side (batch, n), with derivatives if autograd is enabled."""
        if not torch.is_grad_enabled():
            return self.factors.solve(right)
        return _Solve.apply(self.factors, False, right, self.scale, *self.rows)


def factorise(rows: Sequence[Tensor], scale: Tensor) -> LinearSolver:
    """Factorise I - scale * J."""
    with torch.no_grad():
        # nan for inf: divided by an infinite pivot, every right-hand side would be 0, and a sample would stand still.
        finite = [row + 0 * row for row in rows]
        if is_traced() and len(rows) <= UNROLLED:
            factors = _eliminate(finite, scale)
        else:
            eye = torch.eye(len(rows), dtype=rows[0].dtype, device=rows[0].device)
            matrix = eye - scale[:, None, None] * torch.stack(finite, 1)
            packed, pivots, info = torch.linalg.lu_factor_ex(matrix)
            factors = _Packed(packed, pivots, (info != 0) & matrix.isfinite().flatten(1).all(1))
    return LinearSolver(factors, scale, tuple(rows))


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factors: Factors, transposed: bool, right: Tensor, scale: Tensor, *rows: Tensor) -> Tensor:
        x = factors.solve(right, transposed)
        ctx.factors, ctx.transposed = factors, transposed
        ctx.save_for_backward(x, scale, *rows)
        ctx.save_for_forward(x, scale, *rows)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, scale, *rows = ctx.saved_tensors
        y = _Solve.apply(ctx.factors, not ctx.transposed, grad, scale, *rows)
        left, right = (x, y) if ctx.transposed else (y, x)
        weights = (scale[:, None] * left).unbind(1)
        products = torch.stack([(row * right).sum(1) for row in rows], 1)
        return None, None, y, (left * products).sum(1), *(weight[:, None] * right for weight in weights)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, scale, *rows = ctx.saved_tensors
        _, _, right, moved, *turned = tangents
        jacobian, change = torch.stack(rows, 1), torch.zeros_like(x) if right is None else right
        matrix = torch.zeros_like(jacobian) if moved is None else moved[:, None, None] * jacobian
        pairs = zip(turned, rows, strict=True)
        parts = [torch.zeros_like(row) if it is None else it for it, row in pairs]
        matrix = matrix + scale[:, None, None] * torch.stack(parts, 1)
        matrix = matrix.mT if ctx.transposed else matrix
        return ctx.factors.solve(change + (matrix @ x[:, :, None])[:, :, 0], ctx.transposed)


@dataclass(frozen=True, eq=False)
class _Packed(Factors):
    """Factors by torch.linalg."""

    packed: Tensor
    pivots: Tensor
    singular: Tensor

    def solve(self, right: Tensor, transposed: bool = False) -> Tensor:
        return torch.linalg.lu_solve(self.packed, self.pivots, right[:, :, None], adjoint=transposed)[:, :, 0]


@dataclass(frozen=True, eq=False)
class _Unrolled(Factors):
    """Factors as single elements (batch,): a compiler fuses what is computed with them."""

    elements: list[list[Tensor]]  # L below the diagonal, U above, and the inverse pivots on it
    swaps: list[tuple[int, int, Tensor]]  # rows exchanged, in this order, where the mask is true
    singular: Tensor

    def solve(self, right: Tensor, transposed: bool = False) -> Tensor:
        x, a, n = list(right.unbind(1)), self.elements, right.shape[1]
        if not transposed:
            self._swap(x, self.swaps)
        upward = range(n - 1, -1, -1)
        for order, scales in ((range(n), transposed), (upward, not transposed)):
            for i in order:
                for j in range(i) if order is not upward else range(i + 1, n):
                    x[i] = x[i] - (a[j][i] if transposed else a[i][j]) * x[j]
                if scales:
                    x[i] = x[i] * a[i][i]
        if transposed:
            self._swap(x, self.swaps[::-1])
        return torch.stack(x, 1)

    @staticmethod
    def _swap(x: list[Tensor], swaps: Sequence[tuple[int, int, Tensor]]) -> None:
        for i, k, mask in swaps:
            x[k], x[i] = torch.where(mask, x[i], x[k]), torch.where(mask, x[k], x[i])


def _eliminate(rows: Sequence[Tensor], scale: Tensor) -> _Unrolled:
    """Gaussian elimination with partial pivoting, element by element."""
    n = len(rows)
    a = [[float(i == j) - scale * element for j, element in enumerate(row.unbind(1))] for i, row in enumerate(rows)]
    swaps, singular = [], torch.zeros_like(scale, dtype=torch.bool)
    for k in range(n):
        for i in range(k + 1, n):
            mask = a[i][k].abs() > a[k][k].abs()
            swaps.append((i, k, mask))
            pairs = [(torch.where(mask, p, q), torch.where(mask, q, p)) for p, q in zip(a[i], a[k], strict=True)]
            a[k], a[i] = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        singular = singular | (a[k][k] == 0)
        a[k][k] = 1 / a[k][k]
        for i in range(k + 1, n):
            a[i][k] = a[i][k] * a[k][k]
            for j in range(k + 1, n):
                a[i][j] = a[i][j] - a[i][k] * a[k][j]
    return _Unrolled(a, swaps, singular)
