"""The forward pass: the loop from t0 to t1 or to the first event, without autograd unless its graph is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Status
from .attempt import Attempt, LoopState
from .backends import WholeSolve
from .captures import Captures, FirstSlope
from .gradients.function import Ends
from .gradients.kept import KeptGraph
from .gradients.trajectory import Trajectory
from .independence import Positions
from .integrate import integrate, start_loop
from .problem import Problem
from .record import DenseRecorder, Observer, Recorder, SavedValues, StepTimes
from .stiffness import mark_stiff
from .system import State, expand_like, map_tensors
from .tape import Tape
from .watch import EventWatch


class Trail(NamedTuple):
    """What a forward pass leaves for backward, beside its result."""

    captures: Captures
    positions: Positions
    recorder: Tape | Trajectory | None  # of the steps, as backward reads them
    graph: KeptGraph | None
    first: FirstSlope | None = None


class ForwardResult(NamedTuple):
    """The end of a forward pass."""

    state: LoopState
    nfe: Tensor
    saved: State  # x and the driven control at the saved times; empty without
    dense: DenseRecorder | None
    evaluations: int  # of the dynamics per step
    failed: int | None  # number of failed samples, or None if unknown
    steps: Tensor | None = None  # times after accepted steps, counted from t0

    def ends(self, problem: Problem) -> Ends:
        """How the samples ended."""
        state = self.state
        return Ends(state.status, state.t, _has_result(problem, state.status), state.accepted > 0)


def run_forward(problem: Problem, trail: Trail, watch: EventWatch | None) -> ForwardResult:
    """Integrate from t0 to t1, or to the first event; with autograd as long as the graph can be kept."""
    options, backend, (captures, positions, recorder, graph, first) = problem.options, problem.options.backend, trail
    t0, t1 = torch.zeros_like(problem.t0), problem.span.detach()
    z = tuple(backend.prepare(leaf.detach()) for leaf in problem.z0)
    theta = tuple(backend.prepare(leaf.detach()) for leaf in problem.theta)
    interpolates = problem.interpolates or watch is not None or isinstance(recorder, Trajectory)
    attempt, tolerance = _make_attempt(problem, interpolates), problem.loop_tolerance
    given = t0, t1, z, theta, captures.slope, captures.outside, tolerance, problem.first_steps
    start = start_loop(backend, attempt, options.dt, *given)
    start = start if graph is None else graph.enter(start)
    collected = saved, dense, steps = _make_recorders(problem, t0, z, graph)
    recorders: list[Recorder | None] = [first, *collected, recorder, None if dense is None else graph]
    if watch is not None:
        watch.start(problem, captures.slope)
    state, failed = integrate(
        backend,
        attempt,
        start,
        t1,
        theta if graph is None else graph.probe.theta,
        captures.outside,
        [it for it in recorders if it is not None],
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
    if backend.fuses and t0.is_cuda:
        state = state.copy()  # out of the memory of a CUDA graph
    nfe = start.nfe + (state.accepted + state.rejected) * attempt.step.evaluations
    nfe = nfe if state.spent is None else nfe + state.spent
    state = _finish(problem, state, theta, failed, still)
    table = None if steps is None else steps.table(state.t, state.accepted)
    values = saved.values if saved is not None else ()
    return ForwardResult(state, nfe, values, dense, attempt.step.evaluations, failed, table)


def _make_attempt(problem: Problem, interpolates: bool) -> Attempt:
    options, fixed = problem.options, problem.options.dt is not None
    step = options.make_step(problem.system, estimate=not fixed, dense=interpolates)
    # Where operations are fused counting costs nothing, and on a GPU it saves an attempt.
    counted = problem.fixed_count is None and (options.backend.fuses or problem.t0.is_cuda)
    return Attempt(step, options.rule, fixed, options.shared_step, counted, limits=options.limits)


def _make_recorders(
    problem: Problem, t0: Tensor, z: State, graph: KeptGraph | None
) -> tuple[SavedValues | None, DenseRecorder | None, StepTimes | None]:
    """What collects the values at saved times, dense output, and the times of steps; None where not asked for."""
    saved = None
    if problem.ts is not None:
        saved = SavedValues(problem.ts.detach(), t0, z[: problem.system.shown], None if graph is None else graph.passed)
    return saved, DenseRecorder() if problem.dense else None, StepTimes() if problem.save_steps else None


def _make_observer(problem: Problem, z: State) -> Observer | None:
    system = problem.system
    if problem.callback is None:
        return None
    return Observer(problem.callback, problem.t0.detach(), z[: system.states], system.nest_x)


def finish_whole(problem: Problem, whole: WholeSolve) -> ForwardResult:
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
        bad = expand_like(~_has_result(problem, state.status), state.z)
        state = state._replace(z=tuple(torch.where(b, torch.nan, leaf) for b, leaf in zip(bad, state.z, strict=True)))
    return state


def _has_result(problem: Problem, status: Tensor) -> Tensor:
    """Which samples have a result, (batch,)."""
    return torch.ones_like(status, dtype=torch.bool) if problem.keep_last else status == Status.OK
