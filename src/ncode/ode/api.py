"""`solve`, the one verb of the library: its arguments, and the solution that it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .._torch_private import in_dual_level, is_dual, is_symbolic, is_transforming, pytree
from ..errors import THROW, InputError, SolveError, Status, check_flag, format_value
from .arguments import Callback
from .backends import EAGER, Backend
from .chain import make_event_record, solve_chain
from .events import Event, check_events
from .gradients.function import Outputs
from .held_values import held_by
from .methods import Method
from .options import make_options
from .planned import solve_planned
from .problem import Problem, make_problem
from .solution import DenseOutput, EventRecord, Solution, Stats
from .solver import Solved, solve_problem
from .step import StepSizeRule
from .system import Control, Cost, Dynamics, Feedback, State

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Inexact
    from typing import Annotated as Real

INFERENCE_TENSOR = (
    "the dynamics or an event use a tensor that was made under torch.inference_mode(). Outside of it autograd cannot"
    " save such a tensor, as derivatives need it (here for a gradient, a Jacobian or the time of an event), and nothing"
    " may change it in place: make it, or the module that holds it, outside of inference mode, or use its .clone()"
    " made there"
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def outside_of_compilation(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a caller's torch.compile out: the number of attempts, and whether they fail, depends on values."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            return torch.compiler.disable(function)(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        return function(*args, **kwargs)

    return call


def between_two_times(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Refuse calls of the form odeint(f, x0, ts, options={}), whose error in Python would not say what to do."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given: Sequence[Any] = args
        if "options" in kwargs:
            raise InputError(
                "solve has no options=: they are arguments of their own, such as dt=0.1 for a step_size of 0.1, or"
                " jump_ts for jump_t"
            )
        if len(given) == 3 and "t1" not in kwargs:
            times = f"; given {format_value(given[2])}" if isinstance(given[2], (Tensor, Sequence)) else ""
            raise InputError(
                f"solve takes two times, t0 and t1{times}: write solve(f, x0, t0, t1), and for x at times ts"
                " solve(f, x0, ts[0], ts[-1], save_at=ts).xs, which is (batch, T, ...)"
            )
        return function(*args, **kwargs)

    return call


def explain_torch(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Refuse what torch refuses with an error that would not say what to do in a solve.

    A Python `if` on values of several samples; and tensors of inference mode.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if "nference tensor" in str(error):
                raise InputError(INFERENCE_TENSOR) from error
            if "Boolean value of Tensor with more than one value" not in str(error):
                raise
            raise InputError(
                "a condition such as `if t > 0.5` has one answer per sample, and `if`, `while`, `and` or `or` need a"
                " single one: write torch.where(t[:, None] > 0.5, a, b)"
            ) from error

    return call


def outside_inference_mode(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run without autograd in place of inference mode, in which tensors do not count changes and have no Jacobian.

    Arguments that were made in it are copied.
    """

    def copied(value: Any) -> Any:
        made_there = isinstance(value, Tensor) and value.is_inference()
        return value.clone() if made_there else value

    def all_copied(value: Any) -> Any:
        return value if callable(value) else pytree.tree_map(copied, value)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not torch.is_inference_mode_enabled() or is_symbolic():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            named: Any = {name: all_copied(value) for name, value in kwargs.items()}
            return function(*map(all_copied, args), **named)  # pyright: ignore[reportCallIssue]

    return call


