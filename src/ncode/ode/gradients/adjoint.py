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

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError, SolveError, Status
from ..backends import EAGER
from ..integrate import Attempt, integrate, start_loop
from ..problem import SampleInputs
from ..record import StepRecord
from ..step import Step
from ..system import Slope, State, System, expand_like, where
from .function import (
    ForwardContext,
    InputGradients,
    Outputs,
    Pullback,
    inner_product,
    refuse_unknown,
)

LOST = (
    'the "adjoint" gradient has no right digit: solved backward in time, sample {row} came back to t0 with a state that'
    " is {error:.2g} off, where x has size {size:.2g}. The flow contracts too strongly to be reversed, or the"
    ' tolerance is too loose, or dt too large: use gradient="discrete"'
)


@dataclass(frozen=True, eq=False)
class AdjointSystem:
    """The system (z, a) without the cost's value: its constants are (*theta, c), c the gradient of the cost."""

    forward: System
    context: ForwardContext
    captures: tuple[Tensor, ...]  # that require a gradient

    @property
    def dtype(self) -> torch.dtype:
        return self.forward.dtype

    @property
    def shown(self) -> int:
        return 2 * self.width  # dense output, which quadratures of implicit steps use, shows all of (z, a)

    @property
    def width(self) -> int:
        """Leaves of z that are integrated."""
        return self.forward.shown

    @property
    def parts(self) -> tuple[slice, ...]:
        parts = self.forward.parts[: 2 if self.forward.driven else 1]
        return (*parts, *(slice(p.start + self.width, p.stop + self.width) for p in parts))

    @property
    def time_constants(self) -> int:
        """Number of constants that are no controls: the gradient of the cost is one, too."""
        return self.forward.time_constants + 1

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor:
        return self.forward.clock(theta[:-1], t)

    def jacobian(self, theta: Sequence[Tensor]) -> None:
        return None

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """d(z, a)/dt as a function of (t, (z, a))."""
        return lambda t, state: self._slope(t, state[: self.width], state[self.width :], theta)

    def _slope(self, t: Tensor, z: State, a: State, constants: Sequence[Tensor]) -> State:
        graph = torch.is_grad_enabled()  # implicit steps differentiate this slope once more
        if not graph:
            z = tuple(leaf.detach().requires_grad_() for leaf in z)
        slope, cotangents = self.slope(t, z, a, constants)
        pulled = pull(slope, z, cotangents, graph)
        minus = tuple(torch.zeros_like(leaf) if grad is None else -grad for leaf, grad in zip(z, pulled, strict=True))
        slope = slope[: self.width]
        return (*(slope if graph else (k.detach() for k in slope)), *minus)

    def slope(self, t: Tensor, z: State, a: State, constants: Sequence[Tensor]) -> tuple[State, State]:
        """(f, g, l) with a graph, and what to pull it with."""
        *theta, c = constants
        full = (*z, torch.zeros_like(c)) if self.forward.cost is not None else z
        with torch.enable_grad(), self.context:
            slope = self.forward.bind(theta)(t, full)
        refuse_unknown(slope, (t, *z, *theta, *self.captures))
        return slope, (*a, c) if self.forward.cost is not None else a


def pull(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], graph: bool = False
) -> Sequence[Tensor | None]:
    """Vector-Jacobian products, None where nothing depends on an input; `graph` makes them differentiable."""
    linked = [(out, cot) for out, cot in zip(outputs, cotangents, strict=True) if out.requires_grad]
    if not linked or not inputs:
        return [None] * len(inputs)
    outs, cots = zip(*linked, strict=True)
    return torch.autograd.grad(outs, inputs, cots, create_graph=graph, allow_unused=True)


_GROWS = "what decays forward in time (fast, if the problem is stiff) grows as fast backward"


