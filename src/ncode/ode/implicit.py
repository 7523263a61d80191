"""Steps for stiff problems: `RosenbrockStep` and `DirkStep`; implicit_tableau.py states their equations.

A Rosenbrock step consists of evaluations and linear systems alone, so that autograd differentiates it as it is. A
diagonally implicit step solves Y = base + h gamma f(t, Y) by Newton's method, whose derivatives newton.py describes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Status
from .implicit_tableau import DirkTableau, RosenbrockTableau
from .linear_solver import LinearSolver, factorise
from .linearise import Linearised, join, linearise, split
from .newton import Root, attach_derivatives, find_root, rounding_scale
from .step import Step, StepResult, evaluate_dense
from .system import Slope, State
from .tableau import Row

NEWTON_SAFETY = 0.01  # the error of Newton's method over that of a step

# Gauss's formula with three nodes, of order 6.
_GAUSS = ((0.5 - 0.15**0.5, 5 / 18), (0.5, 8 / 18), (0.5 + 0.15**0.5, 5 / 18))


class _Arguments(NamedTuple):
    """The arguments of a step."""

    t: Tensor
    h: Tensor
    z: State
    theta: Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class ImplicitStep(Step):
    """What implicit steps share. All vectors are (batch, n).

    For stiff components the error at the end of a step says nothing about dense output: a step to the end of a slow
    solution can be exact at any length. So where both are requested, the error is the larger one of the two.
    """

    @property
    def checks_dense(self) -> bool:
        return self.estimate and self.dense

    @property
    def quadrature_points(self) -> int:
        return len(_GAUSS)

    def quadrature(
        self, h: Tensor, z: State, slopes: Sequence[State], dense: State | None
    ) -> Iterator[tuple[float, float, State]]:
        """Gauss's formula on dense output: stages of stiff methods are accurate to a low order only."""
        assert dense is not None
        for node, weight in _GAUSS:
            sigma = torch.full_like(h, node)[:, None]
            yield node, weight, tuple(leaf[:, 0] for leaf in evaluate_dense(z, dense, sigma))

    def _dense(self, z: State, increments: Sequence[Tensor], weights: Sequence[Row]) -> State:
        """Coefficients of the powers of sigma, for x and the driven control (the cost is not interpolated)."""
        shown = z[: self.system.shown]
        powers = [split(combine(increments, column), z)[: len(shown)] for column in zip(*weights, strict=True)]
        return tuple(torch.stack(leaves, dim=1) for leaves in zip(*powers, strict=True))

    def _result(
        self, arguments: _Arguments, end: Tensor, start: State, increments: Sequence[Tensor], factors: LinearSolver
    ) -> StepResult:
        """The result of a step with these increments that leads to `end`."""
        z, tableau, errors = arguments.z, self.tableau, ()
        if self.estimate:
            error = combine(increments, tableau.error)
            if self.checks_dense:
                inside = self._dense_error(arguments, increments, factors)
                error = torch.where(inside.abs() > error.abs(), inside, error)
            errors = (split(error, z),)
        # Adjoint solves integrate along dense output.
        dense = self._dense(z, increments, tableau.dense) if self.dense or self.slopes else None
        failure = torch.where(factors.singular, Status.SINGULAR_MATRIX, Status.OK)
        return StepResult(split(end, z), start, None, errors, dense, (), failure)

    def _dense_error(self, arguments: _Arguments, increments: Sequence[Tensor], factors: LinearSolver) -> Tensor:
        """The error of dense output in the middle of the step, by how far it is from solving the equation there."""
        t, h, z, theta = arguments
        rows = [list(enumerate(row, 1)) for row in self.tableau.dense]
        middle = join(z) + combine(increments, [sum(w * 0.5**q for q, w in row) for row in rows])
        change = combine(increments, [sum(w * q * 0.5 ** (q - 1) for q, w in row) for row in rows])
        slope = join(self.system.bind(theta)(self.system.clock(theta, t + 0.5 * h), split(middle, z)))
        return factors.solve(change - h.to(self.system.dtype)[:, None] * slope) * self.tableau.gamma


@dataclass(frozen=True, eq=False)
class RosenbrockStep(ImplicitStep):
    """A step of a Rosenbrock method: one Jacobian, one factorisation, one linear system per stage."""

    tableau: RosenbrockTableau

    @property
    def stages(self) -> int:
        return self.tableau.stages if self.estimate else self.tableau.advancing

    @property
    def evaluations(self) -> int:
        return self.stages + self.checks_dense

    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> StepResult:
        tableau, system = self.tableau, self.system
        slope, vector = system.bind(theta), join(z)
        at_start = linearise(system, theta, system.clock(theta, t), z)
        size = h.to(system.dtype)
        factors, size = factorise(at_start.rows, size * tableau.gamma), size[:, None]
        increments: list[Tensor] = []
        rows = zip(tableau.c, tableau.a, tableau.coupling, tableau.d, strict=True)
        for c, row, coupling, d in islice(rows, self.stages):
            if increments:
                state = split(vector + combine(increments, row), z)
                right = join(slope(system.clock(theta, t + c * h), state))
            else:
                right = join(at_start.slope)
            if d:
                right = right + (d * size) * at_start.time
            right = right * (tableau.gamma * size)
            if coupling:
                right = right + combine(increments, [tableau.gamma * weight for weight in coupling])
            increments.append(factors.solve(right))
        end = vector + combine(increments, tableau.b)
        return self._result(_Arguments(t, h, z, theta), end, at_start.slope, increments, factors)


