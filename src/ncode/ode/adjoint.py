"""The "adjoint" gradient: Theorem 1 of the paper, in its general form.

With h = (f, g) on z = (x, theta), a terminal loss, losses at saved times and a running cost l whose integral has the
gradient c, the adjoint a(t) = dL/dz(t) satisfies

    da/dt = -a dh/dz - c dl/dz,     a(t1) = dL/dz(t1),     a jumps by dL/dz(t_j) at a saved time t_j

and is solved backward in time together with z. Everything else that f, g or l touch, and a control without feedback,
receives the integral of a dh/dp + c dl/dp: a quadrature along the accepted steps of that solve, which needs no state of
its own and no copy a sample. The control's initial map gamma then receives a_theta(t0) by the chain rule (Remark 1).

Memory does not grow with the number of steps. The price: z is recomputed backward in time, so the gradient is exact
only up to the tolerance, and unreliable where the flow contracts strongly (its reverse expands).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import SolveError, Status
from .ambient import Ambient
from .begin import begin
from .field import Field, Slope, State
from .join import Outputs
from .loop import Attempt, integrate
from .problem import Problem
from .record import Moves
from .solution import Stats
from .step import Step, advance, like


@dataclass(frozen=True, eq=False)
class AdjointSystem:
    """The system (z, a) without the cost's value: its constants are (*theta, c), c the gradient of the cost."""

    field: Field
    ambient: Ambient

    @property
    def dtype(self) -> torch.dtype:
        return self.field.dtype

    @property
    def driven(self) -> int:
        return 0

    @property
    def width(self) -> int:
        """Leaves of z that are integrated."""
        return 1 + self.field.driven

    @property
    def parts(self) -> tuple[slice, ...]:
        parts = self.field.parts[: 2 if self.field.driven else 1]
        return (*parts, *(slice(p.start + self.width, p.stop + self.width) for p in parts))

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """d(z, a)/dt as a function of (t, (z, a))."""
        return lambda t, state: self._slope(t, state[: self.width], state[self.width :], theta)

    def _slope(self, t: Tensor, z: State, a: State, constants: Sequence[Tensor]) -> State:
        z = tuple(leaf.detach().requires_grad_() for leaf in z)
        slope, cotangents = self.slope(t, z, a, constants)
        pulled = pull(slope, z, cotangents)
        minus = tuple(torch.zeros_like(leaf) if grad is None else -grad for leaf, grad in zip(z, pulled, strict=True))
        return (*(k.detach() for k in slope[: self.width]), *minus)

    def slope(self, t: Tensor, z: State, a: State, constants: Sequence[Tensor]) -> tuple[State, State]:
        """(f, g, l) with a graph, and what to pull it with."""
        *theta, c = constants
        full = (*z, torch.zeros_like(c)) if self.field.cost is not None else z
        with torch.enable_grad(), self.ambient:
            slope = self.field.bind(theta)(t, full)
        return slope, (*a, c) if self.field.cost is not None else a