class Quadrature:
    """Integrates a dh/dp + c dl/dp along accepted steps: sum_i h w_i (a dh/dp) at points of each."""

    def __init__(
        self,
        system: AdjointSystem,
        step: Step,
        theta: Sequence[Tensor],
        wanted: Sequence[bool],
        captures: Sequence[Tensor],
    ):
        self.system, self.step, self.captures = system, step, captures
        self.theta = [torch.zeros_like(leaf) if want else None for leaf, want in zip(theta, wanted, strict=True)]
        self.sums: list[Tensor | None] = [None] * len(captures)
        self.calls = 0

    def add(self, record: StepRecord) -> None:
        if not self.captures and not any(total is not None for total in self.theta):
            return
        if record.h.device.type == "cpu" and not bool(record.h.any()):  # on CUDA checking would synchronise
            return
        width = self.system.width
        *theta, c = record.theta
        pairs = zip(theta, self.theta, strict=True)
        theta = [leaf.detach().requires_grad_(total is not None) for leaf, total in pairs]
        inputs = [*(leaf for leaf in theta if leaf.requires_grad), *self.captures]
        for node, weight, state in self.step.quadrature(record.h, record.z, record.slopes, record.dense):
            t = self.system.clock(record.theta, record.t + node * record.h)
            # With a gradient, since a cost may be a derivative with respect to x.
            z = tuple(leaf.detach().requires_grad_() for leaf in state[:width])
            slope, cotangents = self.system.slope(t, z, state[width:], (*theta, c))
            # The solve runs backward, so h is negative where time went forward: the integral has the opposite sign.
            weights = expand_like((-weight * record.h).to(self.system.dtype), cotangents)
            got = iter(pull(slope, inputs, tuple(w * cot for w, cot in zip(weights, cotangents, strict=True))))
            self.calls += 1
            for total in self.theta:
                grad = next(got) if total is not None else None
                if grad is not None and total is not None:
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


