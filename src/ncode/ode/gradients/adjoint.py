"""The "adjoint" gradient: Theorem 1 of the paper, in its general form.

With h = (f, g) on z = (x, theta), a terminal loss, losses at saved times and a running cost l whose integral has the
gradient c, the adjoint a(t) = dL/dz(t) satisfies

    da/dt = -a dh/dz - c dl/dz,     a(t1) = dL/dz(t1),     a jumps by dL/dz(t_j) at a saved time t_j

and is solved backward in time together with z. Everything else that f, g or l use, and a control without feedback,
receives the integral of a dh/dp + c dl/dp: a quadrature along the accepted steps of that solve, which needs no state of
its own and no copy per sample. The control's initial map gamma then receives a_theta(t0) by the chain rule (Remark 1).

Memory does not grow with the number of steps. The price: z is recomputed backward in time, so the gradient is exact
only up to the tolerance, and unreliable where the flow contracts strongly (its reverse expands).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import SolveError, Status
from ..backends import EAGER
from ..captures import ForwardContext
from ..integrate import Attempt, integrate, start_loop
from ..problem import Problem, SampleInputs
from ..record import StepRecord
from ..solution import Stats
from ..step import Step, advance
from ..system import Slope, State, System, expand_like, where
from .function import InputGradients, Outputs


@dataclass(frozen=True, eq=False)
class AdjointSystem:
    """The system (z, a) without the cost's value: its constants are (*theta, c), c the gradient of the cost."""

    forward: System
    context: ForwardContext

    @property
    def dtype(self) -> torch.dtype:
        return self.forward.dtype

    @property
    def driven(self) -> int:
        return 0

    @property
    def width(self) -> int:
        """Leaves of z that are integrated."""
        return 1 + self.forward.driven

    @property
    def parts(self) -> tuple[slice, ...]:
        parts = self.forward.parts[: 2 if self.forward.driven else 1]
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
        full = (*z, torch.zeros_like(c)) if self.forward.cost is not None else z
        with torch.enable_grad(), self.context:
            slope = self.forward.bind(theta)(t, full)
        return slope, (*a, c) if self.forward.cost is not None else a