@between_two_times
@outside_of_compilation
@outside_inference_mode
@explain_torch
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
    events: Event | Sequence[Event] | None = None,
    jump_ts: Real[Tensor, "jumps"] | Real[Tensor, "batch jumps"] | Sequence[float] | None = None,
    method: str | Method = "dopri5",
    rtol: float | Tensor = 1e-3,
    atol: float | Tensor = 1e-6,
    dt: float | None = None,
    min_dt: float | None = None,
    max_dt: float | None = None,
    step: str = "sample",
    gradient: str = "discrete",
    compile: bool | str | Backend = False,
    max_steps: int = 10_000,
    checkpoint_every: int = 1,
    keep: str | int = "auto",
    step_rule: StepSizeRule | None = None,
    throw: bool = True,
    keep_last: bool = False,
    callback: Callback | None = None,
    save_steps: bool = False,
) -> Solution:
    """Solve dx/dt = f(t, x, theta) for a batch; theta is a control, constant or driven by dtheta/dt = g(t, x, theta).

    Each sample has its own time, step size and status, so its result does not depend on the other samples. The dynamics
    must treat samples separately, too: a mean over the batch, or BatchNorm in training mode, would mix samples at
    different times, and is refused. Where samples interact, use step="batch" or a fixed dt with one t0 and t1 for all.

    Args:
        dynamics: f(t, x, theta) -> dx/dt. `t` is (batch,), as in `t[:, None] * x`; `x` (batch, ...); `theta` as given.
        x0: The state at t0, (batch, ...), float32, float64 or complex; or a nested tuple, list or dict of such. Then
            functions receive, and the dynamics and `sol.x` return, the same nest; errors of all x have one norm.
        t0, t1: Numbers, or tensors () or (batch,). t1 < t0 solves backward in time; t1 = t0 returns x0.
        theta: The control at t0: None, a tensor (batch, ...), or a nested tuple, list or dict of such.
        feedback: g(t, x, theta) -> dtheta/dt, nested as theta. Default: theta is a constant of the flow.
        cost: A running cost l(t, x, theta) -> (batch,); its integral over [t0, t1] is `sol.cost`.
        save_at: Times at which to return the solution, shared (T,) or per sample (batch, T), from t0 towards t1. Pad
            samples with fewer times with nan: a time that is nan gives nan, and takes no part in gradients.
        dense: Keep dense output, so that `sol(t)` returns x at any time.
        events: One or several `Event`s: conditions that end a sample, are recorded, or reset its state. `sol.events`
            has their times and states, with gradients.
        jump_ts: Times at which the dynamics jump, (n,) or per sample (batch, n), padded with nan. Steps end there, and
            no step evaluates the dynamics on both sides.
        method: "euler", "midpoint", "heun", "bosh3", "rk4", "dopri5", "tsit5", "dopri8", or a `Tableau`. For stiff
            problems: "rodas5p" (the first to try), "kvaerno5", "rosenbrock23" (low accuracy); with a fixed dt also
            "implicit_euler" and "trapezoid". "auto": each step of each sample by tsit5, or by rodas5p where that
            is stiff. These need the Jacobian of each sample, by automatic differentiation or, if x0 is one tensor and
            there is no feedback, from a method `jacobian(t, x, theta)` of the dynamics that returns (batch, n, n).
        rtol, atol: The error that a step may make: atol + rtol * |x|, as a root mean square over a sample's elements.
            Numbers, or tensors that broadcast against x: (n,) per component, (batch, 1) per sample of x (batch, n); or
            a tuple, list or dict of these, nested as x0 is.
            x, theta (with feedback) and the cost have norms of their own, so a large control never hides an error of
            the state; theta and the cost use the smallest positive value that x has in a sample.
        dt: A fixed step size. Default: steps are chosen by their error.
        min_dt, max_dt: Limits of the steps chosen by their error; the last one may be shorter. A sample whose error
            needs a step below min_dt fails with `Status.MIN_DT`, rather than go on with a larger error. Use max_dt
            where the dynamics are at rest and then change for a short time: a long step would jump over it.
        step: "sample": each sample chooses its steps. "batch": one step size for all, chosen by their mean error.
        gradient: "discrete": equal to backpropagation through the accepted steps, with one state per step in memory
            beyond what `keep` allows.
            "adjoint": solves the augmented adjoint of the paper's Theorem 1 backward in time; memory does not grow with
            the number of steps, but the gradient is only as exact as that solve: use tight tolerances. It is refused
            where that solve does not come back to x0, since the flow contracts too strongly. Methods for stiff problems
            keep the dense output of the forward pass for it, and so its memory grows with the number of steps.
            "autograd": an ordinary graph; second derivatives, forward mode and torch.func work, but not through events,
            nor forward mode for times.
        compile: True: take the fastest backend that fits; `ncode.explain` says which. A small system whose samples are
            separate is solved in one compiled call ("kernel"). Otherwise the steps and their gradients are compiled
            once per shape ("inductor"), and on CUDA also recorded as CUDA graphs. Numbers and modules that the dynamics
            read are watched, and a change compiles anew. Also the name of a backend, or a `Backend` of your own.
        max_steps: The largest number of steps of one sample, rejected ones included; with events, between two of them.
        checkpoint_every: For "discrete": keep every k-th state and recompute those between.
        keep: For "discrete" in an eager solve: what forward keeps for backward. "states": one state per step, and
            backward evaluates each step again. "graph": the graph, which takes more memory and less time. "auto": the
            graph while the graphs of all solves that wait for backward take at most 256 MiB, by an estimate from the
            first evaluation; a solve that would take more drops its own and keeps states. A number of bytes sets
            another limit. Implicit methods, events, jumps, learned times, checkpoint_every > 1, parameters with hooks,
            and hooks on saved tensors (activation checkpointing) keep states.
        step_rule: The rule that chooses step sizes. Default: `PID()`.
        throw: Raise SolveError if a sample fails. Otherwise such samples are nan, and `sol.status` says why.
        keep_last: Keep the last accepted state of a sample that fails, in place of nan; `sol.t` is its time. It has the
            gradients of the steps up to there, with sol.t - t0 as a constant.
        callback: A function (t, x, accepted) that is called after each attempt of the forward pass, with copies: the
            times (batch,), the states, and which samples moved (the others were rejected, or are done).
        save_steps: Return the times of each sample's accepted steps as `sol.steps`.

    Whether samples interact is found out at t0, by an evaluation of half the batch that `sol.stats` does not count, and
    again when samples are first left out of the batch. An interaction that sets in elsewhere is not noticed.

    The dynamics are evaluated again during backward ("discrete", "adjoint"), where a graph was kept once for this
    check, and must be the same function then: draw random numbers outside of them. They must not change t, x or theta
    in place. Both are checked: tensors by their version counters, and whatever else was changed (a number,
    `tensor.data`, memory shared with NumPy) by the slopes at t0, which must be those of the forward pass up to
    rounding, or up to 5 % for dynamics that change what they read, as BatchNorm and spectral_norm do in training. Not
    noticed: a change that does not show at t0; and, with compile=True or a fixed dt on a GPU, a change of `tensor.data`
    or through NumPy (compiled: not of a number or module).

    >>> import math, torch, ncode
    >>> x0 = torch.ones(3, 1, dtype=torch.float64)
    >>> sol = ncode.solve(lambda t, x, theta: theta * x, x0, 0.0, 1.0, theta=-x0, rtol=1e-8, atol=1e-8)
    >>> bool((sol.x - math.exp(-1)).abs().max() < 1e-7)
    True
    >>> sol.status[0].name
    'OK'
    """
    options = make_options(
        method=method,
        rtol=rtol,
        atol=atol,
        dt=dt,
        min_dt=min_dt,
        max_dt=max_dt,
        step=step,
        gradient=gradient,
        compile=compile,
        max_steps=max_steps,
        checkpoint_every=checkpoint_every,
        keep=keep,
        step_rule=step_rule,
    ).for_export((t0, t1), 'give solve a fixed step, as in method="rk4", dt=0.1')
    problem = make_problem(
        dynamics,
        x0,
        t0,
        t1,
        options,
        theta=theta,
        feedback=feedback,
        cost=cost,
        save_at=save_at,
        jump_ts=jump_ts,
        dense=dense,
        keep_last=keep_last,
        callback=callback,
        save_steps=save_steps,
    )
    throw = check_flag("throw", throw)
    watched = check_events(events or ())
    if problem.batch == 0:
        return _empty(problem, theta, watched)
    if is_transforming() and options.gradient != "autograd":
        raise InputError(
            f'gradient="{options.gradient}" does not work inside torch.func transforms: use gradient="autograd" there'
        )
    if in_dual_level():
        _refuse_forward_mode(problem, watched)
    planned = problem.fixed_count is not None and options.backend is EAGER and callback is None
    if options.gradient == "autograd" and planned and not watched:
        solution = _make_solution(problem, theta, solve_planned(problem))
        if is_symbolic() or bool(solution.ok.all()):
            return solution
        # A sample failed: find out where, and keep its values out of the gradients of the others.
    solved, records = solve_chain(problem, watched) if watched else (solve_problem(problem), ())
    solution = _make_solution(problem, theta, solved, records)
    if throw and solved.failed != 0:
        _raise_failures(solution, problem)
    return solution


