"""`solve`, the one verb of the library: the forward pass, then whatever the gradient needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from .._torch_private import forward_mode_enabled, is_dual, is_mapped, is_symbolic, is_transforming
from ..errors import InputError, SolveError, Status
from .backends import EAGER, Backend
from .captures import Captures, ForwardContext, find_captures, isolate_captures
from .gradients.adjoint import AdjointPullback
from .gradients.discrete import DiscretePullback
from .gradients.function import Outputs, connect
from .gradients.unrolled import mask_failed, planned_steps, unroll
from .integrate import Attempt, LoopState, integrate, start_loop
from .problem import Problem, SolveOptions, make_problem
from .record import DenseRecorder, Recorder, SavedValues, StepRecord, Tape
from .solution import DenseOutput, Solution, Stats
from .step import Step, StepSizeRule
from .system import Control, Cost, Dynamics, Feedback, State, expand_like, map_tensors, tensors_of
from .tableau import Tableau

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Inexact
    from typing import Annotated as Real

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _outside_of_compilation(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a caller's torch.compile out: the number of attempts, and whether they fail, depends on values."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            return torch.compiler.disable(function)(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        return function(*args, **kwargs)

    return call


@_outside_of_compilation
def solve(
    dynamics: Dynamics,
    x0: Inexact[Tensor, "batch *state"],
    t0: float | Real[Tensor, ""] | Real[Tensor, "batch"],
    t1: float | Real[Tensor, ""] | Real[Tensor, "batch"],
    *,
    theta: Control = None,
    feedback: Feedback | None = None,
    cost: Cost | None = None,
    save_at: Real[Tensor, "times"] | Real[Tensor, "batch times"] | Sequence[float] | None = None,
    dense: bool = False,
    method: str | Tableau = "dopri5",
    rtol: float = 1e-3,
    atol: float = 1e-6,
    dt: float | None = None,
    step: str = "sample",
    gradient: str = "discrete",
    compile: bool | str | Backend = False,
    max_steps: int = 10_000,
    checkpoint_every: int = 1,
    step_rule: StepSizeRule | None = None,
    throw: bool = True,
) -> Solution:
    """Solve dx/dt = f(t, x, theta) for a batch; theta is a control, constant or driven by dtheta/dt = g(t, x, theta).

    Each sample has its own time, step size and status, so its result does not depend on the other samples.

    Args:
        dynamics: f(t, x, theta) -> dx/dt. `t` is (batch,), as in `t[:, None] * x`; `x` (batch, ...); `theta` as given.
        x0: The state at t0, (batch, ...), float32, float64 or complex.
        t0, t1: Numbers, or tensors () or (batch,). t1 < t0 solves backward in time; t1 = t0 returns x0.
        theta: The control at t0: None, a tensor (batch, ...), or a nested tuple, list or dict of such.
        feedback: g(t, x, theta) -> dtheta/dt, nested as theta. Default: theta is a constant of the flow.
        cost: A running cost l(t, x, theta) -> (batch,); its integral over [t0, t1] is `sol.cost`.
        save_at: Times at which to return the solution, shared (T,) or per sample (batch, T), from t0 towards t1.
        dense: Keep dense output, so that `sol(t)` returns x at any time.
        method: "euler", "midpoint", "heun", "bosh3", "rk4", "dopri5", "tsit5", "dopri8", or a `Tableau`.
        rtol, atol: The error that a step may make: atol + rtol * |x|, as a root mean square over a sample's elements.
            x, theta (with feedback) and the cost have norms of their own, so a large control never hides an error of
            the state.
        dt: A fixed step size. Default: steps are chosen by their error.
        step: "sample": each sample chooses its steps. "batch": one step size for all, chosen by their mean error.
        gradient: "discrete": equal to backpropagation through the accepted steps, with one state per step in memory.
            "adjoint": solves the augmented adjoint of the paper's Theorem 1 backward in time; memory does not grow with
            the number of steps, but the gradient is only as exact as that solve: use tight tolerances.
            "autograd": an ordinary graph; second derivatives, forward mode and torch.func work.
        compile: True: compile the steps and their gradients, once per shape ("inductor"); on CUDA also record them as
            CUDA graphs. The dynamics must then be a pure function of their arguments and of tensors that stay in place.
            Also the name of a backend, or a `Backend` of your own.
        max_steps: The largest number of steps of one sample, rejected ones included.
        checkpoint_every: For "discrete": keep every k-th state and recompute those between.
        step_rule: The rule that chooses step sizes. Default: `PID()`.
        throw: Raise SolveError if a sample fails. Otherwise such samples are nan, and `sol.status` says why.

    The dynamics are evaluated again during backward: random numbers drawn inside would differ, so draw them outside.

    >>> import math, torch, ncode
    >>> x0 = torch.ones(3, 1, dtype=torch.float64)
    >>> sol = ncode.solve(lambda t, x, theta: theta * x, x0, 0.0, 1.0, theta=-x0, rtol=1e-8, atol=1e-8)
    >>> bool((sol.x - math.exp(-1)).abs().max() < 1e-7)
    True
    >>> sol.status[0].name
    'OK'
    """
    options = SolveOptions(
        method=method,
        rtol=rtol,
        atol=atol,
        dt=dt,
        step=step,
        gradient=gradient,
        compile=compile,
        max_steps=max_steps,
        checkpoint_every=checkpoint_every,
        step_rule=step_rule,
    )
    problem = make_problem(
        dynamics, x0, t0, t1, options, theta=theta, feedback=feedback, cost=cost, save_at=save_at, dense=dense
    )
    if problem.batch == 0:
        return _empty(problem, theta)
    if is_transforming() and gradient != "autograd":
        raise InputError(
            f'gradient="{gradient}" does not work inside torch.func transforms: use gradient="autograd" there'
        )
    if gradient == "autograd" and problem.fixed_count is not None and options.backend is EAGER:
        solution = _solve_planned(problem, theta)
        if is_symbolic() or bool(solution.ok.all()):
            return solution
        # A sample failed: find out where, and keep its values out of the gradients of the others.
    return _solve(problem, theta, throw)


def _solve_planned(problem: Problem, theta: Control) -> Solution:
    """Steps that are known in advance, as a plain graph: no value is read on the way."""
    system, tableau = problem.system, problem.options.tableau
    slope = system.bind(problem.theta)(problem.t0.to(system.dtype), problem.z0)
    system.check_slope(problem.z0, slope)
    steps = planned_steps(problem)
    outputs = unroll(problem, steps, slope)
    finite = torch.stack([leaf.detach().isfinite().reshape(problem.batch, -1).all(1) for leaf in outputs.z]).all(0)
    reached = Status.MAX_STEPS if problem.exceeds_max_steps else Status.OK
    codes = torch.where(finite, reached, Status.NOT_FINITE).to(torch.int32)
    count = torch.full_like(codes, len(steps.records))
    per_step = tableau.stages + (len(tableau.extra_a) if problem.interpolates else 0)
    nfe = count * per_step + int(problem.interpolates and tableau.dense_needs_end)
    stats = Stats(nfe, count, torch.zeros_like(count))
    times = _step_times(problem, steps.records) if problem.dense and steps.records else None
    return _make_solution(problem, theta, mask_failed(outputs, codes), stats, codes, problem.t1.detach(), times)


def _solve(problem: Problem, theta: Control, throw: bool) -> Solution:
    """A forward pass without autograd, then whatever the gradient needs."""
    options, inputs = problem.options, tensors_of(problem.inputs)
    _refuse_mapped((*problem.z0, *problem.theta))
    unrolled = options.gradient == "autograd"
    with torch.set_grad_enabled(torch.is_grad_enabled() and not unrolled), forward_mode_enabled(False):
        captures = probe(problem, train=torch.is_grad_enabled())
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
    keep_sample_order = captures.may_hold_samples(problem.batch)
    with torch.no_grad(), forward_mode_enabled(False):
        forward = run_forward(problem, captures, [tape] if tape is not None else [])
    state = forward.state
    stats = Stats(forward.nfe, state.accepted, state.rejected, backend=options.backend.name)
    if unrolled and tape is not None:
        outputs, times = _unroll(problem, tape, forward, stats, keep_sample_order)
    else:
        times, states, powers = None, (), ()
        if forward.dense is not None and forward.dense.records:
            times, states, powers = _step_times(problem, forward.dense.records), *forward.dense.stacked()
        outputs = Outputs(state.z, forward.saved, states, powers)
        if differentiates:
            outputs = _connect(problem, captures, tape, forward, stats, outputs, keep_sample_order)
    solution = _make_solution(problem, theta, outputs, stats, state.status, state.t, times)
    if throw and forward.failed != 0:
        _raise_failures(solution)
    return solution


class ForwardResult(NamedTuple):
    """The end of a forward pass."""

    state: LoopState
    nfe: Tensor
    saved: State  # x and the driven control at the saved times; empty without
    dense: DenseRecorder | None
    evaluations: int  # of the dynamics per step
    failed: int | None  # number of failed samples, or None if unknown


def probe(problem: Problem, *, train: bool) -> Captures:
    """Evaluate the system at t0: checks what it returns and finds its captures."""
    system = problem.system

    def evaluate(t: Tensor, z: State, theta: Sequence[Tensor]) -> State:
        slope = system.bind(theta)(t, z)
        system.check_slope(z, slope)
        return slope

    t0 = problem.t0.detach().to(system.dtype)
    z0 = tuple(leaf.detach() for leaf in problem.z0)
    return find_captures(evaluate, system.functions, t0, z0, problem.theta, train=train)


def run_forward(problem: Problem, captures: Captures, recorders: Sequence[Recorder] = ()) -> ForwardResult:
    """Integrate from t0 to t1."""
    system, options, backend = problem.system, problem.options, problem.options.backend
    t0, t1 = problem.t0.detach(), problem.t1.detach()
    z = tuple(backend.prepare(leaf.detach()) for leaf in problem.z0)
    theta = tuple(backend.prepare(leaf.detach()) for leaf in problem.theta)
    fixed = options.dt is not None
    step = Step(system, options.tableau, estimate=not fixed, dense=problem.interpolates)
    # Where operations are fused counting costs nothing, and on a GPU it saves an attempt.
    counted = problem.fixed_count is None and (backend.fuses or t0.is_cuda)
    attempt = Attempt(step, options.rule, options.tolerance, fixed, options.shared_step, counted)
    start = start_loop(backend, attempt, options.dt, t0, t1, z, theta, captures.slope, captures.outside)
    saved = SavedValues(problem.ts.detach(), t0, z[: system.shown]) if problem.ts is not None else None
    dense = DenseRecorder() if problem.dense else None
    state, failed = integrate(
        backend,
        attempt,
        start,
        t1,
        theta,
        captures.outside,
        [recorder for recorder in (saved, dense, *recorders) if recorder is not None],
        max_steps=options.max_steps,
        steps=problem.fixed_count,
        # Dense output needs all samples side by side; a capture may have one row per sample.
        compact=dense is None and not captures.may_hold_samples(problem.batch),
    )
    if backend.fuses and t0.is_cuda:  # copies, out of the memory of a CUDA graph
        kept = map_tensors(torch.clone, (state.t, state.z, state.status, state.accepted, state.rejected))
        state = state._replace(**dict(zip(("t", "z", "status", "accepted", "rejected"), kept, strict=True)))
    nfe = start.nfe + (state.accepted + state.rejected) * step.evaluations
    if failed != 0 or state.z[0] is z[0]:  # where nothing moved, the result must not be the input itself
        bad = expand_like(state.status != Status.OK, state.z)
        state = state._replace(z=tuple(torch.where(b, torch.nan, leaf) for b, leaf in zip(bad, state.z, strict=True)))
    return ForwardResult(state, nfe, saved.values if saved is not None else (), dense, step.evaluations, failed)


def _connect(
    problem: Problem,
    captures: Captures,
    tape: Tape | None,
    forward: ForwardResult,
    stats: Stats,
    outputs: Outputs,
    keep_sample_order: bool,
) -> Outputs:
    """The outputs with a gradient: "discrete" along a tape, "adjoint" without one."""
    context, state = ForwardContext(problem.system, problem.t0.device), forward.state
    system, isolated = isolate_captures(problem.system, captures)
    problem = replace(problem, system=system)
    if tape is not None:
        pullback = DiscretePullback(problem, isolated, tape, state.status, stats, context)
    else:
        z1, saved = (tuple(leaf.detach().clone() for leaf in part) for part in (state.z, forward.saved))
        pullback = AdjointPullback(problem, keep_sample_order, z1, saved, state.status, stats, context)
    return connect(pullback, problem, captures.trained, isolated.trained, outputs)


def _unroll(
    problem: Problem, tape: Tape, forward: ForwardResult, stats: Stats, keep_sample_order: bool
) -> tuple[Outputs, tuple[Tensor, Tensor] | None]:
    """The accepted steps once more, as a plain graph: the outputs, and the times of dense output."""
    state = forward.state
    ok = state.status == Status.OK
    steps = tape.steps(ok, problem.z0, keep_sample_order=keep_sample_order or problem.dense)
    outputs = mask_failed(unroll(problem, steps), state.status)
    if not bool(ok.all()):  # what a failed sample passed before it failed
        saved = zip(outputs.saved, forward.saved, strict=True)
        outputs = outputs._replace(saved=tuple(torch.where(expand_like(ok, (a,))[0], a, b) for a, b in saved))
    reuses_end = problem.interpolates and problem.options.tableau.dense_needs_end
    again = state.accepted * forward.evaluations + (state.accepted > 0) * reuses_end
    stats.nfe = stats.nfe + torch.where(ok, again, 0)
    records = [steps.step(n) for n in range(len(steps.sizes))] if problem.dense else []
    return outputs, _step_times(problem, records) if records else None


def _refuse_mapped(leaves: Sequence[Tensor]) -> None:
    if any(map(is_mapped, leaves)):
        raise InputError(
            "solve chooses steps by reading values, which torch.func.vmap forbids: solve is batched already, so put"
            " the mapped dimension into the batch; or use a fixed dt with numbers for t0 and t1, and"
            ' gradient="autograd"'
        )


def _make_solution(
    problem: Problem,
    theta: Control,
    outputs: Outputs,
    stats: Stats,
    codes: Tensor,
    reached: Tensor,
    times: tuple[Tensor, Tensor] | None,
) -> Solution:
    system, thetas = problem.system, None
    count = 0 if problem.ts is None else problem.ts.shape[1]
    if system.driven:
        theta = system.nest(outputs.z[1 : system.shown])
        thetas = system.nest(outputs.saved[1 : system.shown]) if problem.ts is not None else None
    elif problem.ts is not None:
        thetas = system.nest([leaf[:, None].expand(-1, count, *leaf.shape[1:]) for leaf in problem.theta])
    return Solution(
        x=outputs.z[0],
        theta=theta,
        cost=outputs.z[system.shown] if system.cost is not None else None,
        ts=problem.ts_given.expand(problem.batch, count) if problem.ts_given is not None else None,
        xs=outputs.saved[0] if problem.ts is not None else None,
        thetas=thetas,
        stats=stats,
        codes=codes,
        t=reached,
        dense=DenseOutput(*times, outputs.states, outputs.powers) if times is not None else None,
        interval=(problem.t0.detach(), problem.t1.detach()) if problem.dense else None,
    )


def _raise_failures(solution: Solution) -> None:
    if is_symbolic() or bool(solution.ok.all()):
        return
    failed = (~solution.ok).nonzero().flatten().tolist()
    statuses = [Status(code) for code in solution.codes[failed].tolist()]
    raise SolveError(failed, solution.t[failed].tolist(), statuses, solution, len(solution.codes))


def _empty(problem: Problem, theta: Control) -> Solution:
    """The solution of a batch without samples."""
    none = torch.zeros(0, dtype=torch.int32, device=problem.t0.device)
    saved = ()
    if problem.ts is not None:
        count, shown = problem.ts.shape[1], problem.z0[: problem.system.shown]
        saved = tuple(leaf[:, None].expand(-1, count, *leaf.shape[1:]) for leaf in shown)
    outputs = Outputs(problem.z0, saved)
    return _make_solution(problem, theta, outputs, Stats(none, none, none), none, problem.t1.detach(), None)


def _step_times(problem: Problem, records: Sequence[StepRecord]) -> tuple[Tensor, Tensor]:
    """The times (batch, n) at which steps begin and end; they move with t0 and t1, as the steps do."""
    t0, t1 = problem.t0[:, None], problem.t1[:, None]
    begins, ends = torch.stack([it.t for it in records], 1), torch.stack([it.t_next for it in records], 1)
    if not (t0.requires_grad or t1.requires_grad):
        return begins, ends
    start, span = t0.detach(), (t1 - t0).detach()
    span = torch.where(span == 0, 1.0, span)
    moved = [t0 + (times - start) / span * (t1 - t0) for times in (begins, ends)]
    return begins + (moved[0] - moved[0].detach()), ends + (moved[1] - moved[1].detach())