def pull(outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Vector-Jacobian products, None where nothing depends on an input."""
    linked = [(out, cot) for out, cot in zip(outputs, cotangents, strict=True) if out.requires_grad]
    if not linked or not inputs:
        return [None] * len(inputs)
    outs, cots = zip(*linked, strict=True)
    return torch.autograd.grad(outs, inputs, cots, allow_unused=True)


class Quadrature:
    """Integrates a dh/dp + c dl/dp along accepted steps: sum_i h b_i (a dh/dp) at the stages of each."""

    def __init__(self, system: AdjointSystem, step: Step, theta: Sequence[Tensor], captures: Sequence[Tensor]):
        self.system, self.step, self.captures = system, step, captures
        self.theta = [torch.zeros_like(leaf) for leaf in theta]
        self.sums: list[Tensor | None] = [None] * len(captures)
        self.calls = 0

    def add(self, record: StepRecord) -> None:
        if not self.captures and not self.theta:
            return
        if record.h.device.type == "cpu" and not bool(record.h.any()):  # on CUDA checking would synchronise
            return
        tableau, width = self.step.tableau, self.system.width
        hs = expand_like(record.h.to(self.system.dtype), record.z)
        *theta, c = record.theta
        theta = [leaf.detach().requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in theta]
        inputs = [*(leaf for leaf in theta if leaf.requires_grad), *self.captures]
        for i, (node, weight, row) in enumerate(zip(tableau.c, tableau.b, tableau.a, strict=True)):
            if not weight:
                continue
            state = advance(record.z, hs, record.slopes[:i], row) if i else record.z
            t = (record.t + node * record.h).to(self.system.dtype)
            slope, cotangents = self.system.slope(t, state[:width], state[width:], (*theta, c))
            # The solve runs backward, so h is negative where time went forward: the integral has the opposite sign.
            weights = expand_like((-weight * record.h).to(self.system.dtype), cotangents)
            got = iter(pull(slope, inputs, tuple(w * cot for w, cot in zip(weights, cotangents, strict=True))))
            self.calls += 1
            for number, leaf in enumerate(theta):
                grad = next(got) if leaf.requires_grad else None
                if grad is not None:
                    total = self.theta[number]
                    total.add_(grad) if record.rows is None else total.index_add_(0, record.rows, grad)
            for number, grad in enumerate(got):
                if grad is not None:
                    old = self.sums[number]
                    self.sums[number] = grad if old is None else old + grad


def _masked(ok: Tensor, leaves: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients of leaves: zeros where there is none, and for samples that are not ok."""
    return [
        torch.zeros_like(leaf) if grad is None else torch.where(expand_like(ok, (leaf,))[0], grad, 0)
        for leaf, grad in zip(leaves, grads, strict=True)
    ]


@dataclass(eq=False)
class AdjointPullback:
    """What a forward pass leaves behind for the "adjoint" gradient: its end and its saved values."""

    problem: Problem
    keep_sample_order: bool
    z1: State
    saved: State
    status: Tensor
    stats: Stats
    context: ForwardContext

    def pull(self, needed: SampleInputs, captures: Sequence[Tensor], grads: Outputs) -> InputGradients:
        """Solve the adjoint backward in time, from saved time to saved time."""
        problem, options = self.problem, self.problem.options
        system = AdjointSystem(problem.system, self.context)
        ok, has_cost = self.status == Status.OK, problem.system.cost is not None
        given = _masked(ok, problem.z0, grads.z)
        a, c = given[: system.width], given[-1] if has_cost else torch.zeros_like(problem.t0)
        # A failed sample has no end to start from: it stays at its start, with a gradient of zero.
        z = list(where(ok, self.z1, [start.detach() for start in problem.z0])[: system.width])
        t0 = problem.t0.detach()
        t = torch.where(ok, problem.t1.detach(), t0)
        constants = (*(leaf.detach() for leaf in problem.theta), c)

        step = Step(system, options.tableau, estimate=options.dt is None, slopes=True)
        quadrature = Quadrature(system, step, constants[:-1], captures)
        fixed, counted = options.dt is not None, problem.t0.is_cuda
        attempt = Attempt(step, options.rule, options.tolerance, fixed, options.shared_step, counted)
        spent = ok.int() * bool(needed.t1)
        grad_t1 = self._time_gradient(system, t, z, a, constants) if needed.t1 else None
        grad_ts = torch.zeros_like(problem.ts) if problem.ts is not None else None
        saved_times = problem.ts.detach().unbind(1) if problem.ts is not None else ()
        for column, time in reversed(list(enumerate(saved_times))):
            target = torch.where(ok, time, t0)
            z, a, evaluations = self._solve_back(attempt, quadrature, t, target, z, a, constants)
            spent, t = spent + evaluations, target
            jump = _masked(ok, a, [None if grad is None else grad[:, column] for grad in grads.saved])
            z = list(where(ok, [values[:, column] for values in self.saved], z))
            if grad_ts is not None and needed.ts:
                spent = spent + ok.int()
                without_cost = (*constants[:-1], torch.zeros_like(c))
                grad_ts[:, column] = self._time_gradient(system, t, z, jump, without_cost)
            a = [leaf + more for leaf, more in zip(a, jump, strict=True)]
        z, a, evaluations = self._solve_back(attempt, quadrature, t, t0, z, a, constants)
        grad_t0 = -self._time_gradient(system, t0, z, a, constants) if needed.t0 else None
        self.stats.nfe_backward = spent + evaluations + ok.int() * bool(needed.t0)
        inputs = SampleInputs(tuple(quadrature.theta), grad_t0, grad_t1, grad_ts)
        return InputGradients((*a, *([c] if has_cost else [])), inputs, tuple(quadrature.sums))

    def _solve_back(
        self,
        attempt: Attempt,
        quadrature: Quadrature,
        t: Tensor,
        target: Tensor,
        z: Sequence[Tensor],
        a: Sequence[Tensor],
        constants: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Solve (z, a) from t back to the target; also returns the evaluations per sample."""
        step, options, width = attempt.step, self.problem.options, len(z)
        if not bool((t != target).any()):
            return list(z), list(a), torch.zeros_like(self.status)
        state = (*z, *a)
        slope = step.system.bind(constants)(t.to(step.system.dtype), state)
        start = start_loop(EAGER, attempt, options.dt, t, target, state, constants, slope)
        end, _ = integrate(
            EAGER,
            attempt,
            start,
            target,
            constants,
            recorders=[quadrature],
            max_steps=options.max_steps,
            compact=not self.keep_sample_order,
        )
        failed = (end.status != Status.OK).nonzero().flatten().tolist()
        if failed:
            raise SolveError(
                failed,
                end.t[failed].tolist(),
                [Status(code) for code in end.status[failed].tolist()],
                None,
                self.problem.batch,
                'in the adjoint solve, backward in time; use gradient="discrete"',
            )
        stages = sum(1 for weight in step.tableau.b if weight) if quadrature.calls else 0
        made = start.nfe + (end.accepted + end.rejected) * step.evaluations + end.accepted * stages
        return list(end.z[:width]), list(end.z[width:]), made

    def _time_gradient(
        self,
        system: AdjointSystem,
        t: Tensor,
        z: Sequence[Tensor],
        a: Sequence[Tensor],
        constants: Sequence[Tensor],
    ) -> Tensor:
        """a dz/dt + c l, one number per sample: how a loss changes as the time of its argument moves."""
        slope, cotangents = system.slope(t.to(system.dtype), tuple(z), tuple(a), constants)
        total = sum(
            (cot.conj() * k.detach()).real.flatten(1).sum(1) if k.dim() > 1 else cot * k.detach()
            for k, cot in zip(slope, cotangents, strict=True)
        )
        return torch.as_tensor(total).to(t.dtype)