def _refuse_forward_mode(problem: Problem, events: Sequence[Event]) -> None:
    """Steps are chosen without tangents, and do not move with times and events."""
    system, theta = problem.system, problem.theta
    times = (problem.t0, problem.span, problem.ts, *theta[len(theta) - system.time_constants :])
    if not events and not any(is_dual(it) for it in times if it is not None):
        return
    raise InputError(
        "forward mode (torch.autograd.forward_ad, torch.func.jvp and jacfwd) has no derivatives with respect to t0, t1,"
        " save_at and jump_ts, nor through events: use backward() or, without events, torch.func.jacrev"
    )


def _make_solution(problem: Problem, theta: Control, solved: Solved, events: tuple[EventRecord, ...] = ()) -> Solution:
    outputs, stats, codes, _, times, _, steps, control, controls = solved
    system, thetas = problem.system, None
    count = 0 if problem.ts is None else problem.ts.shape[1]
    if system.driven:
        theta = system.nest(outputs.z[system.states : system.shown])
        thetas = system.nest(outputs.saved[system.states :]) if problem.ts is not None else None
    elif control is not None:
        theta = system.nest(control)
        thetas = system.nest(controls) if problem.ts is not None else None
    elif problem.ts is not None:
        thetas = system.nest([leaf[:, None].expand(-1, count, *leaf.shape[1:]) for leaf in problem.control])
    return Solution(
        x=system.nest_x(outputs.z),
        theta=theta,
        cost=outputs.z[system.shown] if system.cost is not None else None,
        ts=problem.ts_given.clone().expand(problem.batch, count) if problem.ts_given is not None else None,
        xs=system.nest_x(outputs.saved) if problem.ts is not None else None,
        thetas=thetas,
        stats=stats,
        codes=codes,
        t=_times_reached(problem, solved),
        steps=None if steps is None else _absolute_times(problem, steps),
        dense=DenseOutput(problem.t0, *times, outputs.states, outputs.powers) if times is not None else None,
        interval=(problem.t0.detach(), problem.t1.detach()) if problem.dense else None,
        events=events,
    )


