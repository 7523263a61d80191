"""The adjoint gradient: backward solves for the state, its adjoint and the gradients of parameters, back in time.

In backward, the state is one flat tensor [y, a, gradient of t[0], gradients of parameters] with

    dy/dt = f,    da/dt = -(df/dy)^T a,    dg/dt = -(df/dp)^T a,

solved from each time of t to the one before. There, y is reset to what forward found, and a takes up its gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...ode.captures import find_captures
from .arguments import check_mapping, check_tensors, read_options, read_tolerance, warn
from .events import solve_until_event
from .implicit import AdjointField
from .methods import check_method, check_precision, kind_of
from .problem import Problem, make_solver
from .runge_kutta import Field, real_dtype
from .states import Layout, Leaves, Norm, make_field, make_norm, rms
from .watched import Watched, graph_leaves


def solve_with_adjoint(
    problem: Problem,
    event_fn: Any,
    rtol: Any,
    atol: Any,
    method: str | None,
    options: Any,
    parameters: Iterable[Tensor] | None,
) -> Leaves:
    """The states at the times of a problem, after the time of the event if there is one, with the adjoint gradient.

    The arguments are those of `odeint_adjoint` whose names begin with adjoint_, where None stands for the defaults.
    """
    field, layout, y, t = problem.field, problem.layout, problem.y0.detach(), problem.t.detach()
    rtol = problem.rtol if rtol is None else read_tolerance("adjoint_rtol", rtol, layout, y)
    atol = problem.atol if atol is None else read_tolerance("adjoint_atol", atol, layout, y)
    method = problem.method if method is None else check_method(method)
    check_precision(method, layout.narrow or y.dtype)
    wanted = dict(check_mapping("adjoint_options", options))
    norm = wanted.pop("norm", None)
    if options is None:
        read = {key: value for key, value in problem.options.items() if key != "norm"}
    else:
        read = read_options(method, kind_of(method), wanted, "adjoint_options")
    given = _given_parameters(problem.func, parameters, callable(norm))
    if given is None:
        given = find_parameters(problem, y)

    watched = Watched(field, problem.func, given, parameters is None) if torch.is_grad_enabled() else None
    forward = field if watched is None else watched
    with torch.no_grad():
        if event_fn is None:
            results = (problem.solver.solve(forward, y, t),)
        else:
            results = solve_until_event(problem.solver, forward, y, t, event_fn, layout)
    if watched is not None:
        watched.settle()
        if watched.unknown:
            known = set(map(id, given))
            given += tuple(tensor for tensor in find_parameters(problem, y) if id(tensor) not in known)

    shapes = Augmented(y, problem.t.requires_grad, given, layout.narrow)
    live = {"norm": adjoint_norm(norm, make_norm(problem.options.get("norm"), layout), layout)}
    read["norm"] = lambda parts: live["norm"](parts)
    tolerances = shapes.tolerance(rtol), shapes.tolerance(atol)
    solver = make_solver(problem.func, method, *tolerances, read, shapes, "_adjoint")
    plan = Plan(_with_tensors_of_now(problem), solver, shapes, _autocast_modes(y.device), event_fn is not None, watched)
    out = AdjointSolve.apply(plan, live, results, problem.y0, problem.t, *given)
    return out if plan.event else (out,)


def _given_parameters(func: Any, parameters: Iterable[Tensor] | None, own_norm: bool) -> Leaves | None:
    """The tensors that get a gradient: those given, or the parameters of a module; None if they are to be found."""
    if parameters is None:
        return tuple(p for p in func.parameters() if p.requires_grad) if isinstance(func, nn.Module) else None
    given = check_tensors("adjoint_params", parameters)
    trained = tuple(tensor for tensor in given if tensor.requires_grad)
    if own_norm and len(trained) < len(given):
        warn("adjoint_params has tensors that do not require a gradient: the adjoint norm does not see them")
    return trained


class Plan(NamedTuple):
    """What backward needs besides tensors."""

    field: Field
    solver: Any  # `Adaptive` or `Fixed`, for the augmented state
    shapes: Augmented
    autocast: Sequence[tuple[str, torch.dtype, bool]]  # modes of the forward pass
    event: bool
    watched: Watched | None


class Augmented:
    """The parts of the flat state of backward."""

    def __init__(self, y: Tensor, time: bool, parameters: Sequence[Tensor], narrow: torch.dtype | None):
        self.shape, self.n, self.time, self.narrow = y.shape, y.numel(), time, narrow
        self.shapes = [parameter.shape for parameter in parameters]
        self.sizes = [self.n, self.n, int(time), *(shape.numel() for shape in self.shapes)]

    def unflatten(self, z: Tensor) -> Leaves:
        """(gradient of time, state, adjoint, *gradients of parameters), in the order of torchdiffeq."""
        y, a, time, *grads = z.split(self.sizes)
        time = time.reshape(()) if self.time else z.new_zeros(())
        parts = (grad.reshape(shape) for grad, shape in zip(grads, self.shapes, strict=True))
        return (time, y.reshape(self.shape), a.reshape(self.shape), *parts)

    show = unflatten

    def tolerance(self, tolerance: float | Tensor) -> float | Tensor:
        """A tolerance of the state, for all parts: of its adjoint alike, and the smallest for the others."""
        if not isinstance(tolerance, Tensor):
            return tolerance
        flat = tolerance.reshape(-1)
        return torch.cat([flat, flat, flat.min().expand(sum(self.sizes[2:]))])


def adjoint_norm(norm: Any, state_norm: Norm, layout: Layout) -> Norm:
    """The norm of the parts of backward's state.

    Default: the largest of the norms of the parts; "seminorm" leaves out the gradients of parameters. Another norm gets
    all tensors, those of a tuple state one by one.
    """
    if callable(norm):
        if layout.shapes is None:
            return norm
        return lambda parts: norm((parts[0], *layout.unflatten(parts[1]), *layout.unflatten(parts[2]), *parts[3:]))
    if norm not in (None, "seminorm"):
        raise InputError(f'adjoint_options["norm"] must be a function or "seminorm"; given {norm!r}')

    def largest(parts: Leaves) -> Tensor:
        time, y, a, *grads = parts
        norms = [time.abs(), state_norm(y), state_norm(a)]
        if norm is None:
            norms += [rms(grad) for grad in grads if grad.numel()]
        return torch.stack([torch.as_tensor(it, dtype=torch.float64, device=y.device) for it in norms]).max()

    return largest


class AdjointSolve(torch.autograd.Function):
    """Gives a solution that was computed without a graph its adjoint gradient."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, options: dict[str, Any], results: Leaves, y0: Tensor, t: Tensor, *parameters: Tensor
    ) -> Any:
        ctx.plan, ctx.adjoint_options = plan, options  # torchdiffeq's tests read and replace the norm here
        ctx.save_for_backward(t, *results, *parameters)
        return results if plan.event else results[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        plan: Plan = ctx.plan
        if torch.is_grad_enabled():
            raise InputError(
                "odeint_adjoint has first derivatives only (create_graph=False): for second ones use odeint"
            )
        if plan.event:
            t, event_t, y, *parameters = ctx.saved_tensors
            times = torch.stack([t[0], event_t.to(t)])
        else:
            t, y, *parameters = ctx.saved_tensors
            times = t
        with ExitStack() as stack:
            for kind, dtype, enabled in plan.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            if plan.watched is not None:
                plan.watched.check(plan.field, y[0])
            by_state, by_time, by_parameters = solve_backward(
                plan.field, plan.solver, plan.shapes, times, y, grads[-1], parameters
            )
        if by_time is not None and plan.event:
            by_time = torch.cat([by_time[:1], torch.zeros_like(by_time[1:])])
        return None, None, None, by_state, by_time, *by_parameters


def solve_backward(
    f: Field, solver: Any, shapes: Augmented, t: Tensor, y: Tensor, grad: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """The gradients of y[0], of t and of parameters, from those of the states y, (T, ...)."""
    n, shape = shapes.n, shapes.shape
    y, grad = y.reshape(len(t), n), grad.reshape(len(t), n)
    rest = [parameter.new_zeros(size) for parameter, size in zip(parameters, shapes.sizes[3:], strict=True)]
    z = torch.cat([y[-1], grad[-1], y.new_zeros(shapes.sizes[2]), *rest])
    augmented = _augmented_field(f, shapes, z, parameters)
    by_time = torch.zeros_like(t) if shapes.time else None
    pairs = t.flip(0).unfold(0, 2, 1) if len(t) > 1 else ()
    for i, pair in zip(range(len(t) - 1, 0, -1), pairs, strict=True):
        if by_time is not None:
            slope = f(t[i].to(real_dtype(y)), y[i].view(shape))
            by_time[i] = (slope.reshape(-1).conj() * grad[i]).real.sum()
            z[2 * n] -= by_time[i]
        z = solver.final(augmented, z, pair)
        z[:n] = y[i - 1]
        z[n : 2 * n] += grad[i - 1]
    if by_time is not None:
        by_time[0] = z[2 * n].real
    _, _, a, *by_parameters = shapes.unflatten(z)
    grads = [(it if p.is_complex() else it.real).to(p.dtype) for it, p in zip(by_parameters, parameters, strict=True)]
    return a.to(y.dtype), by_time, grads


def _augmented_field(f: Field, shapes: Augmented, z: Tensor, parameters: Sequence[Tensor]) -> AdjointField:
    n, shape, time = shapes.n, shapes.shape, shapes.time
    zeros = [z.new_zeros(size) for size in shapes.sizes]

    def augmented(t: Tensor, z: Tensor) -> Tensor:
        with torch.enable_grad():
            y, a = z[:n].view(shape).detach().requires_grad_(), z[n : 2 * n].view(shape)
            t = t.detach().requires_grad_(time)
            slope = f(t, y)
            wanted = (y, t, *parameters) if time else (y, *parameters)
            # Evaluations may share a graph: a tensor that func holds may have been computed from parameters.
            grads: Sequence[Tensor | None] = [None] * len(wanted)
            if slope.requires_grad:
                grads = torch.autograd.grad(slope, wanted, -a, allow_unused=True, retain_graph=True)
        if not time:
            grads = (grads[0], None, *grads[1:])
        parts = [zero if grad is None else grad.reshape(-1) for grad, zero in zip(grads, zeros[1:], strict=True)]
        return torch.cat([slope.detach().reshape(-1), *parts])

    return AdjointField(augmented, f, z[:n].view(shape))


def _autocast_modes(device: torch.device) -> list[tuple[str, torch.dtype, bool]]:
    kinds = [kind for kind in {device.type, "cpu"} if torch.amp.is_autocast_available(kind)]
    return [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]


def _with_tensors_of_now(problem: Problem) -> Field:
    """The field with the tensors that stand in for a module's own during torch.func.functional_call."""
    func = problem.func
    if not isinstance(func, nn.Module) or all(isinstance(it, nn.Parameter) for it in func.parameters()):
        return problem.field
    tensors = {**dict(func.named_parameters()), **dict(func.named_buffers())}
    return make_field(lambda t, y: torch.func.functional_call(func, tensors, (t, y)), problem.layout)


def find_parameters(problem: Problem, y: Tensor) -> Leaves:
    """All tensors that func uses and that require a gradient, found by one evaluation."""
    t, field = problem.t[0].detach().to(real_dtype(y)), problem.field
    found = find_captures(lambda t, z, _: (field(t, z[0]),), (problem.func,), t, (y,), (), train=True).trained
    leaves = {id(tensor) for tensor in found if tensor.grad_fn is None}
    for tensor in found:
        if tensor.grad_fn is not None and any(id(leaf) in leaves for leaf in graph_leaves(tensor.grad_fn)):
            raise InputError(
                "func uses a tensor that was computed from parameters which func uses too: odeint_adjoint cannot tell"
                " their gradients apart; pass adjoint_params, or use odeint"
            )
    return found
