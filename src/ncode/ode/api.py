"""`solve`: the one verb of this package."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from .._torch_private import forward_mode_enabled, is_dual, is_mapped, is_symbolic, is_transforming
from ..checks import check_choice, check_count
from ..errors import InputError, SolveError, Status
from .adjoint import Adjoint
from .ambient import Ambient
from .apart import apart
from .discrete import Discrete
from .field import Control, Cost, Dynamics, Feedback
from .forward import Forward, look, run
from .join import Outputs, join
from .problem import GRADIENTS, Problem, check, check_slope
from .record import Moves
from .solution import Dense, Solution, Stats
from .step import like
from .stepsize import PID
from .tape import Tape
from .touched import Touched, replaced
from .unrolled import lose, planned, unroll

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _eagerly(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a caller's torch.compile out: how often the loop runs, and whether it fails, depends on values."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            return torch.compiler.disable(function)(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        return function(*args, **kwargs)

    return call


@_eagerly
def solve(
    dynamics: Dynamics,
    x0: Tensor,
    t0: float | Tensor,
    t1: float | Tensor,
    *,
    theta: Control = None,
    feedback: Feedback | None = None,
    cost: Cost | None = None,
    save_at: Tensor | None = None,
    dense: bool = False,
    method: str = "dopri5",
    rtol: float = 1e-3,
    atol: float = 1e-6,
    dt: float | None = None,
    step: str = "sample",
    gradient: str = "discrete",
    compile: bool = False,
    max_steps: int = 10_000,
    checkpoint_every: int = 1,
    pid: PID | None = None,
    throw: bool = True,
) -> Solution:
    """Solve dx/dt = f(t, x, theta) for a batch; theta is a control, constant or driven by dtheta/dt = g(t, x, theta).

    Each sample has its own time, step size and status, so its result does not depend on its companions.

    Args:
        dynamics: f(t, x, theta) -> dx/dt. `t` is a (batch,) tensor, `x` (batch, ...), `theta` as given.
        x0: The state at t0, (batch, ...), float32, float64 or complex.
        t0, t1: Numbers, or tensors () or (batch,). t1 < t0 solves backward in time; t1 = t0 returns x0.
        theta: The control at t0: None, a tensor (batch, ...), or a nested tuple, list or dict of such.
        feedback: g(t, x, theta) -> dtheta/dt, nested as theta. Without it theta is a constant of the flow.
        cost: A running cost l(t, x, theta) -> (batch,); its integral over [t0, t1] is `sol.cost`.
        save_at: Times to return the solution at, shared (T,) or a sample's own (batch, T), from t0 towards t1.
        dense: Keep dense output, so that `sol(t)` gives x at any time.
        method: euler, midpoint, heun, bosh3, rk4, dopri5, tsit5 or dopri8.
        rtol, atol: The error a step may make: atol + rtol * |x|, root mean square over a sample's elements. x, theta
            (with feedback) and the cost are judged apart, so a large control never hides an error of the state.
        dt: A fixed step size, instead of steps chosen by the error.
        step: "sample": each sample chooses its steps. "batch": one step for all, chosen by their mean error.
        gradient: "discrete": equal to backpropagation through the accepted steps, with one state a step in memory.
            "adjoint": solves the augmented adjoint of the paper's Theorem 1 backward in time; memory does not grow with
            the number of steps, but the gradient is only as exact as that solve: ask for tight tolerances.
            "autograd": an ordinary graph; second derivatives, forward mode and torch.func work.
        compile: Compile the step and its backward with torch.compile, once a shape; on CUDA also record them as CUDA
            graphs. The dynamics must then be a pure function of their arguments and of tensors that stay in place.
        max_steps: The most steps a sample may take, rejected ones included.
        checkpoint_every: For "discrete": keep every k-th state and compute those between again.
        pid: The controller of step sizes.
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
    check_choice("gradient", gradient, GRADIENTS)
    checkpoint_every = check_count("checkpoint_every", checkpoint_every)
    problem = check(
        *(dynamics, x0, t0, t1, theta, feedback, cost, save_at, dense),
        *(method, rtol, atol, dt, step, pid or PID(), max_steps),
    )
    if problem.batch == 0:
        return _empty(problem)
    if is_transforming() and gradient != "autograd":
        raise InputError(
            f'gradient="{gradient}" does not work inside torch.func transforms: use gradient="autograd" there'
        )
    if gradient == "autograd" and problem.fixed_count is not None and not compile:
        solution = _solve_planned(problem, theta)
        if is_symbolic() or bool(solution.ok.all()):
            return solution
        # A sample failed: find out where, and keep its values out of the others' gradients.
    return _solve(problem, theta, gradient, compile, checkpoint_every, throw)


