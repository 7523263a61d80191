"""Captures: the outside tensors that the dynamics use, and how backward sees them.

The solver's own backward must pass gradients to all parameters, buffers and closure tensors that the dynamics use, and
nobody should have to list them. `find_captures` evaluates the system once under a function mode that sees every tensor
which enters a torch function from outside; a walk over the autograd graph adds what such a mode cannot see (scripted or
compiled code) and tells where the system's own graph ends. `isolate_captures` replaces captures that were computed from
one another, and `ForwardContext` restores the surroundings of the forward pass for backward.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch_private import pytree
from ..errors import InputError
from .system import State, System

_HOLDERS = (nn.Module, Tensor, tuple, list, dict)
_LONGEST_LIST = 1000  # a longer list is data


class Captures(NamedTuple):
    """The tensors that were found, and the slope that the evaluation returned."""

    slope: State
    trained: tuple[Tensor, ...]  # those that require a gradient
    others: tuple[Tensor, ...]
    outside: tuple[Tensor, ...]  # both, in the order in which the system uses them

    def may_hold_samples(self, batch: int) -> bool:
        """Whether a capture may have one row per sample, so that samples must keep their places in the batch.

        A weight that happens to have such a size is not distinguished: keeping the order is then only slower.
        """
        return any(batch in tensor.shape for tensor in (*self.trained, *self.others))


class _OutsideTensors(TorchFunctionMode):
    """Remembers tensors that enter a torch function without having come out of one."""

    def __init__(self, known: Iterable[Tensor]):
        super().__init__()
        self.inside = {id(tensor): tensor for tensor in known}  # holding them keeps their ids unique
        self.outside: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in _tensors_in((*args, *kwargs.values())):
            if id(value) not in self.inside:
                self.outside[id(value)] = value
        result = func(*args, **kwargs)
        for value in _tensors_in((result,)):
            if id(value) not in self.outside:
                self.inside[id(value)] = value
        return result


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif not (value is None or isinstance(value, (int, float, str))):  # most are; flattening them takes time
            yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def find_captures(
    evaluate: Callable[[Tensor, State, Sequence[Tensor]], State],
    functions: Sequence[Callable[..., Any] | None],
    t: Tensor,
    z: State,
    theta: Sequence[Tensor],
    *,
    train: bool,
) -> Captures:
    """Evaluate a system once and find its captures; `train` also finds those that require a gradient."""
    if not train:
        mode = _OutsideTensors((t, *z, *theta))
        with mode:
            slope = evaluate(t, z, theta)
        others = tuple(mode.outside.values())
        return Captures(slope, (), others, others)

    # Stand-ins for the arguments: what leads to them is not outside.
    z = tuple(leaf.detach().requires_grad_() for leaf in z)
    theta = tuple(leaf.detach().requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in theta)
    t = t.detach().requires_grad_()
    mode = _OutsideTensors((t, *z, *theta))
    with torch.enable_grad():
        start = torch.zeros((), requires_grad=True).exp().grad_fn
        with mode:
            slope = evaluate(t, z, theta)

    trained = [tensor for tensor in mode.outside.values() if tensor.requires_grad]
    known = {id(tensor) for tensor in (*trained, t, *z, *theta)}
    for tensor in (*_graph_leaves(slope, trained, start), *_reachable(functions)):
        if id(tensor) not in known:
            known.add(id(tensor))
            trained.append(tensor)
    others = [tensor for tensor in mode.outside.values() if not tensor.requires_grad]
    late = [tensor for tensor in trained if id(tensor) not in mode.outside]
    outside = (*mode.outside.values(), *late)
    return Captures(tuple(leaf.detach() for leaf in slope), tuple(trained), tuple(others), outside)


def _graph_leaves(slope: State, trained: Sequence[Tensor], start: Any) -> Iterator[Tensor]:
    """Leaf tensors that the slope's graph leads to, stopping at tensors that are known."""
    ends = {(tensor.grad_fn, tensor.output_nr) for tensor in trained if tensor.grad_fn is not None}
    born = start._sequence_nr()
    stack: list[tuple[Any, int]] = [(leaf.grad_fn, leaf.output_nr) for leaf in slope if leaf.grad_fn is not None]
    visited = set()
    while stack:
        node, index = stack.pop()
        if node is None or (node, index) in ends or node in visited:
            continue
        visited.add(node)
        if node.name().endswith("AccumulateGrad"):
            yield node.variable  # pyright: ignore[reportAttributeAccessIssue]
        elif node._sequence_nr() < born and not _is_autocast_copy(node, trained):
            raise InputError(
                f"the dynamics use a tensor that was computed outside of them ({node.name()}) in a way that solve"
                ' cannot follow: pass it as theta, or use gradient="autograd"'
            )
        else:
            stack.extend(node.next_functions)


def _is_autocast_copy(node: Any, trained: Sequence[Tensor]) -> bool:
    """Whether a node is autocast's copy of a known tensor, cached by an earlier evaluation."""
    ends = [after for after, _ in node.next_functions if after is not None]
    return node.name() == "ToCopyBackward0" and all(
        end.name().endswith("AccumulateGrad") and any(end.variable is tensor for tensor in trained) for end in ends
    )


def _reachable(functions: Sequence[Callable[..., Any] | None]) -> Iterator[Tensor]:
    """Tensors that functions could use: some are used at later times only, and one evaluation does not show them."""
    for function in functions:
        for value in _held_by(function):
            if isinstance(value, nn.Module):
                yield from (p for p in value.parameters() if p.requires_grad)
            elif isinstance(value, Tensor) and value.requires_grad:
                yield value


