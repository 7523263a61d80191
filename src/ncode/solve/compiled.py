"""Compiling the two things that take the time: an attempt, and pulling a gradient through a step.

Each is a pure function of tensors. It is traced once for a shape (its backward included), what it touches outside is
turned into arguments, and the graph is compiled by TorchInductor. On CUDA the compiled graph is recorded as a CUDA
graph as well, so that an attempt costs one launch. As with any traced function, Python values that the dynamics read
are fixed when they are first compiled; tensors are not.
"""

from __future__ import annotations

import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .field import Field
from .step import Step

LADDER = 4  # compiled batches shrink by this factor: every rung is a shape of its own
_LIMIT = 64  # graphs kept; the least recently used are forgotten
_kept: OrderedDict[Hashable, tuple[Any, Graph]] = OrderedDict()


class Graph:
    """A compiled function of (tensors, tensors from outside)."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Tensor], outside: Sequence[Tensor]):
        from torch.fx.experimental.proxy_tensor import make_fx

        self.spec: Any = None
        self.missing: list[bool] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            leaves, self.spec = pytree.tree_flatten(function(*inputs))
            self.missing = [leaf is None for leaf in leaves]
            # An output that is an input would tie the two together.
            return [leaf.clone() if any(leaf is i for i in inputs) else leaf for leaf in leaves if leaf is not None]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = make_fx(flat)(*tensors)
            _lift(graph, outside)
            with torch.no_grad():
                self.call: Any = torch._inductor.compile(graph, [*tensors, *outside])

    def __call__(self, tensors: Sequence[Tensor], outside: Sequence[Tensor]) -> Any:
        found = iter(self.call(*tensors, *outside))
        return pytree.tree_unflatten([None if none else next(found) for none in self.missing], self.spec)


def _lift(graph: torch.fx.GraphModule, outside: Sequence[Tensor]) -> None:
    """Turn tensors that the graph holds into arguments, in the order of `outside`."""
    first = next(node for node in graph.graph.nodes if node.op != "placeholder")
    with graph.graph.inserting_before(first):
        arguments = [graph.graph.placeholder(f"outside_{i}") for i in range(len(outside))]
    places = {id(tensor): i for i, tensor in enumerate(outside)}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            place = places.get(id(getattr(graph, node.target)))
            if place is not None:
                node.replace_all_uses_with(arguments[place])
                graph.graph.erase_node(node)
    graph.recompile()


def graph_of(
    key: Hashable, function: Callable[..., Any], tensors: Sequence[Tensor], outside: Sequence[Tensor]
) -> Graph:
    """The graph of a function for these shapes, compiled unless it was before."""
    key = (key, _shapes(tensors), _shapes(outside), _autocast(tensors[0].device))
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][1]
    graph = Graph(function, tensors, outside)
    _kept[key] = function, graph  # holding the function keeps the ids in its key from being used again
    while len(_kept) > _LIMIT:
        _kept.popitem(last=False)
    return graph


def rung(batch: int, size: int) -> int:
    """The smallest compiled batch that holds this many samples."""
    while -(-batch // LADDER) >= size and batch > LADDER:
        batch = -(-batch // LADDER)
    return batch


def identity(step: Step) -> Hashable:
    """Equal for steps that do the same."""
    field = step.field
    assert isinstance(field, Field)
    functions = tuple(_identity(function) for function in (field.dynamics, field.feedback, field.cost))
    return functions, str(field.spec), field.dtype, step.tableau.name, step.estimate, step.dense, step.slopes


def _identity(function: Any) -> Hashable:
    """Equal for functions that do the same with the same things: a fresh lambda is nothing new."""
    if isinstance(function, types.FunctionType):
        caught = tuple(cell.cell_contents for cell in function.__closure__ or ())
        inner = tuple(map(_identity, (*caught, *(function.__defaults__ or ()))))
        return function.__code__, inner, id(function.__globals__)
    if isinstance(function, types.MethodType):
        return function.__func__.__code__, _identity(function.__self__)
    if isinstance(function, nn.Module):
        return id(function), tuple(module.training for module in function.modules())
    if isinstance(function, Tensor):
        return "tensor"  # an argument of the graph: its shape is part of the key, its value is not
    if function is None or isinstance(function, (bool, int, float, str)):
        return type(function), function
    return id(function)


def _shapes(tensors: Sequence[Tensor]) -> Hashable:
    return tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors)


def _autocast(device: torch.device) -> Hashable:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in {device.type, "cpu"})
