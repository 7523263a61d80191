"""Solve a checked problem: a forward pass, without autograd unless its graph is kept, then what the gradient needs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch_private import forward_mode_enabled, has_other_ranks, is_dual, is_mapped, is_symbolic
from ..errors import InputError, Status
from .backends import WholeSolve
from .captures import Captures, evaluate_and_look, find_captures
from .events import EventWatch
from .gradients.adjoint import AdjointPullback
from .gradients.discrete import DiscretePullback
from .gradients.function import Ends, ForwardContext, Outputs, connect, harmless_state, isolate_captures
from .gradients.kept import KeptGraph, start_graph
from .gradients.trajectory import Trajectory
from .gradients.unrolled import mask_failed, planned_steps, saved_at_start, unroll
from .independence import Positions
from .integrate import Attempt, LoopState, integrate, start_loop
from .problem import Problem
from .record import DenseRecorder, Observer, Recorder, SavedValues, StepRecord, StepTimes, Tape
from .solution import Stats
from .stiffness import mark_stiff
from .system import CHANGES_ARGUMENT, REUSES_OUTPUT, State, System, expand_like, map_tensors, tensors_of, where


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
    options, inputs = problem.options, tensors_of(problem.inputs)
    _refuse_mapped((*problem.z0, *problem.theta))
    unrolled = options.gradient == "autograd"
    with torch.set_grad_enabled(torch.is_grad_enabled() and not unrolled), forward_mode_enabled(False):
        train = torch.is_grad_enabled()
        captures = options.backend.recall(problem, train) if watch is None else None
        captures = probe(problem, train=train) if captures is None else captures
    captures, first = captures._replace(probe=None), captures.probe
    _refuse_mapped((*captures.trained, *captures.others))
    leaves = (*problem.z0, *inputs, *captures.trained)
    differentiates = unrolled or (torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves))
    if not unrolled and any(is_dual(leaf) for leaf in (*leaves, *captures.others)):
        raise InputError(f'gradient="{options.gradient}" has no forward mode: use gradient="autograd"')
    if differentiates and options.gradient == "adjoint" and problem.dense:
        raise InputError('dense output has no adjoint gradient: use save_at, or gradient="discrete"')

    tape = None
    if differentiates and options.gradient != "adjoint":
        tape = Tape(options.checkpoint_every if options.gradient == "discrete" else 1)
    trajectory = None
    if differentiates and options.gradient == "adjoint" and options.implicit:
        trajectory = Trajectory(problem.batch, torch.where(problem.span.detach() < 0, -1.0, 1.0).to(problem.t0))
    kept = [recorder for recorder in (tape, trajectory) if recorder is not None]
    positions = Positions(captures.outside, problem.batch, together=problem.together, method=options.jacobian_of)
    if watch is not None and watch.holds_samples:
        positions.free = False
    graph = None
    with torch.no_grad(), forward_mode_enabled(False):
        whole = options.backend.solve_whole(problem, captures, differentiates) if watch is None else None
        if whole is not None:  # its samples are known to be separate
            if captures.slope:
                options.backend.remember(problem, captures, train)
            forward = _finish_whole(problem, whole)
        else:
            if options.backend.checks_values:
                problem.check_values()
            if not captures.slope:
                captures = probe(problem, train=train)._replace(probe=None)
            if not problem.checked:
                _check_separate(problem, captures, positions, watch)
            if tape is not None and watch is None:
                graph = start_graph(problem, captures, first)
            forward = run_forward(problem, captures, positions, kept, watch, graph)
    if watch is not None:
        problem = watch.shorten(problem)
    state = forward.state
    if forward.failed != 0 and problem.span.requires_grad:
        # How far a sample got that did not reach t1 is a constant.
        span = torch.where(state.status == Status.OK, problem.span, problem.span.detach())
        problem = replace(problem, span=span)
    name = options.backend.name if whole is None else whole.backend
    stats = Stats(forward.nfe, state.accepted, state.rejected, backend=name)
    if unrolled and tape is not None:
        outputs, times = _unroll(problem, captures, positions, tape, forward, stats)
    else:
        times, states, powers = None, (), ()
        if forward.dense is not None and forward.dense.records:
            times, states, powers = _step_times(problem, forward.dense.records), *forward.dense.stacked()
        outputs = Outputs(state.z, forward.saved, states, powers)
        if whole is not None and whole.pullback is not None:
            outputs = connect(whole.pullback(problem, captures, stats), captures.trained, outputs)
        elif differentiates:
            outputs = _connect(problem, captures, positions, tape or trajectory, forward, stats, outputs, graph)
    return Solved(outputs, stats, state.status, state.t, times, forward.failed, forward.steps)


def _check_separate(problem: Problem, captures: Captures, positions: Positions, watch: EventWatch | None) -> None:
    """Refuse functions that let samples interact, where each sample has its own time."""
    t, z, theta = problem.start
    at = problem.system, t, z, theta, captures.slope, problem.midway
    with _without_communication():
        problem.options.backend.check(problem.system, (z, theta), functools.partial(positions.check_start, *at))
    if watch is not None:
        values, uses_time = evaluate_and_look(watch.bind(theta), watch.clock(theta, t), z)
        if uses_time:
            problem.check_resolution()
        positions.refuse_interaction(watch, t, z, theta, values, problem.midway)


def solve_planned(problem: Problem) -> Solved:
    """Steps that are known in advance, as a plain graph: no value is read on the way."""
    system = problem.system
    start = (system.clock(problem.theta, torch.zeros_like(problem.t0)), problem.z0)
    with _explain_errors(system, *start, problem.theta):
        slope = system.bind(problem.theta)(*start)
    if problem.options.implicit:
        positions = Positions((), problem.batch, method=problem.options.jacobian_of)
        positions.check_start(system, *problem.start, tuple(k.detach() for k in slope), problem.midway)
    steps = planned_steps(problem)
    outputs = unroll(problem, steps, slope)
    finite = torch.stack([leaf.detach().isfinite().reshape(problem.batch, -1).all(1) for leaf in outputs.z]).all(0)
    if problem.ts is not None and not problem.exceeds_max_steps:
        finite = finite & _saved_finite(problem.ts, outputs.saved)
    for leaf in outputs.powers:  # (steps, batch, ...)
        finite = finite & leaf.detach().isfinite().transpose(0, 1).flatten(1).all(1)
    reached = Status.MAX_STEPS if problem.exceeds_max_steps else Status.OK
    codes = torch.where(finite, reached, Status.NOT_FINITE).to(torch.int32)
    count = torch.full_like(codes, len(steps.records))
    step = problem.options.make_step(system, dense=problem.interpolates)
    nfe = count * step.evaluations + int(step.needs_end)
    stats = Stats(nfe, count, torch.zeros_like(count))
    times = _step_times(problem, steps.records) if problem.dense and steps.records else None
    kept = finite if problem.keep_last else codes == Status.OK
    ends = [torch.zeros_like(problem.t0), *(it.t_next for it in steps.records)]
    table = torch.stack(ends, 1) if problem.save_steps else None
    return Solved(mask_failed(outputs, kept), stats, codes, steps.reached(problem.span.detach()), times, None, table)


def _saved_finite(ts: Tensor, saved: State) -> Tensor:
    """Which samples have finite values at all of their saved times; nan pads these."""
    finite = [leaf.detach().isfinite().flatten(2).all(2) if leaf.dim() > 2 else leaf.isfinite() for leaf in saved]
    return (torch.stack(finite).all(0) | ts.detach().isnan()).all(1)


class ForwardResult(NamedTuple):
    """The end of a forward pass."""

    state: LoopState
    nfe: Tensor
    saved: State  # x and the driven control at the saved times; empty without
    dense: DenseRecorder | None
    evaluations: int  # of the dynamics per step
    failed: int | None  # number of failed samples, or None if unknown
    steps: Tensor | None = None  # times after accepted steps, counted from t0

    @property
    def moved(self) -> Tensor:
        """Which samples took a step, (batch,)."""
        return self.state.accepted > 0


def probe(problem: Problem, *, train: bool) -> Captures:
    """Evaluate the system at t0: checks what it returns and finds its captures."""
    system, (t, z, theta) = problem.system, problem.start
    t = system.clock(theta, t)
    with _explain_errors(system, t, z, theta), _without_communication():
        captures = find_captures(lambda *at: system.bind(at[2])(*at[:2]), system.functions, t, z, theta, train=train)
    if captures.uses_time:
        problem.check_resolution()
    return captures


@contextmanager
def _explain_errors(system: System, t: Tensor, z: State, theta: Sequence[Tensor]) -> Iterator[None]:
    """Explain an error of the first evaluation, if changes in place or the shape of t are the cause."""
    try:
        yield
    except (RuntimeError, TypeError, IndexError, InputError) as error:
        if "in-place" in str(error) or "inplace" in str(error):
            raise InputError(CHANGES_ARGUMENT) from error
        if "out=... arguments" in str(error):
            raise InputError(REUSES_OUTPUT) from error
        if isinstance(error, RuntimeError) and "dtype" in str(error):
            raise InputError(
                f"the dynamics, feedback or cost mix x of {z[0].dtype} with another dtype ({error}): use one precision,"
                " by net.to(x0.dtype) or x0.to(dtype)"
            ) from error
        ones = [1] * (z[0].dim() - 1)
        if ones and _fails_by_shape_of_time(error, system, t, t.reshape(-1, *ones), z, theta):
            column = "t[:, None]" if len(ones) == 1 else f"t.reshape(-1, {', '.join(map(str, ones))})"
            raise InputError(
                f"the dynamics, feedback or cost fail with t of shape {tuple(t.shape)}, one time per sample, and x of"
                f" shape {tuple(z[0].shape)} ({error}): write {column} * x for t * x"
            ) from error
        error.add_note(f"solve called the dynamics with t of shape {tuple(t.shape)} and x of shape {tuple(z[0].shape)}")
        raise


def _fails_by_shape_of_time(
    error: Exception, system: System, t: Tensor, column: Tensor, z: State, theta: Sequence[Tensor]
) -> bool:
    """Whether the system cannot be evaluated for times (batch,), but can for the same times as a column."""
    if is_symbolic() or isinstance(error, torch.OutOfMemoryError):
        return False
    return not _can_evaluate(system, t, z, theta) and _can_evaluate(system, column, z, theta)


def _can_evaluate(system: System, t: Tensor, z: State, theta: Sequence[Tensor]) -> bool:
    with torch.no_grad(), _without_communication(), suppress(Exception):  # of the dynamics, whatever it is
        system.bind(theta)(t, z)
        return True
    return False


def _without_communication() -> AbstractContextManager[Any]:
    if not has_other_ranks():
        return nullcontext()
    from .collectives import ForbidCollectives

    return ForbidCollectives()


def run_forward(
    problem: Problem,
    captures: Captures,
    positions: Positions,
    recorders: Sequence[Recorder] = (),
    watch: EventWatch | None = None,
    graph: KeptGraph | None = None,
) -> ForwardResult:
    """Integrate from t0 to t1, or to the first event; with autograd as long as the graph can be kept."""
    system, options, backend = problem.system, problem.options, problem.options.backend
    t0, t1 = torch.zeros_like(problem.t0), problem.span.detach()
    z = tuple(backend.prepare(leaf.detach()) for leaf in problem.z0)
    theta = tuple(backend.prepare(leaf.detach()) for leaf in problem.theta)
    fixed, tolerance = options.dt is not None, problem.loop_tolerance
    interpolates = problem.interpolates or watch is not None or any(isinstance(it, Trajectory) for it in recorders)
    step = options.make_step(system, estimate=not fixed, dense=interpolates)
    # Where operations are fused counting costs nothing, and on a GPU it saves an attempt.
    counted = problem.fixed_count is None and (backend.fuses or t0.is_cuda)
    attempt = Attempt(step, options.rule, fixed, options.shared_step, counted, limits=options.limits)
    start = start_loop(backend, attempt, options.dt, t0, t1, z, theta, captures.slope, captures.outside, tolerance)
    start = start if graph is None else graph.enter(start)
    saved = dense = None
    if problem.ts is not None:
        saved = SavedValues(problem.ts.detach(), t0, z[: system.shown], None if graph is None else graph.passed)
    if problem.dense:
        dense, recorders = DenseRecorder(), [*recorders, *([] if graph is None else [graph])]
    steps = StepTimes() if problem.save_steps else None
    if watch is not None:
        watch.start(problem, captures.slope)
    state, failed = integrate(
        backend,
        attempt,
        start,
        t1,
        theta if graph is None else graph.probe.theta,
        captures.outside,
        [recorder for recorder in (saved, dense, steps, *recorders) if recorder is not None],
        tolerance=tolerance,
        max_steps=options.max_steps,
        steps=problem.fixed_count,
        positions=positions if dense is None else None,  # dense output needs all samples side by side
        watch=watch,
        observer=_make_observer(problem, z),
        graph=graph,
    )
    still = state.z[0] is start.state.z[0]
    if graph is not None:
        graph.z, state = state.z, map_tensors(Tensor.detach, state)
    if backend.fuses and t0.is_cuda:  # copies, out of the memory of a CUDA graph
        names = ("t", "z", "status", "accepted", "rejected", "spent")
        kept = map_tensors(torch.clone, tuple(getattr(state, name) for name in names))
        state = state._replace(**dict(zip(names, kept, strict=True)))
    nfe = start.nfe + (state.accepted + state.rejected) * step.evaluations
    nfe = nfe if state.spent is None else nfe + state.spent
    state = _finish(problem, state, theta, failed, still)
    table = None if steps is None else steps.table(state.t, state.accepted)
    values = saved.values if saved is not None else ()
    return ForwardResult(state, nfe, values, dense, step.evaluations, failed, table)


def _finish_whole(problem: Problem, whole: WholeSolve) -> ForwardResult:
    """The end of a forward pass that a backend ran as a whole."""
    if whole.failed:
        problem.check_values()
    state = _finish(problem, whole.state, [leaf.detach() for leaf in problem.theta], whole.failed)
    return ForwardResult(state, whole.nfe, whole.saved, None, 0, whole.failed)


def _finish(
    problem: Problem, state: LoopState, theta: Sequence[Tensor], failed: int | None, still: bool = False
) -> LoopState:
    """The last state, with the reason of each failure, and nan where there is no result."""
    options, t1 = problem.options, problem.span.detach()
    if failed != 0 and options.dt is None and not options.implicit:
        status = mark_stiff(problem.system, state.t, t1, state.h, state.z, theta, state.status)
        state = state._replace(status=status)
    if failed != 0 or still:  # where nothing moved, the result must not be the input itself
        bad = expand_like(~_kept(problem, state.status), state.z)
        state = state._replace(z=tuple(torch.where(b, torch.nan, leaf) for b, leaf in zip(bad, state.z, strict=True)))
    return state


def _make_observer(problem: Problem, z: State) -> Observer | None:
    system = problem.system
    if problem.callback is None:
        return None
    return Observer(problem.callback, problem.t0.detach(), z[: system.states], system.nest_x)


def _kept(problem: Problem, status: Tensor) -> Tensor:
    """Which samples have a result, (batch,)."""
    return torch.ones_like(status, dtype=torch.bool) if problem.keep_last else status == Status.OK


def _connect(
    problem: Problem,
    captures: Captures,
    positions: Positions,
    kept: Tape | Trajectory | None,
    forward: ForwardResult,
    stats: Stats,
    outputs: Outputs,
    graph: KeptGraph | None = None,
) -> Outputs:
    """The outputs with a gradient: "discrete" along a tape, "adjoint" without one."""
    state, context = forward.state, ForwardContext(problem.system, problem.t0.device, captures)
    system, isolated = isolate_captures(problem.system, captures)
    problem = problem if system is problem.system else replace(problem, system=system)
    ends = Ends(state.status, state.t, _kept(problem, state.status), forward.moved)
    common = problem, isolated, ends, stats, context, positions
    if isinstance(kept, Tape):
        pullback = DiscretePullback(*common, kept, None if graph is None or graph.dropped else graph)
    else:
        z1, saved = (tuple(leaf.detach().clone() for leaf in part) for part in (state.z, forward.saved))
        pullback = AdjointPullback(*common, z1, saved, kept)
    return connect(pullback, captures.trained, outputs)


def _unroll(
    problem: Problem, captures: Captures, positions: Positions, tape: Tape, forward: ForwardResult, stats: Stats
) -> tuple[Outputs, tuple[Tensor, Tensor] | None]:
    """The accepted steps once more, as a plain graph: the outputs, and the times of dense output."""
    state = forward.state
    kept = _kept(problem, state.status)
    replayed = kept & ((state.status == Status.OK) | forward.moved)

    def may_reorder() -> bool:
        return not problem.dense and positions.are_free(problem.system, *problem.start, captures.slope)

    replacement = functools.partial(harmless_state, problem)
    steps = tape.steps(replayed, problem.z0, may_reorder=may_reorder, replacement=replacement)
    outputs = mask_failed(unroll(problem, steps), kept)
    if not bool(replayed.all()):  # what a failed sample passed before it failed, and where it never moved
        z = where(replayed | ~kept, outputs.z, problem.z0)
        passed = saved_at_start(problem) if problem.keep_last else forward.saved
        outputs = outputs._replace(z=z, saved=where(replayed, outputs.saved, passed))
    needs_end = problem.options.make_step(problem.system, dense=problem.interpolates).needs_end
    ends = state.accepted if problem.system.bounded else state.accepted.clamp_max(1)
    again = state.accepted * forward.evaluations + ends * needs_end
    stats.nfe = stats.nfe + torch.where(replayed, again, 0)
    records = [steps.step(n) for n in range(len(steps.sizes))] if problem.dense else []
    return outputs, _step_times(problem, records) if records else None


def _refuse_mapped(leaves: Sequence[Tensor]) -> None:
    if any(map(is_mapped, leaves)):
        raise InputError(
            "solve chooses steps by reading values, which torch.func.vmap forbids: solve is batched already, so put"
            " the mapped dimension into the batch; or use a fixed dt with numbers for t0 and t1, and"
            ' gradient="autograd"'
        )


def _step_times(problem: Problem, records: Sequence[StepRecord]) -> tuple[Tensor, Tensor]:
    """The times (batch, n), from t0, at which steps begin and end; they move with the interval, as the steps do."""
    begins, ends = torch.stack([it.t for it in records], 1), torch.stack([it.t_next for it in records], 1)
    system, theta, span = problem.system, problem.theta, problem.span
    if not span.requires_grad and not (system.bounded and any(it.requires_grad for it in (theta[-4], theta[-1]))):
        return begins, ends
    moved = [system.moved_step(theta, span, it.t, it.t_next - it.t) for it in records]
    first, last = torch.stack([t for t, _ in moved], 1), torch.stack([t + h for t, h in moved], 1)
    return begins + (first - first.detach()), ends + (last - last.detach())
