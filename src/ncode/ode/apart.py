"""Functions that catch a tensor together with what it was computed from.

Backward differentiates each step with respect to all tensors that the dynamics touch. Where one of them was computed
from another (a code h = encoder(x) next to the encoder's weights, say), the way to the latter leads through the former
and out of the step: gradients would be counted twice. So backward gives the dynamics a stand-in for h, which has no
history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._torch_private import pytree
from .field import Field
from .touched import Touched


class _Swap(TorchFunctionMode):
    """Replaces tensors that enter a torch function."""

    def __init__(self, stand_ins: Mapping[int, Tensor]):
        super().__init__()
        self.stand_ins = stand_ins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.swap((args, kwargs or {}))
        return func(*args, **kwargs)

    def swap(self, tree: Any) -> Any:
        """The same tree with the stand-ins."""
        return pytree.tree_map_only(Tensor, lambda tensor: self.stand_ins.get(id(tensor), tensor), tree)


@dataclass(frozen=True, eq=False)
class Apart:
    """A function that uses stand-ins where it catches certain tensors."""

    function: Callable[..., Any]
    tensors: Sequence[Tensor]  # holding them keeps their ids theirs
    stand_ins: Mapping[int, Tensor]

    def __call__(self, t: Tensor, x: Tensor, theta: Any) -> Any:
        swap = _Swap(self.stand_ins)
        with swap:
            result = self.function(t, x, theta)
        return swap.swap(result)


def apart(field: Field, touched: Touched) -> tuple[Field, Touched]:
    """The field, and what it touches, without tensors that lead to one another."""
    tensors = _leading(touched.trained)
    if not tensors:
        return field, touched
    stand_ins = {id(tensor): tensor.detach().requires_grad_() for tensor in tensors}

    def swap(them: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(stand_ins.get(id(tensor), tensor) for tensor in them)

    def wrap(function: Callable[..., Any] | None) -> Any:
        return None if function is None else Apart(function, tensors, stand_ins)

    alone = replace(field, dynamics=wrap(field.dynamics), feedback=wrap(field.feedback), cost=wrap(field.cost))
    return alone, touched._replace(trained=swap(touched.trained), outside=swap(touched.outside))


def _leading(trained: Sequence[Tensor]) -> list[Tensor]:
    """Those that were computed, in part, from another one."""
    leaves = {id(tensor) for tensor in trained if tensor.grad_fn is None}
    computed = {tensor.grad_fn for tensor in trained if tensor.grad_fn is not None}
    return [tensor for tensor in trained if tensor.grad_fn is not None and _leads(tensor.grad_fn, leaves, computed)]


def _leads(start: torch.autograd.graph.Node, leaves: set[int], computed: set[Any]) -> bool:
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