def _size(leaves: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of each sample, (batch,)."""
    rows = [leaf.detach().reshape(len(leaf), -1).abs().amax(1) for leaf in leaves if leaf.numel()]
    return torch.stack(rows).amax(0)


@dataclass(eq=False)
class AdjointPullback(Pullback):
    """What a forward pass leaves behind for the "adjoint" gradient: copies of its end and of its saved values."""

    z1: State
    saved: State

    def pull(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        """Solve the adjoint backward in time, from saved time to saved time."""
        problem, options, captures = self.problem, self.problem.options, self.captures.trained
        system = AdjointSystem(problem.system, self.context, captures)
        self.check_function()
        ends, has_cost = self.ends, problem.system.cost is not None
        given = _masked(ends.kept, problem.z0, grads.z)
        moves = ends.replayed & ~self._idle(given)
        a, c = given[: system.width], given[-1] if has_cost else torch.zeros_like(problem.t0)
        # A failed sample has no end to start from: it stands still.
        z = list(self.z1 if bool(moves.all()) else where(moves, self.z1, self.replacement(moves)))[: system.width]
        t0 = torch.zeros_like(problem.t0)
        t = torch.where(moves, ends.t, t0)
        constants = (*(leaf.detach() for leaf in problem.theta), c)
        most = _size(a)

        step = options.make_step(system, estimate=options.dt is None, slopes=True)
        moves_t0 = problem.system.shifted and bool(needed.theta[-1])
        needs_span, needs_ts = bool(needed.span) or moves_t0, bool(needed.ts) or moves_t0
        wanted = [*needed.theta[: len(problem.control)], *[False] * problem.system.time_constants]
        quadrature = Quadrature(system, step, constants[:-1], wanted, captures)
        fixed, counted = options.dt is not None, problem.t0.is_cuda
        attempt = Attempt(step, options.rule, fixed, options.shared_step, counted, limits=options.limits)
        spent = torch.ones_like(ends.status) + moves.int() * needs_span  # the check is one evaluation
        grad_span = self._time_gradient(system, t, z, a, constants) if needs_span else None
        grad_ts = torch.zeros_like(problem.ts) if problem.ts is not None and needs_ts else None
        saved_times = problem.ts.detach().unbind(1) if problem.ts is not None else ()
        for column, time in reversed(list(enumerate(saved_times))):
            passed = ends.kept & (time.abs() <= ends.t.abs())  # false for nan
            target = torch.where(passed, time, t)
            t = torch.where(self._idle((*a, c)), target, t)
            z, a, evaluations = self._solve_back(attempt, quadrature, t, target, z, a, constants)
            self._warn_of_drift(passed & (t != target), z, [values[:, column] for values in self.saved])
            spent, t = spent + evaluations, target
            jump = _masked(passed, a, [None if grad is None else grad[:, column] for grad in grads.saved])
            z = list(where(passed & ends.replayed, [values[:, column] for values in self.saved], z))
            if grad_ts is not None:
                spent = spent + passed.int()
                without_cost = (*constants[:-1], torch.zeros_like(c))
                grad_ts[:, column] = self._time_gradient(system, t, z, jump, without_cost)
            a = [leaf + more for leaf, more in zip(a, jump, strict=True)]
            most = torch.maximum(most, _size(a))
        t = torch.where(self._idle((*a, c)), t0, t)
        moving = t != t0
        z, a, evaluations = self._solve_back(attempt, quadrature, t, t0, z, a, constants)
        self._refuse_lost(moving, tuple(z), tuple(a), most)
        self._warn_of_drift(moving, z, problem.z0)
        spent, theta = spent + evaluations, list(quadrature.theta)
        if moves_t0 and grad_span is not None:
            # t0 as a constant: all of its gradient, -a dz/dt at t0, less what reaches it through the other times.
            spent = spent + moves.int()
            theta[-1] = grad_span - self._time_gradient(system, t0, z, a, constants)
            theta[-1] = theta[-1] if grad_ts is None else theta[-1] + grad_ts.sum(1)
        self.stats.nfe_backward = spent
        inputs = SampleInputs(tuple(theta), grad_span, grad_ts)
        return InputGradients((*a, *([c] if has_cost else [])), inputs, tuple(quadrature.sums))

    def _idle(self, adjoint: Sequence[Tensor]) -> Tensor:
        """Failed samples with an adjoint of zero: they need not be solved back from where they failed."""
        zero = torch.stack([(leaf == 0).reshape(len(leaf), -1).all(1) for leaf in adjoint]).all(0)
        return ~self.ends.ok & zero

    def _warn_of_drift(self, mask: Tensor, z: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Warn of states that were solved back (in the mask), and are far from those of the forward pass there."""
        tolerance = self.problem.loop_tolerance
        if tolerance is None:  # with a fixed step size, nobody asked for an accuracy
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
        states = self.problem.system.states
        start, end = self.problem.z0[:states], self.z1[:states]
        error = _size([back - begin.detach() for back, begin in zip(z[:states], start, strict=True)])
        size = torch.maximum(_size(start), _size(end)).clamp_min(1e-3)
        lost = moving & ~(error * _size(a) <= size * most) & ~(error <= size)
        if bool(lost.any()):
            row = int(lost.int().argmax())
            raise InputError(LOST.format(row=row, error=float(error[row]), size=float(size[row])))

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
            return list(z), list(a), torch.zeros_like(self.ends.status)
        state = (*z, *a)
        slope = step.system.bind(constants)(step.system.clock(constants, t), state)
        tolerance = self.problem.loop_tolerance
        start = start_loop(EAGER, attempt, options.dt, t, target, state, constants, slope, tolerance=tolerance)
        end, _ = integrate(
            EAGER,
            attempt,
            start,
            target,
            constants,
            recorders=[quadrature],
            tolerance=tolerance,
            max_steps=options.max_steps,
            positions=self.positions,
        )
        failed = (end.status != Status.OK).nonzero().flatten().tolist()
        if failed:
            raise SolveError(
                failed,
                end.t[failed].tolist(),
                [Status(code) for code in end.status[failed].tolist()],
                None,
                self.problem.batch,
                f'in the adjoint solve, backward in time, in which {_GROWS}; use gradient="discrete"',
            )
        points = step.quadrature_points if quadrature.calls else 0
        made = start.nfe + (end.accepted + end.rejected) * step.evaluations + end.accepted * points
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
        slope, cotangents = system.slope(system.clock(constants, t), tuple(z), tuple(a), constants)
        return inner_product(cotangents, [k.detach() for k in slope]).to(t.dtype)
