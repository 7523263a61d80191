"""The "adjoint" gradient: Theorem 1 of the paper, in its general form.

With h = (f, g) on z = (x, theta), a terminal loss, losses at saved times and a running cost l whose integral has the
gradient c, the adjoint a(t) = dL/dz(t) satisfies

    da/dt = -a dh/dz - c dl/dz,     a(t1) = dL/dz(t1),     a jumps by dL/dz(t_j) at a saved time t_j

and is solved backward in time together with z. Everything else that f, g or l use, and a control without feedback,
receives the integral of a dh/dp + c dl/dp: a quadrature along the accepted steps of that solve, which needs no state of
its own and no copy per sample. The control's initial map gamma then receives a_theta(t0) by the chain rule (Remark 1).

Memory does not grow with the number of steps. The price: z is recomputed backward in time, so the gradient is exact
only up to the tolerance, and unreliable where the flow contracts strongly (its reverse expands). Methods for stiff
problems therefore read z(t) from the dense output of the forward pass (trajectory.py), which has to keep it, and solve
for a alone, by the same method: what decays forward in time decays backward in the adjoint, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, SolveError, Status
from ..attempt import Attempt, LoopState
from ..backends import EAGER
from ..integrate import integrate, start_loop
from ..problem import SampleInputs
from ..system import JUMPS, T0, State, expand_like, where
from ..tolerance import Tolerance
from .adjoint_system import AdjointSystem, JumpGradients, Quadrature
from .function import InputGradients, Outputs, Pullback
from .trajectory import Trajectory

LOST = (
    'the "adjoint" gradient has no right digit: solved backward in time, sample {row} came back to t0 with a state that'
    " is {error:.2g} off, where x has size {size:.2g}. The flow contracts too strongly to be reversed, or the"
    ' tolerance is too loose, or dt too large: use gradient="discrete"'
)
_GROWS = "what decays forward in time (fast, if the problem is stiff) grows as fast backward"


def _masked(ok: Tensor, leaves: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients of leaves: zeros where there is none, and for samples that are not ok."""
    return [
        torch.zeros_like(leaf) if grad is None else torch.where(expand_like(ok, (leaf,))[0], grad, 0)
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


def _size(leaves: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of each sample, (batch,)."""
    rows = [leaf.detach().reshape(len(leaf), -1).abs().amax(1) for leaf in leaves if leaf.numel()]
    return torch.stack(rows).amax(0)


@dataclass(eq=False)
class AdjointPullback(Pullback):
    """What a forward pass leaves behind for the "adjoint" gradient: copies of its end and of its saved values.

    `trajectory` is its dense output, for methods that cannot be solved back.
    """

    z1: State
    saved: State
    trajectory: Trajectory | None = None

    def pull(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        """Solve the adjoint backward in time, from saved time to saved time."""
        problem, captures = self.problem, self.captures.trained
        system = AdjointSystem(problem.system, self.context, captures, self.trajectory)
        self.check_function()
        ends, has_cost = self.ends, problem.system.cost is not None
        given = _masked(ends.has_result, problem.z0, grads.z)
        moves = ends.replayed & ~self._idle(given)
        a, c = given[: system.width], given[-1] if has_cost else torch.zeros_like(problem.t0)
        # A failed sample has no end to start from: it stands still.
        z = self.z1 if bool(moves.all()) else where(moves, self.z1, self.replacement(moves))
        z = list(z[: system.width])
        if self.trajectory is not None and not bool(moves.all()):
            self.trajectory.hold(~moves, tuple(z))
        t0 = torch.zeros_like(problem.t0)
        t = torch.where(moves, ends.t, t0)
        theta = [leaf.detach() for leaf in problem.theta]
        most = _size(a)

        moves_t0 = problem.system.shifted and bool(needed.theta[T0])
        needs_span, needs_ts = bool(needed.span) or moves_t0, bool(needed.ts) or moves_t0
        wanted = [*needed.theta[: len(problem.control)], *[False] * problem.system.time_constants]
        solve = _BackwardSolve(self, system, theta, c, wanted)
        if problem.system.bounded and needed.theta[JUMPS]:
            solve.jumps = JumpGradients(system, theta[JUMPS], theta[T0], problem.span.detach())
        spent = torch.ones_like(ends.status) + moves.int() * needs_span  # the check is one evaluation
        grad_span = solve.time_gradient(t, z, a) if needs_span else None
        grad_ts = torch.zeros_like(problem.ts) if problem.ts is not None and needs_ts else None
        saved_times = problem.ts.detach().unbind(1) if problem.ts is not None else ()
        for column, time in reversed(list(enumerate(saved_times))):
            passed = ends.has_result & (time.abs() <= ends.t.abs())  # false for nan
            target = torch.where(passed, time, t)
            t = torch.where(self._idle((*a, c)), target, t)
            z, a, evaluations = solve.back(t, target, z, a)
            self._warn_of_drift(passed & (t != target), z, [values[:, column] for values in self.saved])
            spent, t = spent + evaluations, target
            jump = _masked(passed, a, [None if grad is None else grad[:, column] for grad in grads.saved])
            z = list(where(passed & ends.replayed, [values[:, column] for values in self.saved], z))
            if grad_ts is not None:
                spent = spent + passed.int()
                grad_ts[:, column] = solve.time_gradient(t, z, jump, with_cost=False)
            a = [leaf + more for leaf, more in zip(a, jump, strict=True)]
            most = torch.maximum(most, _size(a))
        t = torch.where(self._idle((*a, c)), t0, t)
        moving = t != t0
        z, a, evaluations = solve.back(t, t0, z, a)
        self._refuse_lost(moving, tuple(z), tuple(a), most)
        self._warn_of_drift(moving, z, problem.z0)
        spent, found = spent + evaluations, list(solve.quadrature.theta)
        if solve.jumps is not None:
            found[JUMPS] = solve.jumps.grads
        if moves_t0 and grad_span is not None:
            # t0 as a constant: all of its gradient, -a dz/dt at t0, less what reaches it through the other times.
            spent = spent + moves.int()
            rest = grad_span - solve.time_gradient(t0, z, a)
            found[T0] = rest if grad_ts is None else rest + grad_ts.sum(1)
        self.stats.nfe_backward = spent
        inputs = SampleInputs(tuple(found), grad_span, grad_ts)
        return InputGradients((*a, *([c] if has_cost else [])), inputs, tuple(solve.quadrature.sums))

    def _idle(self, adjoint: Sequence[Tensor]) -> Tensor:
        """Failed samples with an adjoint of zero: they need not be solved back from where they failed."""
        zero = torch.stack([(leaf == 0).reshape(len(leaf), -1).all(1) for leaf in adjoint]).all(0)
        return ~self.ends.ok & zero

    def _warn_of_drift(self, mask: Tensor, z: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Warn of states that were solved back (in the mask), and are far from those of the forward pass there."""
        tolerance = self.problem.loop_tolerance
        if tolerance is None or self.trajectory is not None:  # with a fixed step size, nobody asked for an accuracy
            return
        sizes = [torch.maximum(a.detach().abs(), b.abs()) for a, b in zip(expected, self.z1, strict=False)]
        lost = torch.zeros_like(mask)
        for leaf, value, size, limit in zip(z, expected, sizes, tolerance.scales(sizes), strict=False):
            if not leaf.numel():
                continue
            error, limit, size = (it[:, None].flatten(1) for it in ((leaf - value.detach()).abs(), 1000 * limit, size))
            lost = lost | ((error > limit) & (error > 0.01 * size.amax(1, keepdim=True))).any(1)
        lost = (lost & mask).nonzero().flatten().tolist()
        if lost:
            warnings.warn(
                f"the adjoint gradient of {len(lost)} of {len(mask)} samples (the first is {lost[0]}) may be wrong:"
                f" solved backward in time, the state is over 1 % off where it came from, since {_GROWS}. Use"
                ' gradient="discrete", a tighter rtol, or save_at: the state starts anew from saved times',
                stacklevel=2,
            )

    def _refuse_lost(self, moving: Tensor, z: State, a: State, most: Tensor) -> None:
        """Refuse a solve backward in time that did not come back to x0, unless the adjoint had died out by then.

        `most` is the largest adjoint on the way, (batch,). For a linear flow the product of the adjoint and the error
        of the state is constant in time.
        """
        if self.trajectory is not None:
            return
        states = self.problem.system.states
        start, end = self.problem.z0[:states], self.z1[:states]
        error = _size([back - begin.detach() for back, begin in zip(z[:states], start, strict=True)])
        size = torch.maximum(_size(start), _size(end)).clamp_min(1e-3)
        lost = moving & ~(error * _size(a) <= size * most) & ~(error <= size)
        if bool(lost.any()):
            row = int(lost.int().argmax())
            raise InputError(LOST.format(row=row, error=float(error[row]), size=float(size[row])))


class _BackwardSolve:
    """Solves the adjoint from one time back to another, and collects its integrals."""

    def __init__(
        self,
        pullback: AdjointPullback,
        system: AdjointSystem,
        theta: Sequence[Tensor],
        c: Tensor,
        wanted: Sequence[Any],
    ):
        problem, options = pullback.problem, pullback.problem.options
        self.pullback, self.system, self.theta, self.c = pullback, system, theta, c
        fixed, counted = options.dt is not None, problem.t0.is_cuda
        # Integrals are taken along the dense output of implicit steps, whose error must be checked, too.
        dense = system.trajectory is not None
        step = self.step = options.make_step(system, estimate=not fixed, dense=dense, slopes=True)
        self.attempt = Attempt(step, options.rule, fixed, options.shared_step, counted, limits=options.limits)
        self.quadrature = Quadrature(system, step, theta, wanted, pullback.captures.trained)
        self.jumps: JumpGradients | None = None
        self.tolerance = problem.loop_tolerance
        if self.tolerance is not None and dense:
            self.tolerance = Tolerance((), (), self.tolerance.others)

    def back(
        self, t: Tensor, target: Tensor, z: Sequence[Tensor], a: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Solve (z, a) from t back to the target; also returns the evaluations per sample."""
        step, system, options = self.step, self.system, self.pullback.problem.options
        if not bool((t != target).any()):
            return list(z), list(a), torch.zeros_like(self.pullback.ends.status)
        scale = _size((*a, self.c)).to(system.dtype)
        scale = torch.where(scale > 0, scale, 1.0)
        divided = [leaf / by for leaf, by in zip(a, expand_like(scale, a), strict=True)]
        state = (*(z if system.first else ()), *divided)
        constants, _ = system.enter(system.constants(self.theta, scale, self.c / scale), t, target)
        slope = system.bind(constants)(system.clock(constants, t), state)
        tolerance = self.tolerance
        start = start_loop(EAGER, self.attempt, options.dt, t, target, state, constants, slope, tolerance=tolerance)
        end, _ = integrate(
            EAGER,
            self.attempt,
            start,
            target,
            constants,
            recorders=[self.quadrature] if self.jumps is None else [self.quadrature, self.jumps],
            tolerance=tolerance,
            max_steps=options.max_steps,
            positions=self.pullback.positions,
        )
        self._raise_failures(end)
        points = step.quadrature_points if self.quadrature.calls else 0
        made = start.nfe + (end.accepted + end.rejected) * step.evaluations + end.accepted * points
        made = made if end.spent is None else made + end.spent
        adjoint = [leaf * by for leaf, by in zip(end.z[system.first :], expand_like(scale, a), strict=True)]
        if system.trajectory is not None:
            z = system.trajectory.at(constants[-3], target)
        return list(end.z[: system.first] or z), adjoint, made

    def _raise_failures(self, end: LoopState) -> None:
        failed = (end.status != Status.OK).nonzero().flatten().tolist()
        if not failed:
            return
        where = "in the adjoint solve, backward in time"
        if self.system.trajectory is None:
            where = f"{where}, in which {_GROWS}"
        statuses = [Status(code) for code in end.status[failed].tolist()]
        where = f'{where}; use gradient="discrete"'
        problem = self.pullback.problem
        times = (problem.t0.detach() + end.t)[failed].tolist()
        raise SolveError(failed, times, statuses, None, problem.batch, where)

    def time_gradient(self, t: Tensor, z: Sequence[Tensor], a: Sequence[Tensor], with_cost: bool = True) -> Tensor:
        """a dz/dt + c l, one number per sample: how a loss changes as the time of its argument moves."""
        c = self.c if with_cost else torch.zeros_like(self.c)
        constants = self.system.constants(self.theta, torch.ones_like(c), c)
        towards = torch.where(t == 0, self.pullback.problem.span.detach(), 0.0)
        return self.system.rate(t, towards, tuple(z), tuple(a), constants)