def _times_reached(problem: Problem, solved: Solved) -> Tensor:
    t0, t1, span = problem.t0.detach(), problem.t1.detach(), problem.span.detach()
    if solved.failed == 0 and problem.interval is not None:
        return t1
    return torch.where(solved.reached == span, t1, t0 + solved.reached)


def _absolute_times(problem: Problem, steps: Tensor) -> Tensor:
    """Times that are counted from t0 as they are; the last is t1 itself, without rounding."""
    t0, t1, span = (it.detach()[:, None] for it in (problem.t0, problem.t1, problem.span))
    return torch.where(steps == span, t1, t0 + steps)


def _raise_failures(solution: Solution, problem: Problem) -> None:
    if is_symbolic() or bool(solution.ok.all()):
        return
    failed = (~solution.ok).nonzero().flatten().tolist()
    statuses = [Status(code) for code in solution.codes[failed].tolist()]
    where, dt = THROW, problem.options.dt
    if dt is not None and Status.MAX_STEPS in statuses:
        longest = float(problem.span.detach().abs().max())
        where = f"an interval of {longest:.6g} takes {longest / dt:.3g} steps of dt = {dt:g}; {THROW}"
    raise SolveError(failed, solution.t[failed].tolist(), statuses, solution, len(solution.codes), where)


def _joined(problem: Problem) -> State:
    """An empty z0 joined to theta and to the parameters of functions: a loss of no samples has a backward, too."""
    system = problem.system
    held = [it for function in system.functions for it in held_by(function)]
    joined = [*problem.theta, *(it for it in held if isinstance(it, Tensor) and it.is_leaf)]
    parts = [it.flatten()[:0].abs().sum().to(problem.t0.device) for it in joined if it.requires_grad]
    return tuple(sum(parts, leaf.clone()) for leaf in problem.z0)


def _empty(problem: Problem, theta: Control, events: Sequence[Event]) -> Solution:
    """The solution of a batch without samples."""
    none = torch.zeros(0, dtype=torch.int32, device=problem.t0.device)
    z, saved = _joined(problem), ()
    if problem.ts is not None:
        count, shown = problem.ts.shape[1], z[: problem.system.shown]
        saved = tuple(leaf[:, None].expand(-1, count, *leaf.shape[1:]) for leaf in shown)
    outputs, reached = Outputs(z, saved), problem.span.detach()
    steps = reached.new_zeros(0, 1) if problem.save_steps else None
    solved = Solved(outputs, Stats(none, none, none), none, reached, None, 0, steps)
    records = tuple(make_event_record(none, none.bool(), [], problem) for _ in events)
    return _make_solution(problem, theta, solved, records)