def pull(outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Vector-Jacobian products, None where nothing depends on an input."""
    linked = [(out, cot) for out, cot in zip(outputs, cotangents, strict=True) if out.requires_grad]
    if not linked or not inputs:
        return [None] * len(inputs)
    outs, cots = zip(*linked, strict=True)
    return torch.autograd.grad(outs, inputs, cots, allow_unused=True)


class Quadrature:
    """Integrates a dh/dp + c dl/dp along accepted steps: sum_i h b_i (a dh/dp) at the stages of each."""

    def __init__(self, system: AdjointSystem, step: Step, theta: Sequence[Tensor], trained: Sequence[Tensor]):
        self.system, self.step, self.trained = system, step, trained
        self.theta = [torch.zeros_like(leaf) for leaf in theta]
        self.sums: list[Tensor | None] = [None] * len(trained)
        self.wants_theta = bool(theta)
        self.calls = 0

    def add(self, moves: Moves) -> None:
        if not self.trained and not self.wants_theta:
            return
        if moves.h.device.type == "cpu" and not bool(moves.h.any()):  # on CUDA looking would mean waiting
            return
        tableau, width = self.step.tableau, self.system.width
        hs = like(moves.h.to(self.system.dtype), moves.z)
        *theta, c = moves.theta
        theta = [leaf.detach().requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in theta]
        inputs = [*(leaf for leaf in theta if leaf.requires_grad), *self.trained]
        for i, (node, weight, row) in enumerate(zip(tableau.c, tableau.b, tableau.a, strict=True)):
            if not weight:
                continue
            state = advance(moves.z, hs, moves.slopes[:i], row) if i else moves.z
            t = (moves.t + node * moves.h).to(self.system.dtype)
            slope, cotangents = self.system.slope(t, state[:width], state[width:], (*theta, c))
            # The solve runs backward, so h is negative where time went forward: the integral has the opposite sign.
            weights = like((-weight * moves.h).to(self.system.dtype), cotangents)
            got = iter(pull(slope, inputs, tuple(w * cot for w, cot in zip(weights, cotangents, strict=True))))
            self.calls += 1
            for number, leaf in enumerate(theta):
                grad = next(got) if leaf.requires_grad else None
                if grad is not None:
                    total = self.theta[number]
                    total.add_(grad) if moves.rows is None else total.index_add_(0, moves.rows, grad)
            for number, grad in enumerate(got):
                if grad is not None:
                    old = self.sums[number]
                    self.sums[number] = grad if old is None else old + grad


def _chosen(ok: Tensor, these: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """These leaves for the samples that are ok, the others for those that are not."""
    return [torch.where(like(ok, (a,))[0], a, b) for a, b in zip(these, others, strict=True)]


def _given(ok: Tensor, leaves: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients that leaves were given: zeros where there is none, and for samples that are not ok."""
    return [
        torch.zeros_like(leaf) if grad is None else torch.where(like(ok, (leaf,))[0], grad, 0)
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


@dataclass(eq=False)
class Adjoint:
    """One solve: what its forward pass leaves for its backward pass, which is its end and its saved values."""

    problem: Problem
    rooted: bool
    z1: State
    saved: State
    status: Tensor
    stats: Stats
    ambient: Ambient

    def pull(
        self, wanted: Sequence[bool], trained: Sequence[Tensor], grads: Outputs
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Solve the adjoint backward in time, from saved time to saved time."""
        problem, field = self.problem, self.problem.field
        system = AdjointSystem(field, self.ambient)
        ok = self.status == Status.OK
        given = _given(ok, problem.z0, grads.z)
        a, c = given[: system.width], given[-1] if field.cost is not None else torch.zeros_like(problem.t0)
        # A sample that failed has no end to start from: it stays at its beginning, with a gradient of zero.
        z = _chosen(ok, self.z1, [start.detach() for start in problem.z0])[: system.width]
        t0 = problem.t0.detach()
        t = torch.where(ok, problem.t1.detach(), t0)
        constants = (*(leaf.detach() for leaf in problem.theta), c)

        step = Step(system, problem.tableau, estimate=problem.dt is None, slopes=True)
        quadrature = Quadrature(system, step, constants[:-1], trained)
        fixed, tallied = problem.dt is not None, problem.t0.is_cuda
        attempt = Attempt(step, problem.pid, problem.tolerance, fixed, problem.together, tallied)
        want_t0, want_t1, *want_ts = wanted[len(problem.theta) :]
        spent = ok.int() * want_t1
        grad_t1 = self._speed(system, t, z, a, constants) if want_t1 else t
        grad_ts = torch.zeros_like(problem.ts) if problem.ts is not None else None
        saved_times = problem.ts.detach().unbind(1) if problem.ts is not None else ()
        for column, time in reversed(list(enumerate(saved_times))):
            goal = torch.where(ok, time, t0)
            z, a, evaluations = self._go(attempt, quadrature, t, goal, z, a, constants)
            spent, t = spent + evaluations, goal
            jump = _given(ok, a, [None if grad is None else grad[:, column] for grad in grads.saved])
            z = _chosen(ok, [kept[:, column] for kept in self.saved], z)
            if grad_ts is not None and want_ts[0]:
                spent = spent + ok.int()
                grad_ts[:, column] = self._speed(system, t, z, jump, (*constants[:-1], torch.zeros_like(c)))
            a = [leaf + more for leaf, more in zip(a, jump, strict=True)]
        z, a, evaluations = self._go(attempt, quadrature, t, t0, z, a, constants)
        grad_t0 = -self._speed(system, t0, z, a, constants) if want_t0 else t0
        self.stats.nfe_backward = spent + evaluations + ok.int() * want_t0
        rows = [*quadrature.theta, grad_t0, grad_t1, *(() if grad_ts is None else (grad_ts,))]
        adjoint = [*a, *([c] if field.cost is not None else [])]
        return adjoint, [row for row, want in zip(rows, wanted, strict=True) if want], quadrature.sums

    def _go(
        self,
        attempt: Attempt,
        quadrature: Quadrature,
        t: Tensor,
        goal: Tensor,
        z: Sequence[Tensor],
        a: Sequence[Tensor],
        constants: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Solve (z, a) from t to the goal."""
        step, problem, width = attempt.step, self.problem, len(z)
        if not bool((t != goal).any()):
            return list(z), list(a), torch.zeros_like(self.status)
        state = (*z, *a)
        slope = step.field.bind(constants)(t.to(step.field.dtype), state)
        march, spent, tally = begin(attempt, problem.dt, t, goal, state, constants, slope)
        march, _ = integrate(
            *(attempt, march, goal, constants, [quadrature]),
            max_steps=problem.max_steps,
            compact=not self.rooted,
            tally=tally,
        )
        failed = (march.status != Status.OK).nonzero().flatten().tolist()
        if failed:
            raise SolveError(
                failed,
                march.t[failed].tolist(),
                [Status(code) for code in march.status[failed].tolist()],
                None,
                problem.batch,
                'in the adjoint solve, backward in time; use gradient="discrete"',
            )
        stages = sum(1 for weight in step.tableau.b if weight) if quadrature.calls else 0
        made = spent + (march.accepted + march.rejected) * step.evaluations + march.accepted * stages
        return list(march.z[:width]), list(march.z[width:]), made

    def _speed(
        self,
        system: AdjointSystem,
        t: Tensor,
        z: Sequence[Tensor],
        a: Sequence[Tensor],
        constants: Sequence[Tensor],
    ) -> Tensor:
        """a dz/dt + c l, a number a sample: how a loss changes as the time of its argument moves."""
        slope, cotangents = system.slope(t.to(system.dtype), tuple(z), tuple(a), constants)
        total = sum(
            (cot.conj() * k.detach()).real.flatten(1).sum(1) if k.dim() > 1 else cot * k.detach()
            for k, cot in zip(slope, cotangents, strict=True)
        )
        return torch.as_tensor(total).to(t.dtype)