@dataclass(frozen=True, eq=False)
class DirkStep(ImplicitStep):
    """A step of a diagonally implicit method, whose stages are solved by Newton's method.

    `tolerance` is the smallest rtol and atol of adaptive steps; they use the Jacobian at their start for all
    iterations, and a step for which that does not converge is rejected. Without it the steps have a fixed size: every
    iteration uses its own Jacobian, and converges to rounding. `corrections` is the number of derivatives that are
    exact: 1, or 2 where second ones may be needed.
    """

    tableau: DirkTableau
    tolerance: tuple[float, float] | None = None
    corrections: int = 1

    @property
    def signature(self) -> Hashable:
        return super().signature, self.tolerance, self.corrections

    @property
    def counts_evaluations(self) -> bool:
        return True

    @property
    def evaluations(self) -> int:
        """Without those of Newton's method, whose number depends on the sample."""
        return 1 + self.checks_dense

    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> StepResult:
        tableau, system, graph = self.tableau, self.system, torch.is_grad_enabled()
        slope, vector = system.bind(theta), join(z)
        size = h.to(system.dtype)[:, None]
        with torch.no_grad():
            at_start = linearise(system, theta, system.clock(theta, t), z)
            factors = factorise(at_start.rows, (size * tableau.gamma)[:, 0])
        start = slope(system.clock(theta, t), z) if graph else at_start.slope
        failed, undefined = factors.singular, torch.zeros_like(factors.singular)
        spent = torch.zeros_like(failed, dtype=torch.int32)
        increments: list[Tensor] = []
        end = vector
        for i, (c, row) in enumerate(zip(tableau.c, tableau.a, strict=True)):
            if not row[-1]:
                increments.append(size * join(start))
                continue
            base = vector + combine(increments, row[:-1]) if increments else vector
            time = system.clock(theta, t + c * h)
            with torch.no_grad():
                guess = self._guess(i, increments, size, at_start)
                found = self._solve(slope, theta, time, base, base + tableau.gamma * guess, size, factors, ~failed, z)
            failed, undefined = failed | found.failed, undefined | found.undefined
            spent, end = spent + found.spent, found.vector
            if graph:
                end = self._differentiable(slope, theta, time, base, end, size, z)
            increments.append((end - base) / tableau.gamma)
        if not tableau.ends_in_stage:
            end = vector + combine(increments, tableau.b)
        end = torch.where(failed[:, None], torch.nan, end)
        result = self._result(_Arguments(t, h, z, theta), end, start, increments, factors)
        failure = torch.where(failed, Status.NEWTON_FAILED, Status.OK).masked_fill(undefined, Status.NOT_FINITE)
        return result._replace(failure=failure.masked_fill(factors.singular, Status.SINGULAR_MATRIX), spent=spent)

    def _guess(self, i: int, increments: Sequence[Tensor], size: Tensor, at_start: Linearised) -> Tensor:
        """A first guess of the increment of stage i."""
        if not increments:
            return size * join(at_start.slope)
        rows = self.tableau.predictor
        return combine(increments, rows[i]) if rows else increments[-1]

    def _solve(
        self,
        slope: Slope,
        theta: Sequence[Tensor],
        time: Tensor,
        base: Tensor,
        y: Tensor,
        size: Tensor,
        factors: LinearSolver,
        active: Tensor,
        z: State,
    ) -> Root:
        """Solve y = base + h gamma f(time, y)."""
        weight = self.tableau.gamma * size

        def change_at(y: Tensor) -> Tensor:
            if self.tolerance is not None:
                return factors.solve(y - base - weight * join(slope(time, split(y, z))))
            at_y = linearise(self.system, theta, time, split(y, z))
            return factorise(at_y.rows, weight[:, 0]).solve(y - base - weight * join(at_y.slope))

        scale = self._scale(z, y)
        return find_root(change_at, y, lambda y: scale, active)

    def _scale(self, z: State, y: Tensor) -> Tensor:
        """The change of each element at which Newton's method has converged."""
        info, size = torch.finfo(y.dtype), torch.maximum(join(z).abs(), y.abs())
        if self.tolerance is None:
            return rounding_scale(size)
        rtol, atol = self.tolerance
        # Not below rounding, which smaller steps would not reduce.
        return torch.maximum(NEWTON_SAFETY * (size * rtol + max(atol, info.tiny)), 8 * info.eps * size)

    def _differentiable(
        self, slope: Slope, theta: Sequence[Tensor], time: Tensor, base: Tensor, y: Tensor, size: Tensor, z: State
    ) -> Tensor:
        """The solution y of a stage with its derivatives."""
        with torch.no_grad():
            at_y = linearise(self.system, theta, time, split(y, z))
            factors = factorise(at_y.rows, (self.tableau.gamma * size)[:, 0])
        weight = self.tableau.gamma * size
        # Dynamics that take gradients with respect to x need one that is no constant: else they make a leaf of their
        # own, which the replay of a step takes for a tensor from outside.
        y = y + 0 * base if base.requires_grad else y
        return attach_derivatives(
            lambda y: y - base - weight * join(slope(time, split(y, z))), factors, y, self.corrections
        )


def combine(vectors: Sequence[Tensor], row: Sequence[float]) -> Tensor:
    """sum_i row_i * vector_i."""
    (weight, total), *rest = [(w, v) for w, v in zip(row, vectors, strict=False) if w]
    total = total * weight
    for w, v in rest:
        total = torch.add(total, v, alpha=w)
    return total
