"""Find what a field touches besides its arguments: parameters, buffers and tensors caught in closures.

The solver's own backward must hand gradients to all of them, and nobody should have to list them. One evaluation under
a function mode sees every tensor that enters a torch function from outside; a walk over the autograd graph adds what
such a mode cannot see (scripted or compiled code) and tells where the field's own graph ends.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch_private import pytree
from ..errors import InputError
from .field import State

_HOLDERS = (nn.Module, Tensor, tuple, list, dict)
_MANY = 1000  # a longer list is data

Replaced = tuple[dict[str, Any], str, Tensor]  # where a module keeps a tensor, and the tensor


class Touched(NamedTuple):
    """What was found, and the slope that the evaluation gave on the way."""

    slope: State
    trained: tuple[Tensor, ...]  # those that want a gradient
    others: tuple[Tensor, ...]
    outside: tuple[Tensor, ...]  # both, in the order in which the field uses them, whoever wants a gradient

    def has_rows(self, batch: int) -> bool:
        """Whether something caught in a closure may belong to samples, so that samples must stay where they are."""
        # A weight that happens to have such a size is not told apart: keeping samples in place is then only slower.
        return any(batch in tensor.shape for tensor in (*self.trained, *self.others))


class _Seen(TorchFunctionMode):
    """Remembers tensors that enter a torch function without having come out of one."""

    def __init__(self, known: Iterable[Tensor]):
        super().__init__()
        self.inside = {id(tensor): tensor for tensor in known}  # holding them keeps their ids theirs
        self.outside: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in _tensors((*args, *kwargs.values())):
            if id(value) not in self.inside:
                self.outside[id(value)] = value
        result = func(*args, **kwargs)
        for value in _tensors((result,)):
            if id(value) not in self.outside:
                self.inside[id(value)] = value
        return result


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Tensors among values and in what they hold: most are tensors or numbers, and need not be taken apart."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif not (value is None or isinstance(value, (int, float, str))):
            yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def touch(
    field: Callable[[Tensor, State, Sequence[Tensor]], State],
    functions: Sequence[Callable[..., Any] | None],
    t: Tensor,
    z: State,
    theta: Sequence[Tensor],
    *,
    train: bool,
) -> Touched:
    """Evaluate the field once and tell what it touched; `train` asks for what wants a gradient."""
    if not train:
        seen = _Seen((t, *z, *theta))
        with seen:
            slope = field(t, z, theta)
        others = tuple(seen.outside.values())
        return Touched(slope, (), others, others)

    # Stand-ins for the arguments: what leads to them is not outside.
    z = tuple(leaf.detach().requires_grad_() for leaf in z)
    theta = tuple(leaf.detach().requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in theta)
    t = t.detach().requires_grad_()
    seen = _Seen((t, *z, *theta))
    with torch.enable_grad():
        start = torch.zeros((), requires_grad=True).exp().grad_fn
        with seen:
            slope = field(t, z, theta)

    trained = [tensor for tensor in seen.outside.values() if tensor.requires_grad]
    known = {id(tensor) for tensor in (*trained, t, *z, *theta)}
    for tensor in (*_leaves(slope, trained, start), *_within_reach(functions)):
        if id(tensor) not in known:
            known.add(id(tensor))
            trained.append(tensor)
    others = [tensor for tensor in seen.outside.values() if not tensor.requires_grad]
    late = [tensor for tensor in trained if id(tensor) not in seen.outside]
    outside = (*seen.outside.values(), *late)
    return Touched(tuple(leaf.detach() for leaf in slope), tuple(trained), tuple(others), outside)


def _leaves(slope: State, trained: Sequence[Tensor], start: Any) -> Iterator[Tensor]:
    """Leaf tensors that the slope's graph leads to, stopping at tensors already known."""
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
        elif node._sequence_nr() < born and not _cast(node, trained):
            raise InputError(
                f"the dynamics use a tensor that was computed outside of them ({node.name()}) in a way that solve"
                ' cannot follow: pass it as theta, or use gradient="autograd"'
            )
        else:
            stack.extend(node.next_functions)


def _cast(node: Any, trained: Sequence[Tensor]) -> bool:
    """Whether a node is autocast's copy of a known tensor, kept from an earlier evaluation under the same autocast."""
    ends = [after for after, _ in node.next_functions if after is not None]
    return node.name() == "ToCopyBackward0" and all(
        end.name().endswith("AccumulateGrad") and any(end.variable is tensor for tensor in trained) for end in ends
    )


def _within_reach(functions: Sequence[Callable[..., Any] | None]) -> Iterator[Tensor]:
    """Tensors that functions could use: some are used only at later times, and one evaluation does not show them."""
    for function in functions:
        for value in _caught(function):
            if isinstance(value, nn.Module):
                yield from (p for p in value.parameters() if p.requires_grad)
            elif isinstance(value, Tensor) and value.requires_grad:
                yield value


def replaced(functions: Sequence[Callable[..., Any] | None]) -> list[Replaced]:
    """Parameters and buffers of modules in which others stand in for their own, as in torch.func.functional_call."""
    holders = [it for function in functions for it in _caught(function) if isinstance(it, nn.Module)]
    modules = {module for holder in holders for module in holder.modules()}
    own = [parameter for module in modules for parameter in module._parameters.values()]
    if all(parameter is None or isinstance(parameter, nn.Parameter) for parameter in own):
        return []
    places: list[dict[str, Any]] = [place for it in modules for place in (it._parameters, it._buffers)]
    return [(place, name, tensor) for place in places for name, tensor in place.items() if tensor is not None]


def _caught(function: Any) -> Iterator[Any]:
    """What a function holds: itself, the object it is bound to, and what it catches or names."""
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
            if len(value) <= _MANY:
                stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # a variable that is bound later
                    stack.append(cell.cell_contents)
            stack += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            # Functions that are only named lead too far: to all that a file defines.
            named = [value.__globals__.get(name) for name in value.__code__.co_names]
            stack += [it for it in named if isinstance(it, _HOLDERS)]
        elif value is function or value is getattr(function, "__self__", None):
            stack += [it for it in getattr(value, "__dict__", {}).values() if isinstance(it, _HOLDERS)]
