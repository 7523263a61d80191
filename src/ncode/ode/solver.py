"""Solve a checked problem: one evaluation at t0, a forward pass, then what the gradient needs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._torch_private import forward_mode_enabled, in_dual_level, is_dual, is_mapped, is_symbolic
from ..errors import InputError, Status
from .captures import Captures, FirstSlope, Probe
from .forward import ForwardResult, Trail, finish_whole, run_forward
from .gradients.adjoint import AdjointPullback
from .gradients.discrete import DiscretePullback
from .gradients.function import ForwardContext, Outputs, connect, harmless_state, isolate_captures
from .gradients.kept import start_graph
from .gradients.trajectory import Trajectory
from .gradients.unrolled import mask_failed, saved_at_start, unroll
from .independence import Positions
from .last_state import last_at_fixed_time
from .probe import check_separate, probe
from .problem import Problem
from .record import StepRecord
from .solution import Stats
from .system import JUMPS, T0, State, tensors_of, where
from .tape import Tape
from .watch import EventWatch


class Solved(NamedTuple):
    """What solving a problem yields."""

    outputs: Outputs
    stats: Stats
    codes: Tensor  # the status of each sample, (batch,)
    reached: Tensor  # the time that each sample reached, counted from t0
    times: tuple[Tensor, Tensor] | None  # at which the steps of dense output begin and end
    failed: int | None  # number of failed samples, or None if unknown
    steps: Tensor | None = None  # times after accepted steps, counted from t0, (batch, n)
    control: State | None = None  # leaves of a constant control at the end, where events may have reset it
    controls: State = ()  # the same at the saved times


def solve_problem(problem: Problem, watch: EventWatch | None = None) -> Solved:
    """A forward pass, to t1 or the first event, then whatever the gradient needs."""
    _refuse_mapped((*problem.z0, *problem.theta))
    train = torch.is_grad_enabled() and problem.options.gradient != "autograd"
    with torch.set_grad_enabled(train), forward_mode_enabled(False):
        recalled = problem.options.backend.recall(problem, train)
        captures = probe(problem, train=train) if recalled is None else recalled
    # Only a kept graph may hold the graph of the probe: captures live as long as the pullback.
    captures, evaluation = captures._replace(probe=None), captures.probe
    _refuse_mapped((*captures.trained, *captures.others))
    differentiated = differentiates(problem, captures)
    _check_gradient(problem, captures, differentiated)
    whole = _solve_whole(problem, captures, train, differentiated)
    if whole is not None:
        return whole
    return _solve_by_steps(problem, captures, evaluation, train, differentiated, watch)


def differentiates(problem: Problem, captures: Captures) -> bool:
    """Whether anything that the solve depends on requires a gradient."""
    if problem.options.gradient == "autograd":
        return True
    if not torch.is_grad_enabled():
        return False
    return any(leaf.requires_grad for leaf in (*problem.z0, *tensors_of(problem.inputs), *captures.trained))


def _check_gradient(problem: Problem, captures: Captures, differentiated: bool) -> None:
    """Refuse derivatives that this gradient does not have."""
    gradient = problem.options.gradient
    if gradient != "autograd" and in_dual_level():
        leaves = (*problem.z0, *tensors_of(problem.inputs), *captures.trained, *captures.others)
        if any(map(is_dual, leaves)):
            raise InputError(f'gradient="{gradient}" has no forward mode: use gradient="autograd"')
    if differentiated and gradient == "adjoint" and problem.dense:
        raise InputError('dense output has no adjoint gradient: use save_at, or gradient="discrete"')


def _solve_whole(problem: Problem, captures: Captures, train: bool, differentiated: bool) -> Solved | None:
    """The solution by a backend that solves as a whole; None where it does not."""
    backend = problem.options.backend
    with torch.no_grad(), forward_mode_enabled(False):
        whole = backend.solve_whole(problem, captures, differentiated)
        if whole is None:
            return None
        if captures.slope:
            backend.remember(problem, captures, train)
        forward = finish_whole(problem, whole)
    state = forward.state
    stats = Stats(forward.nfe, state.accepted, state.rejected, backend=whole.backend)
    outputs = Outputs(state.z, forward.saved)
    if whole.pullback is not None:
        pullback = whole.pullback(_as_ended(problem, forward), captures, stats)
        outputs = connect(pullback, captures.trained, outputs)
    return Solved(outputs, stats, state.status, state.t, None, forward.failed)


def _solve_by_steps(
    problem: Problem,
    captures: Captures,
    evaluation: Probe | None,  # at t0, with its graph
    train: bool,
    differentiated: bool,
    watch: EventWatch | None,
) -> Solved:
    """The solution by the loop, which takes one step per sample after another."""
    options = problem.options
    with torch.no_grad(), forward_mode_enabled(False):
        if options.backend.checks_values and not problem.checked:
            problem.check_values()
        if not captures.slope:  # recalled from an earlier solve
            captures = probe(problem, train=train)._replace(probe=None)
        eager = not options.backend.fuses and not is_symbolic()
        first = FirstSlope(captures.slope) if eager and not problem.t0.is_cuda else None
        separate = {"together": problem.together, "method": options.jacobian_of, "with_events": watch is not None}
        positions = Positions(captures.outside, problem.batch, **separate)
        if watch is not None and watch.holds_samples:
            positions.free = False
        if not problem.checked:  # whose samples may depend on each other
            check_separate(problem, captures, positions, watch)
        recorder = _make_recorder(problem) if differentiated else None
        graph = start_graph(problem, captures, evaluation) if isinstance(recorder, Tape) and watch is None else None
        trail = Trail(captures, positions, recorder, graph, first)
        # Where nothing requires a gradient, there is no backward that would find a parameter used at later times only.
        untrained = eager and train and not differentiated
        system = replace(problem.system, untrained=True) if untrained else problem.system
        forward = run_forward(replace(problem, system=system), trail, watch)
    problem = _as_ended(problem if watch is None else watch.shorten(problem), forward)
    state = forward.state
    stats = Stats(forward.nfe, state.accepted, state.rejected, backend=options.backend.name)
    if options.gradient == "autograd":
        outputs, times = _unroll(problem, trail, forward, stats)
    else:
        outputs, times = _outputs(problem, forward)
        outputs = _connect(problem, trail, forward, stats, outputs) if differentiated else outputs
    if forward.failed != 0 and problem.keep_last and problem.system.bounded and options.gradient != "adjoint":
        last = last_at_fixed_time(problem, outputs.z, state.t, state.status != Status.OK)
        outputs = outputs._replace(z=last)
    return Solved(outputs, stats, state.status, state.t, times, forward.failed, forward.steps)


def _make_recorder(problem: Problem) -> Tape | Trajectory | None:
    """What keeps the steps that backward needs."""
    options = problem.options
    if options.gradient != "adjoint":
        return Tape(options.checkpoint_every if options.gradient == "discrete" else 1)
    if options.implicit:
        return Trajectory(problem.batch, torch.where(problem.span.detach() < 0, -1.0, 1.0).to(problem.t0))
    return None


def _as_ended(problem: Problem, forward: ForwardResult) -> Problem:
    """The problem, with the span of samples that failed as a constant: how far they got has no gradient."""
    if forward.failed == 0 or not problem.span.requires_grad:
        return problem
    span = torch.where(forward.state.status == Status.OK, problem.span, problem.span.detach())
    return replace(problem, span=span)


def _outputs(problem: Problem, forward: ForwardResult) -> tuple[Outputs, tuple[Tensor, Tensor] | None]:
    """What the forward pass returns, without gradients, and the times of dense output."""
    z, saved, dense = forward.state.z, forward.saved, forward.dense
    if dense is None or not dense.records:
        return Outputs(z, saved), None
    return Outputs(z, saved, *dense.stacked()), step_times(problem, dense.records)


def _connect(problem: Problem, trail: Trail, forward: ForwardResult, stats: Stats, outputs: Outputs) -> Outputs:
    """The outputs with a gradient: "discrete" along a tape, "adjoint" without one."""
    captures, positions, recorder, graph, _ = trail
    context = ForwardContext(problem.system, problem.t0.device, captures)
    system, isolated = isolate_captures(problem.system, captures)
    problem = problem if system is problem.system else replace(problem, system=system)
    common = problem, isolated, forward.ends(problem), stats, context, positions
    if isinstance(recorder, Tape):
        pullback = DiscretePullback(*common, recorder, None if graph is None or graph.dropped else graph)
    else:
        z1, saved = (tuple(leaf.detach().clone() for leaf in part) for part in (forward.state.z, forward.saved))
        pullback = AdjointPullback(*common, z1, saved, recorder)
    return connect(pullback, captures.trained, outputs)


def _unroll(
    problem: Problem, trail: Trail, forward: ForwardResult, stats: Stats
) -> tuple[Outputs, tuple[Tensor, Tensor] | None]:
    """The accepted steps once more, as a plain graph: the outputs, and the times of dense output."""
    state, ends = forward.state, forward.ends(problem)
    has_result, replayed = ends.has_result, ends.replayed

    def may_reorder() -> bool:
        return not problem.dense and trail.positions.are_free(problem.system, *problem.start, trail.captures.slope)

    assert isinstance(trail.recorder, Tape)
    replacement = functools.partial(harmless_state, problem)
    steps = trail.recorder.steps(replayed, problem.z0, may_reorder=may_reorder, replacement=replacement)
    outputs = mask_failed(unroll(problem, steps), has_result)
    if not bool(replayed.all()):  # what a failed sample passed before it failed, and where it never moved
        z = where(replayed | ~has_result, outputs.z, problem.z0)
        passed = saved_at_start(problem) if problem.keep_last else forward.saved
        outputs = outputs._replace(z=z, saved=where(replayed, outputs.saved, passed))
    needs_end = problem.options.make_step(problem.system, dense=problem.interpolates).needs_end
    last = state.accepted if problem.system.bounded else state.accepted.clamp_max(1)
    again = state.accepted * forward.evaluations + last * needs_end
    stats.nfe = stats.nfe + torch.where(replayed, again, 0)
    records = [steps.step(n) for n in range(len(steps.sizes))] if problem.dense else []
    return outputs, step_times(problem, records) if records else None


def _refuse_mapped(leaves: Sequence[Tensor]) -> None:
    if any(map(is_mapped, leaves)):
        raise InputError(
            "solve chooses steps by reading values, which torch.func.vmap forbids: solve is batched already, so put"
            " the mapped dimension into the batch; or use a fixed dt with numbers for t0 and t1, and"
            ' gradient="autograd"'
        )


def step_times(problem: Problem, records: Sequence[StepRecord]) -> tuple[Tensor, Tensor]:
    """The times (batch, n), from t0, at which steps begin and end; they move with the interval, as the steps do."""
    begins, ends = torch.stack([it.t for it in records], 1), torch.stack([it.t_next for it in records], 1)
    system, theta, span = problem.system, problem.theta, problem.span
    if not span.requires_grad and not (system.bounded and any(it.requires_grad for it in (theta[JUMPS], theta[T0]))):
        return begins, ends
    moved = [system.moved_step(theta, span, it.t, it.t_next - it.t) for it in records]
    first, last = torch.stack([t for t, _ in moved], 1), torch.stack([t + h for t, h in moved], 1)
    return begins + (first - first.detach()), ends + (last - last.detach())