def _solve_planned(problem: Problem, theta: Control) -> Solution:
    """Steps that are known beforehand, as a plain graph: no value is looked at on the way."""
    field = problem.field
    slope = field.bind(problem.theta)(problem.t0.to(field.dtype), problem.z0)
    check_slope(field, problem.z0, slope)
    steps = planned(problem)
    moves = steps.moves
    outputs = unroll(problem, steps, slope)
    finite = torch.stack([leaf.detach().isfinite().reshape(problem.batch, -1).all(1) for leaf in outputs.z]).all(0)
    codes = torch.where(finite, Status.MAX_STEPS if problem.fixed_short else Status.OK, Status.NOT_FINITE).to(
        torch.int32
    )
    count = torch.full_like(codes, len(moves))
    extra = len(problem.tableau.extra_a) if problem.dense or problem.ts is not None else 0
    hand_on = (problem.dense or problem.ts is not None) and problem.tableau.dense_needs_end
    nfe = count * (problem.tableau.stages + extra) + (1 if hand_on else 0)
    stats = Stats(nfe, count, torch.zeros_like(count))
    times = _knots(problem, moves) if problem.dense and moves else None
    return _finish(problem, theta, lose(outputs, codes), stats, codes, problem.t1.detach(), times, False)


def _solve(problem: Problem, theta: Control, gradient: str, compile: bool, every: int, throw: bool) -> Solution:
    """A forward pass without autograd, then whatever the gradient needs."""
    _refuse_mapped((*problem.z0, *problem.theta))
    unrolled = gradient == "autograd"
    with torch.set_grad_enabled(torch.is_grad_enabled() and not unrolled), forward_mode_enabled(False):
        touched = look(problem, train=torch.is_grad_enabled())
    trained = touched.trained
    _refuse_mapped((*trained, *touched.others))
    rows = problem.rows
    grad = unrolled or (torch.is_grad_enabled() and any(leaf.requires_grad for leaf in (*problem.z0, *rows, *trained)))
    if not unrolled and any(is_dual(leaf) for leaf in (*problem.z0, *rows, *trained, *touched.others)):
        raise InputError(f'gradient="{gradient}" has no forward mode: use gradient="autograd"')
    if grad and gradient == "adjoint" and problem.dense:
        raise InputError('dense output has no adjoint gradient: use save_at, or gradient="discrete"')

    tape = Tape(every if gradient == "discrete" else 1) if grad and gradient != "adjoint" else None
    rooted = touched.has_rows(problem.batch)
    with torch.no_grad(), forward_mode_enabled(False):
        forward = run(problem, touched, [tape] if tape is not None else [], compile=compile)
    march = forward.march
    stats = Stats(forward.nfe, march.accepted, march.rejected)
    if unrolled and tape is not None:
        outputs, times = _unroll(problem, tape, forward, stats, rooted=rooted)
        return _finish(problem, theta, outputs, stats, march.status, march.t, times, throw, forward.failed)
    times, states, powers = None, (), ()
    if forward.dense is not None and forward.dense.moves:
        times, states, powers = _knots(problem, forward.dense.moves), *forward.dense.stacked()
    outputs = Outputs(march.z, forward.saved, states, powers)
    if grad:
        outputs = _joined(problem, touched, tape, forward, stats, outputs, rooted=rooted, compile=compile)
    return _finish(problem, theta, outputs, stats, march.status, march.t, times, throw, forward.failed)


def _joined(
    problem: Problem,
    touched: Touched,
    tape: Tape | None,
    forward: Forward,
    stats: Stats,
    outputs: Outputs,
    *,
    rooted: bool,
    compile: bool,
) -> Outputs:
    """The outputs, with a gradient: "discrete" along a tape, "adjoint" without one."""
    field, inner = apart(problem.field, touched)
    functions = problem.field.dynamics, problem.field.feedback, problem.field.cost
    alone, ambient = replace(problem, field=field), Ambient(problem.t0.device, replaced(functions))
    march = forward.march
    if tape is not None:
        job = Discrete(alone, inner, compile, tape, march.status, stats, ambient)
    else:
        z1, saved = (tuple(leaf.detach().clone() for leaf in part) for part in (march.z, forward.saved))
        job = Adjoint(alone, rooted, z1, saved, march.status, stats, ambient)
    return join(job, problem, touched.trained, inner.trained, outputs)