def _held_by(function: Any) -> Iterator[Any]:
    """What a function holds: itself, the object it is bound to, and what it captures or names."""
    stack, seen = [function], set()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, functools.partial):
            stack += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.MethodType):
            stack += [value.__self__, value.__func__]
        elif isinstance(value, (tuple, list, dict)):
            if len(value) <= _LONGEST_LIST:
                stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # a variable that is bound later
                    stack.append(cell.cell_contents)
            stack += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            # Following functions that are only named would lead to everything that a file defines.
            named = [value.__globals__.get(name) for name in value.__code__.co_names]
            stack += [it for it in named if isinstance(it, _HOLDERS)]
        elif value is function or value is getattr(function, "__self__", None):
            stack += [it for it in getattr(value, "__dict__", {}).values() if isinstance(it, _HOLDERS)]


class _Replace(TorchFunctionMode):
    """Replaces tensors that enter a torch function."""

    def __init__(self, stand_ins: Mapping[int, Tensor]):
        super().__init__()
        self.stand_ins = stand_ins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.replace((args, kwargs or {}))
        return func(*args, **kwargs)

    def replace(self, tree: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda tensor: self.stand_ins.get(id(tensor), tensor), tree)


@dataclass(frozen=True, eq=False)
class IsolatedFunction:
    """A function that uses stand-ins for some of its captures."""

    function: Callable[..., Any]
    tensors: Sequence[Tensor]  # holding them keeps their ids unique
    stand_ins: Mapping[int, Tensor]

    def __call__(self, t: Tensor, x: Tensor, theta: Any) -> Any:
        mode = _Replace(self.stand_ins)
        with mode:
            result = self.function(t, x, theta)
        return mode.replace(result)


def isolate_captures(system: System, captures: Captures) -> tuple[System, Captures]:
    """The system and its captures with stand-ins, without history, for captures computed from other captures.

    Backward differentiates each step with respect to all captures. Where one was computed from another (a code
    h = encoder(x) next to the encoder's weights, say), the path to the latter leads through the former and out of the
    step: gradients would be counted twice.
    """
    tensors = _computed_from_others(captures.trained)
    if not tensors:
        return system, captures
    stand_ins = {id(tensor): tensor.detach().requires_grad_() for tensor in tensors}

    def swap(them: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(stand_ins.get(id(tensor), tensor) for tensor in them)

    def isolate(function: Callable[..., Any] | None) -> Any:
        return None if function is None else IsolatedFunction(function, tensors, stand_ins)

    dynamics, feedback, cost = map(isolate, system.functions)
    isolated = replace(system, dynamics=dynamics, feedback=feedback, cost=cost)
    return isolated, captures._replace(trained=swap(captures.trained), outside=swap(captures.outside))


def _computed_from_others(trained: Sequence[Tensor]) -> list[Tensor]:
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

    Restores the autocast mode, and the tensors that replaced a module's own (torch.func.functional_call).
    """

    def __init__(self, system: System, device: torch.device):
        self.modes, self.replaced = _autocast(device), _replaced_tensors(system.functions)
        self.stack = ExitStack()

    def __enter__(self) -> None:
        self.stack = ExitStack()
        for place, name, tensor in self.replaced:
            self.stack.callback(place.__setitem__, name, place.get(name))
            place[name] = tensor
        for kind, dtype, enabled in self.modes:
            if enabled or torch.is_autocast_enabled(kind):
                self.stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))

    def __exit__(self, *error: object) -> None:
        self.stack.close()


def _replaced_tensors(functions: Sequence[Any]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Parameters and buffers of modules in which others stand in for their own: (dict, name, tensor) each."""
    holders = [it for function in functions for it in _held_by(function) if isinstance(it, nn.Module)]
    modules = {module for holder in holders for module in holder.modules()}
    own = [parameter for module in modules for parameter in module._parameters.values()]
    if all(parameter is None or isinstance(parameter, nn.Parameter) for parameter in own):
        return []
    places: list[dict[str, Any]] = [place for it in modules for place in (it._parameters, it._buffers)]
    return [(place, name, tensor) for place in places for name, tensor in place.items() if tensor is not None]


def torch_settings(device: torch.device) -> Hashable:
    """Settings under which the same operations compute something else: a traced graph keeps those it was traced in."""
    backends: Any = torch.backends
    products, cudnn, mkldnn = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    kinds = [getattr(backend, kind, None) for backend in (cudnn, mkldnn) for kind in ("matmul", "conv", "rnn")]
    return (
        _autocast(device),
        tuple(map(_precision, (backends, products, cudnn, mkldnn, *kinds))),
        (products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, mkldnn.enabled),
        torch.get_deterministic_debug_mode(),
    )


def _precision(backend: Any) -> Hashable:
    # allow_tf32 says the same, but raises where the setting was made by its newer name.
    return getattr(backend, "fp32_precision", None) or getattr(backend, "allow_tf32", None)


def _autocast(device: torch.device) -> tuple[tuple[str, torch.dtype, bool], ...]:
    kinds = sorted({device.type, "cpu"})
    return tuple((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds)


@contextmanager
def without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Keep the gradients of single steps from hooks and `retain_grad`: both must see the sum of all, once."""
    hooked = [(hooks, dict(hooks)) for tensor in tensors if (hooks := tensor._backward_hooks)]
    retained = [(tensor, tensor.grad) for tensor in tensors if tensor.retains_grad]
    for hooks, _ in hooked:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, copy in hooked:
            hooks.update(copy)
        for tensor, grad in retained:
            tensor.grad = grad
