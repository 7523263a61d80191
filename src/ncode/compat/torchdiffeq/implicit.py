"""One implicit Runge-Kutta step on one tensor, in one time.

The stages of a step solve Y_i = y + sum_j a_ij u_j with increments u_j = h f(t + c_j h, Y_j), one after the other where
a is triangular and all together where it is full, by Newton's method with the Jacobian of the whole state. It converges
to rounding; its derivatives are those of the exact stages (ncode/ode/newton.py). A complex state is solved as its real
and imaginary parts, since f need not be holomorphic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._torch_private import in_dual_level, in_transform
from ...errors import InputError, Status
from ...ode.implicit_tableau import DirkTableau
from ...ode.linear_solver import LinearSolver, factorise
from ...ode.linearise import NOT_DIFFERENTIABLE, Linearised, linearise
from ...ode.newton import attach_derivatives, find_root, rounding_scale
from ...ode.tableau import Row
from .arguments import SolverFailed
from .runge_kutta import Field, real_dtype

DERIVATIVES = 2  # odeint has second ones
CUT_GRAPH = (
    "implicit methods need the Jacobian of func, but autograd cannot follow func: it changes with y, and returns a"
    " tensor without a graph (torch.no_grad(), .detach(), NumPy or out= inside?), or odeint runs under"
    " torch.inference_mode() (use no_grad). Write func in operations of torch, or use an explicit method"
)
TRANSFORMED = (
    "implicit methods read values and differentiate func, which torch.func (vmap, grad, jvp, ...) does not allow: call"
    " odeint outside of it with the mapped dimension in y0, use torch.autograd.grad, or use an explicit method"
)
AUTOCAST = (
    "implicit methods solve their stages to rounding, but torch.autocast lets func round to 16 bits: call odeint within"
    ' torch.autocast("{device}", enabled=False), use a y0 of 64 bits, or use an explicit method'
)
WHERE = (
    'dt is options["step_size"], or the distances between the times of t; options["max_iters"] bounds the iterations;'
    " func must compute in the precision of y0; rodas5p is a method of ncode.solve"
)


@dataclass(frozen=True)
class Group:
    """Stages that are solved together."""

    first: int
    before: tuple[Row, ...]  # for each stage, weights of the increments of earlier groups
    a: tuple[Row, ...]  # weights of their own increments; 0 if the stage is explicit

    @property
    def explicit(self) -> bool:
        return not any(map(any, self.a))

    @property
    def stages(self) -> slice:
        return slice(self.first, self.first + len(self.a))

    @cached_property
    def inverse(self) -> list[Row]:
        """The inverse of `a`, which gives increments of solved stages."""
        return torch.linalg.inv(torch.tensor(self.a, dtype=torch.float64)).tolist()


class ImplicitMethod:
    """An implicit method, prepared for the loop: rows `a` are square, and an explicit stage can only be the first."""

    implicit = True

    def __init__(self, name: str, order: int, c: Row, a: Sequence[Row], b: Row):
        self.name, self.order, self.b = name, order, b
        self.nodes = (0.0, *c)  # every step begins with the slope at its start
        triangular = all(not weight for i, row in enumerate(a) for weight in row[i + 1 :])
        size = 1 if triangular else len(c)
        starts = range(0, len(c), size)
        self.groups = [
            Group(i, tuple(row[:i] for row in a[i : i + size]), tuple(row[i : i + size] for row in a[i : i + size]))
            for i in starts
        ]
        self.ends_in_stage = b == a[-1]

    @classmethod
    def of(cls, tableau: DirkTableau) -> ImplicitMethod:
        """A diagonally implicit method of the core."""
        rows = [(*row, *[0.0] * (tableau.stages - len(row))) for row in tableau.a]
        return cls(tableau.name, tableau.order, tableau.c, rows, tableau.b)

    def take_step(
        self, f: Field, y: Tensor, step: float | Tensor, times: Sequence[Tensor], max_iters: int
    ) -> tuple[Tensor, list[Tensor]]:
        """The state after a step, and the slope at its start; `times` are those of the nodes."""
        _check_modes(y)
        start, vector = f(times[0], y), _to_vector(y)
        h = torch.as_tensor(step, dtype=vector.dtype, device=vector.device)
        if not bool(start.isfinite().all()):
            raise SolverFailed(Status.NOT_FINITE, times[0].item(), WHERE)
        solve = _solve_adjoint if isinstance(f, AdjointField) else _solve_state
        increments, guess = vector.new_zeros(0, len(vector)), vector
        for group in self.groups:
            if group.explicit:
                increments = (h * _to_vector(start))[None]
                continue
            base = vector + _mix(vector.new_tensor(group.before), increments)
            stages = Stages(times[1:][group.stages], h * vector.new_tensor(group.a), base, y, max_iters)
            solved = solve(f, stages, guess.detach().expand_as(base))
            own = _mix(vector.new_tensor(group.inverse), solved - base)
            increments, guess = torch.cat([increments, own]), solved[-1]
        end = guess if self.ends_in_stage else vector + _mix(vector.new_tensor([self.b]), increments)[0]
        return _to_state(end, y), [start]


@dataclass(frozen=True, eq=False)
class AdjointField:
    """The slope of [y, a, integrals], where `state` is that of y alone.

    y does not depend on the others, da/dt = -(df/dy)^T a, and nothing depends on the integrals: so Newton's method
    solves for y, a linear system gives a, and the gradients of parameters take part in neither.
    """

    slope: Field
    state: Field
    y: Tensor  # one, for its shape

    def __call__(self, t: Tensor, z: Tensor) -> Tensor:
        return self.slope(t, z)


class Stages(NamedTuple):
    """The equations Y_i = base_i + sum_j weights_ij f(times_j, Y_j) of a group."""

    times: Sequence[Tensor]
    weights: Tensor  # h a, (stages, stages)
    base: Tensor  # (stages, n)
    y: Tensor  # a state, for its shape
    max_iters: int


def _check_modes(y: Tensor) -> None:
    if in_transform():
        raise InputError(TRANSFORMED)
    if torch.is_autocast_enabled(y.device.type) and real_dtype(y) != torch.float64:  # which autocast leaves alone
        raise InputError(AUTOCAST.format(device=y.device.type))


def _solve_state(f: Field, stages: Stages, guess: Tensor) -> Tensor:
    """The solution (stages, n), with its derivatives if autograd follows it, backward or forward."""
    flat = _FlatField(f, stages.y)
    with torch.no_grad():
        solution = _newton(flat, stages, guess)
    if not torch.is_grad_enabled() and not in_dual_level():
        return solution
    factors = _factorise(stages.weights, _linearise(flat, stages.times, solution))

    def residual(z: Tensor) -> Tensor:
        values = z.view_as(stages.base)
        return (values - stages.base - _mix(stages.weights, flat.slopes(stages.times, values))).reshape(1, -1)

    return attach_derivatives(residual, factors, solution.reshape(1, -1), DERIVATIVES).view_as(stages.base)


def _newton(flat: _FlatField, stages: Stages, guess: Tensor) -> Tensor:
    weights, base, singular = stages.weights, stages.base, False

    def change_at(z: Tensor) -> Tensor:
        nonlocal singular
        values = z.view_as(base)
        at = _linearise(flat, stages.times, values)
        factors = _factorise(weights, at)
        singular = bool(factors.singular)
        return factors.solve((values - base - _mix(weights, at.slope[0])).reshape(1, -1))

    def scale_at(z: Tensor) -> Tensor:
        return rounding_scale(torch.cat([z, base.reshape(1, -1)], 1).abs())

    first, active = guess.reshape(1, -1), torch.ones(1, dtype=torch.bool, device=guess.device)
    root = find_root(change_at, first, scale_at, active, stages.max_iters, growth=float("inf"))
    if bool(root.failed):
        undefined = Status.NOT_FINITE if bool(root.undefined) else Status.NEWTON_FAILED
        status = Status.SINGULAR_MATRIX if singular else undefined
        raise SolverFailed(status, stages.times[-1].item(), WHERE)
    return root.vector.view_as(base)


def _solve_adjoint(f: Any, stages: Stages, guess: Tensor) -> Tensor:
    """The solution (stages, n) for the field of backward, without derivatives."""
    n = len(_to_vector(f.y))
    y, a, integrals = stages.base.tensor_split((n, 2 * n), 1)
    state = stages._replace(base=y, y=f.y.to(stages.y.dtype))
    y = _newton(_FlatField(f.state, state.y), state, guess[:, :n])
    at = _linearise(_FlatField(f.state, state.y), stages.times, y)
    a = _factorise(-stages.weights, at, transposed=True).solve(a.reshape(1, -1)).view_as(y)
    slopes = _FlatField(f, stages.y).slopes(stages.times, torch.cat([y, a, integrals], 1))
    return torch.cat([y, a, integrals + _mix(stages.weights, slopes[:, 2 * n :])], 1)


class _FlatField:
    """A field on real vectors: the right-hand side of `linearise`, whose samples are the stages."""

    shown = 1

    def __init__(self, f: Field, like: Tensor):
        self.f, self.like = f, like

    def slopes(self, times: Sequence[Tensor], vectors: Tensor) -> Tensor:
        pairs = zip(times, vectors, strict=True)
        return torch.stack([_to_vector(self.f(t, _to_state(vector, self.like))) for t, vector in pairs])

    def bind(self, theta: Sequence[Tensor]) -> Any:
        return lambda t, z: (self.slopes(t.unbind(), z[0]),)

    def jacobian(self, theta: Sequence[Tensor]) -> None:
        return None


def _linearise(flat: _FlatField, times: Sequence[Tensor], vectors: Tensor) -> Linearised:
    try:
        with torch.no_grad():
            return linearise(flat, (), torch.stack(list(times)), (vectors,))
    except InputError as error:
        if str(error) != NOT_DIFFERENTIABLE:
            raise
        raise InputError(CUT_GRAPH) from error


def _factorise(weights: Tensor, at: Linearised, transposed: bool = False) -> LinearSolver:
    """Factorise the matrix with the blocks I - weights_ij J_j, or their transposes."""
    with torch.no_grad():
        jacobians = torch.stack(at.rows, 1)
        if transposed:
            jacobians = jacobians.mT
        size = len(weights) * jacobians.shape[-1]
        matrix = (weights[:, None, :, None] * jacobians.movedim(0, 1)).reshape(size, 1, size)
        return factorise(matrix.unbind(), weights.new_ones(1))


def _mix(weights: Tensor, rows: Tensor) -> Tensor:
    """The product of two matrices in the precision of its factors, which settings of torch reduce for `@`."""
    return (weights[:, :, None] * rows).sum(1)


def _to_vector(y: Tensor) -> Tensor:
    return (torch.view_as_real(y.resolve_conj()) if y.is_complex() else y).reshape(-1)


def _to_state(vector: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        vector = torch.view_as_complex(vector.reshape(-1, 2))
    return vector.reshape(like.shape)