def _unroll(
    problem: Problem, tape: Tape, forward: Forward, stats: Stats, *, rooted: bool
) -> tuple[Outputs, tuple[Tensor, Tensor] | None]:
    """The accepted steps once more, as a plain graph: the outputs, and the times that dense output is made of."""
    march = forward.march
    ok = march.status == Status.OK
    steps = tape.steps(ok, problem.z0, rooted=rooted or problem.dense)
    outputs = lose(unroll(problem, steps), march.status)
    if not bool(ok.all()):  # what a failed sample passed before it failed
        saved = zip(outputs.saved, forward.saved, strict=True)
        outputs = outputs._replace(saved=tuple(torch.where(like(ok, (a,))[0], a, b) for a, b in saved))
    handed_on = (problem.dense or problem.ts is not None) and problem.tableau.dense_needs_end
    again = march.accepted * forward.evaluations + (march.accepted > 0) * handed_on
    stats.nfe = stats.nfe + torch.where(ok, again, 0)
    taken = [steps.move(n) for n in range(len(steps.sizes))] if problem.dense else []
    return outputs, _knots(problem, taken) if taken else None


def _refuse_mapped(leaves: Sequence[Tensor]) -> None:
    if any(map(is_mapped, leaves)):
        raise InputError(
            "solve chooses steps by looking at values, which torch.func.vmap forbids: solve is batched already, so put"
            " the mapped dimension into the batch; or use a fixed dt with numbers for t0 and t1, and"
            ' gradient="autograd"'
        )


def _finish(
    problem: Problem,
    theta: Control,
    outputs: Outputs,
    stats: Stats,
    codes: Tensor,
    reached: Tensor,
    times: tuple[Tensor, Tensor] | None,
    throw: bool,
    failures: int | None = None,
) -> Solution:
    """Put the parts into a Solution, and raise if samples failed."""
    field, count = problem.field, 0 if problem.ts is None else problem.ts.shape[1]
    width = 1 + field.driven
    if field.driven:
        theta = field.nest(outputs.z[1:width])
        thetas = field.nest(outputs.saved[1:width]) if problem.ts is not None else None
    else:
        constants = [leaf[:, None].expand(-1, count, *leaf.shape[1:]) for leaf in problem.theta]
        thetas = field.nest(constants) if problem.ts is not None else None
    solution = Solution(
        x=outputs.z[0],
        theta=theta,
        cost=outputs.z[width] if field.cost is not None else None,
        ts=problem.ts_given.expand(problem.batch, count) if problem.ts_given is not None else None,
        xs=outputs.saved[0] if problem.ts is not None else None,
        thetas=thetas,
        stats=stats,
        codes=codes,
        t=reached,
        dense=Dense(*times, outputs.states, outputs.powers) if times is not None else None,
        interval=(problem.t0.detach(), problem.t1.detach()) if problem.dense else None,
    )
    if throw and failures != 0 and not is_symbolic() and bool((codes != Status.OK).any()):
        failed = (codes != Status.OK).nonzero().flatten().tolist()
        statuses = [Status(code) for code in codes[failed].tolist()]
        raise SolveError(failed, reached[failed].tolist(), statuses, solution, problem.batch)
    return solution


def _empty(problem: Problem) -> Solution:
    """The solution of no samples."""
    none = torch.zeros(0, dtype=torch.int32, device=problem.t0.device)
    ts = problem.ts
    saved = (
        ()
        if ts is None
        else tuple(
            leaf[:, None].expand(-1, ts.shape[1], *leaf.shape[1:]) for leaf in problem.z0[: 1 + problem.field.driven]
        )
    )
    return _finish(
        problem,
        None if problem.field.driven else problem.field.nest(problem.theta),
        Outputs(problem.z0, saved),
        Stats(none, none, none),
        none,
        problem.t1.detach(),
        None,
        False,
    )


def _knots(problem: Problem, moves: Sequence[Moves]) -> tuple[Tensor, Tensor]:
    """The times (batch, n) at which steps begin and end; they move with t0 and t1, as the steps do."""
    t0, t1 = problem.t0[:, None], problem.t1[:, None]
    begins, ends = (torch.stack(times, 1) for times in zip(*((move.t, move.t_next) for move in moves), strict=True))
    if not (t0.requires_grad or t1.requires_grad):
        return begins, ends
    start, span = t0.detach(), (t1 - t0).detach()
    span = torch.where(span == 0, 1.0, span)
    moved = [t0 + (times - start) / span * (t1 - t0) for times in (begins, ends)]
    return begins + (moved[0] - moved[0].detach()), ends + (moved[1] - moved[1].detach())
