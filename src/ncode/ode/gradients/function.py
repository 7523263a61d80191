"""Where a solve meets autograd: one autograd.Function for the "discrete" and the "adjoint" gradient.

Backward evaluates the dynamics again, and they must be the function of the forward pass: `ForwardContext` restores its
surroundings and watches its captures, and `Pullback.check_function` compares the slopes at t0.
`isolate_captures` and `for_backward` let the dynamics use stand-ins for captures, without a write to a module or a hook
that other threads could see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._torch_private import backward_keeps_graph, has_other_ranks
from ...errors import InputError, Status
from ..arguments import all_finite
from ..backends import WholePullback
from ..captures import Captures, IsolatedFunction, RefuseReads, autocast_modes
from ..held_values import held_by
from ..independence import Positions
from ..problem import Problem, SampleInputs
from ..solution import Stats
from ..system import State, System, tensors_of, version_of, where
from .first_order import forbid_double_backward

CHANGED = (
    "a tensor of shape {shape} that the dynamics use was changed in place between solve and backward (a buffer, say):"
    " the gradient would be that of another function. Call backward before the change, or give the dynamics a copy"
)
OTHER_FUNCTION = (
    "the dynamics are not the function that they were when solve called them: at t0 they returned other values in"
    " backward. Random numbers (dropout), train() or eval() in between, or a number that was changed? Draw random"
    ' numbers outside of the dynamics, call backward before the change, or use gradient="autograd"'
)
_SECOND_DERIVATIVE = 'a second derivative of a solve was asked for, and only gradient="autograd" has one'

Leaves = tuple[Any, ...]  # tensors, or None where there is no gradient


class Outputs(NamedTuple):
    """What a solve returns that gradients can come from (or those gradients)."""

    z: Leaves  # at t1
    saved: Leaves  # x and the driven control at the saved times
    states: Leaves = ()  # of dense output: states where steps begin, (n, batch, ...)
    powers: Leaves = ()  # of dense output: coefficients, (n, batch, powers, ...)


class InputGradients(NamedTuple):
    """Gradients of all inputs of a solve, None where there is none."""

    z0: Leaves
    inputs: SampleInputs
    captures: Leaves


def isolate_captures(system: System, captures: Captures) -> tuple[System, Captures]:
    """The system and its captures with stand-ins, without history, for captures computed from other captures.

    Backward differentiates each step with respect to all captures. Where one was computed from another (a code
    h = encoder(x) next to the encoder's weights, say), the path to the latter leads through the former and out of the
    step: gradients would be counted twice.
    """
    tensors = computed_from_others(captures.trained)
    return _with_stand_ins(system, captures, {id(it): (it, it.detach().requires_grad_()) for it in tensors})


def for_backward(system: System, captures: Captures, context: ForwardContext) -> tuple[System, Captures]:
    """The system and its captures as one backward pass uses them.

    Captures with hooks, or whose gradient is retained, have stand-ins: both must see the sum of all steps, once. So
    have the tensors of modules that others had replaced in the forward pass (torch.func.functional_call).
    """
    stand_ins = _for_hooked(captures.trained)
    for place, name, tensor in context.replaced:
        own = place.get(name)
        if own is not None and own is not tensor:
            stand_ins[id(own)] = own, stand_ins.get(id(tensor), (tensor, tensor))[1]
    return _with_stand_ins(system, captures, stand_ins)


def isolate_hooked(
    function: Callable[..., Any], trained: Sequence[Tensor]
) -> tuple[Callable[..., Any], Sequence[Tensor]]:
    """A function and its captures, with stand-ins for those that have hooks, as in `for_backward`."""
    stand_ins = _for_hooked(trained)
    if not stand_ins:
        return function, trained
    return IsolatedFunction(function, stand_ins), [stand_ins.get(id(it), (it, it))[1] for it in trained]


def _for_hooked(trained: Sequence[Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    return {id(it): (it, it.detach().requires_grad_()) for it in trained if has_hooks(it)}


def has_hooks(tensor: Tensor) -> bool:
    """Whether something is to see the gradient of a tensor."""
    return bool(tensor._backward_hooks) or tensor.retains_grad


def _with_stand_ins(
    system: System, captures: Captures, stand_ins: Mapping[int, tuple[Tensor, Tensor]]
) -> tuple[System, Captures]:
    """Replace tensors, given with their stand-ins by id, in functions and captures."""
    if not stand_ins:
        return system, captures

    def swap(them: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(stand_ins.get(id(tensor), (tensor, tensor))[1] for tensor in them)

    def isolate(function: Any) -> Any:
        if function is None:
            return None
        if not isinstance(function, IsolatedFunction):
            return IsolatedFunction(function, dict(stand_ins))
        older = {key: (it, swap([replaced])[0]) for key, (it, replaced) in function.stand_ins.items()}
        return IsolatedFunction(function.function, {**stand_ins, **older})

    dynamics, feedback, cost = map(isolate, system.functions)
    isolated = replace(system, dynamics=dynamics, feedback=feedback, cost=cost)
    return isolated, captures._replace(trained=swap(captures.trained), outside=swap(captures.outside))


def computed_from_others(trained: Sequence[Tensor]) -> list[Tensor]:
    """Captures that were computed from other captures."""
    leaves = {id(tensor) for tensor in trained if tensor.grad_fn is None}
    computed = {tensor.grad_fn for tensor in trained if tensor.grad_fn is not None}
    return [it for it in trained if it.grad_fn is not None and _history_holds(it.grad_fn, leaves, computed)]


def _history_holds(start: torch.autograd.graph.Node, leaves: set[int], computed: set[Any]) -> bool:
    """Whether the history of a tensor holds one of these leaves or nodes."""
    stack, visited = [node for node, _ in start.next_functions], set()
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node in computed or id(getattr(node, "variable", None)) in leaves:
            return True
        stack.extend(after for after, _ in node.next_functions)
    return False


class ForwardContext:
    """The surroundings of the forward pass, as a context in which backward evaluates the dynamics again.

    Restores the autocast mode. Remembers the tensors that replaced a module's own (torch.func.functional_call), and the
    versions of captures; those that the dynamics change themselves, as BatchNorm does, are not watched. What functions
    hold, and read at later times than t0 if at all, may change unless backward reads it.
    """

    def __init__(self, system: System, device: torch.device, captures: Captures):
        self.modes, self.replaced = autocast_modes(device), _replaced_tensors(system.functions)
        pairs = zip(captures.others, captures.versions, strict=True)
        self.watched = [(it, version) for it, version in pairs if version_of(it) == version]
        self.varies = len(self.watched) < len(captures.others)  # whether the dynamics change what they read
        self.late = [(it, version) for it, version in captures.late if version_of(it) == version]
        self.stack = ExitStack()

    @contextmanager
    def refuse_changes(self) -> Iterator[None]:
        """Refuse captures that were changed since, and to read what else was."""
        _refuse_changes(self.watched)
        changed = [it for it, version in self.late if version_of(it) != version]
        if not changed:
            yield
            return
        with RefuseReads(changed, _changed):
            try:
                yield
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):
                    raise
                raise _changed(changed[0]) from error  # a kept graph had saved it

    def __enter__(self) -> None:
        self.stack = ExitStack()
        for kind, dtype, enabled in self.modes:
            if enabled or torch.is_autocast_enabled(kind):
                self.stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))

    def __exit__(self, *error: object) -> None:
        self.stack.close()


def check_versions(captures: Captures) -> None:
    """Refuse captures that were changed since they were found."""
    _refuse_changes(zip(captures.others, captures.versions, strict=True))


def _refuse_changes(versions: Iterable[tuple[Tensor, int]]) -> None:
    for tensor, version in versions:
        if version_of(tensor) != version:
            raise _changed(tensor)


def _changed(tensor: Tensor) -> InputError:
    return InputError(CHANGED.format(shape=tuple(tensor.shape)))


def _replaced_tensors(functions: Sequence[Any]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Parameters and buffers of modules in which others stand in for their own: (dict, name, tensor) each."""
    modules = {it for function in functions for it in held_by(function) if isinstance(it, nn.Module)}
    own = [parameter for module in modules for parameter in module._parameters.values()]
    if all(parameter is None or isinstance(parameter, nn.Parameter) for parameter in own):
        return []
    places: list[dict[str, Any]] = [place for it in modules for place in (it._parameters, it._buffers)]
    return [(place, name, tensor) for place in places for name, tensor in place.items() if tensor is not None]


def deviates(found: State, expected: State) -> Tensor:
    """Whether slopes differ by more than the rounding of a few operations."""
    pairs = [(k, e) for k, e in zip(found, expected, strict=True) if e.numel()]
    differ = [((k - e).abs() > 1e2 * torch.finfo(e.dtype).eps * e.abs().amax()).any() for k, e in pairs]
    return torch.stack(differ).any()


def harmless_state(problem: Problem, ok: Tensor) -> State:
    """z0 with other states for samples that failed, at which the dynamics are finite, where such are found.

    In a batch that must stay whole they are evaluated too, and an infinite slope would spoil all shared gradients, even
    where it is multiplied by 0.
    """
    t, z, theta = problem.start
    bound, first = problem.system.bind(theta), int(ok.int().argmax())
    for others in ([torch.zeros_like(leaf) for leaf in z], [leaf[first].expand_as(leaf) for leaf in z]):
        filled = where(ok, z, others)
        with torch.no_grad():
            if all_finite(bound(problem.system.clock(theta, t), filled)):
                return filled
    return z


class Ends(NamedTuple):
    """How the samples of a forward pass ended, each (batch,)."""

    status: Tensor
    t: Tensor  # the time that was reached, counted from t0
    has_result: Tensor  # whether the state there is part of the solution
    moved: Tensor  # whether the sample took a step

    @property
    def ok(self) -> Tensor:
        """Which samples reached t1."""
        return self.status == Status.OK

    @property
    def replayed(self) -> Tensor:
        """Which samples have steps that backward goes through: at the start of the others the slope may be infinite."""
        return self.has_result & (self.ok | self.moved)


@dataclass(eq=False)
class Pullback(ABC):
    """What a forward pass leaves behind for backward. It holds no output, or its memory would never be freed."""

    problem: Problem
    captures: Captures
    ends: Ends
    stats: Stats
    context: ForwardContext
    positions: Positions

    def may_reorder(self) -> bool:
        """Whether samples may change their places, as found out by an evaluation at t0 if need be."""
        with self.context:
            return self.positions.are_free(self.problem.system, *self.problem.start, self.captures.slope)

    def check_function(self) -> None:
        """Refuse dynamics that are not those of the forward pass, by one evaluation that repeats its first.

        Slopes must agree up to rounding, by themselves and as a change of z along the interval; for dynamics that
        change what they read (batch statistics, spectral_norm), up to 5 %.
        """
        t, z, theta = self.problem.start
        with torch.enable_grad(), self.context:
            slope = self.problem.system.bind(theta)(
                self.problem.system.clock(theta, t), tuple(leaf.requires_grad_() for leaf in z)
            )
        length = self.problem.span.detach().abs().amax()
        for k, e, leaf in zip(slope, self.captures.slope, z, strict=True):
            if not e.numel():
                continue
            eps = torch.finfo(e.dtype).eps
            error, size = (k.detach() - e).abs().amax(), torch.maximum(k.detach().abs().amax(), e.abs().amax())
            other = error > (0.05 if self.context.varies else 1e3 * eps) * size
            if bool(other & (error * length > 1e2 * eps * leaf.detach().abs().amax())):
                raise InputError(OTHER_FUNCTION)

    def replacement(self, ok: Tensor) -> State:
        """States for samples that failed."""
        with self.context:
            return harmless_state(self.problem, ok)

    def __call__(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        """Gradients for z0, for those of the inputs that `needed` marks with True, and for the trained captures."""
        system, captures = for_backward(self.problem.system, self.captures, self.context)
        safe = self
        if captures is not self.captures or system is not self.problem.system:
            safe = replace(self, problem=replace(self.problem, system=system), captures=captures)
        with torch.no_grad(), self.context.refuse_changes():
            return safe.pull(needed, grads)

    @abstractmethod
    def pull(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        """The same, once captures are safe to differentiate."""


def inner_product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The inner product of two states, (batch,)."""
    parts = [(a.conj() * b).real.reshape(a.shape[0], -1).sum(1) for a, b in zip(left, right, strict=True)]
    return sum(parts[1:], parts[0]).double()


class _SolveFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pullback: Pullback | WholePullback, outputs: Outputs, *inputs: Tensor) -> Any:
        problem, ctx.pullback = pullback.problem, pullback
        ctx.lengths, ctx.counts = [len(part) for part in outputs], (len(problem.z0), len(problem.theta))
        ctx.save_for_backward(*inputs)  # so that torch notices if one is changed before backward
        ctx.set_materialize_grads(False)
        return tuple(leaf for part in outputs for leaf in part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        rest = iter(grads)
        parts = Outputs(*(tuple(next(rest) for _ in range(length)) for length in ctx.lengths))
        states, controls = ctx.counts
        needs = ctx.needs_input_grad[2:]
        theta = slice(states, states + controls)
        saved = ctx.saved_tensors  # read once: under activation checkpointing they are recomputed at each reading
        pullback: Pullback | WholePullback = ctx.pullback
        trained, has_ts = pullback.captures.trained, pullback.problem.ts is not None
        span, *ts = needs[theta.stop : theta.stop + 1 + has_ts]
        needed = SampleInputs(tuple(needs[theta]), span, ts[0] if has_ts else None)
        if not backward_keeps_graph():
            ctx.pullback = None  # as torch frees saved tensors, though the solution may live on
        found = pullback(needed, parts)
        times = (found.inputs.span, *([found.inputs.ts] if has_ts else []))
        shared = found.captures
        if has_other_ranks():  # another rank may use what no sample of this one did, and they must exchange the same
            shared = [torch.zeros_like(it) if grad is None else grad for it, grad in zip(trained, shared, strict=True)]
        got = [*found.z0, *found.inputs.theta, *times, *shared]
        wanted = [*needs[: theta.stop + 1 + has_ts], *[True] * len(shared)]
        got = [grad if need else None for grad, need in zip(got, wanted, strict=True)]
        return None, None, *forbid_double_backward(_SECOND_DERIVATIVE, (*saved, *grads), got)


def connect(pullback: Pullback | WholePullback, trained: Sequence[Tensor], outputs: Outputs) -> Outputs:
    """The outputs as differentiable functions of all inputs of the solve.

    `trained` are the captures that the pullback, which may have stand-ins for them, returns gradients for.
    """
    problem = pullback.problem
    flat = iter(_SolveFunction.apply(pullback, outputs, *problem.z0, *tensors_of(problem.inputs), *trained))
    return Outputs(*(tuple(next(flat) for _ in part) for part in outputs))
