"""Compiling the two things that take the time: an attempt, and pulling a gradient through a step.

Each is a pure function of tensors. It is traced once for a shape (its backward included), what it touches outside is
turned into arguments, and the graph is compiled by TorchInductor. On CUDA the compiled graph is recorded as a CUDA
graph as well, so that an attempt costs one launch. As with any traced function, Python values that the dynamics read
are fixed when they are first compiled; tensors are not.
"""

from __future__ import annotations

import contextlib
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._torch_private import compile_graph, trace
from .ambient import surroundings
from .apart import Apart
from .field import Field, RightHandSide
from .layout import DECOMPOSITIONS, rearrange, settle, unsettled
from .step import Step

LADDER = 8  # compiled batches shrink by this factor: every rung is a shape of its own
_LIMIT = 64  # graphs kept; the least recently used are forgotten
_kept: OrderedDict[Hashable, tuple[Any, Graph]] = OrderedDict()


class Graph:
    """A compiled function of (tensors, tensors from outside) that returns a list of tensors, None among them.

    `back` says which outputs are the next call's inputs (output -> input). On CUDA such an output lives in that input's
    own memory and changes with the next call; all others are the caller's to keep. `record` asks for a CUDA graph.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        tensors: Sequence[Tensor],
        outside: Sequence[Tensor],
        back: Mapping[int, int],
        record: bool = True,
    ):
        self.missing: list[bool] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            leaves = function(*inputs)
            self.missing = [leaf is None for leaf in leaves]
            # An output that is an input would tie the two together.
            return [leaf.clone() if any(leaf is i for i in inputs) else leaf for leaf in leaves if leaf is not None]

        tensors = [dense(settle(tensor)) for tensor in tensors]
        self.strides = [tensor.stride() for tensor in tensors]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            table = DECOMPOSITIONS if tensors[0].device.type == "cpu" else None
            # The dynamics see what they see without compilation, so that their views are as valid.
            # What the stages of a step all compute of the control alone is computed once.
            graph = trace(flat, list(map(unsettled, tensors)), table)
            _lift(graph, outside)
            rearrange(graph, len(tensors[0]))
            self.call: Any = compile_graph(graph, [*tensors, *outside])

        kept = [number for number, none in enumerate(self.missing) if not none]
        self.back = {kept.index(output): i for output, i in back.items() if output in kept}
        self.record, self.recorded = record, None

    def __call__(self, tensors: Sequence[Tensor], outside: Sequence[Tensor]) -> list[Any]:
        if self.record and tensors[0].is_cuda:
            if self.recorded is None or not self.recorded.fits(outside):
                self.recorded = Recorded(self.call, tensors, self.strides, outside, self.back)
            found = iter(self.recorded(tensors, outside))
        else:
            laid = [
                tensor if tensor.stride() == stride else tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
                for tensor, stride in zip(tensors, self.strides, strict=True)
            ]
            found = iter(self.call(*laid, *outside))
        return [None if none else next(found) for none in self.missing]


class Recorded:
    """A compiled function as a CUDA graph: one launch, on memory of its own.

    Parameters are read where they are, since optimisers change them in place. Everything else is copied in.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        tensors: Sequence[Tensor],
        strides: Sequence[tuple[int, ...]],
        outside: Sequence[Tensor],
        back: Mapping[int, int],
    ):
        self.inputs = [
            tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
            for tensor, stride in zip(tensors, strides, strict=True)
        ]
        self.outside = [tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone() for tensor in outside]
        self.pointers = [tensor.data_ptr() for tensor in outside]
        self.bound: Sequence[Tensor] | None = None
        self.sources: list[tuple[Any, int]] = [(lambda: None, 0)] * len(self.inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # the first runs settle lazy initialisation, which cannot be recorded
            for _ in range(2):
                function(*self.inputs, *self.outside)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = list(function(*self.inputs, *self.outside))
            for output, i in back.items():
                self.inputs[i].copy_(self.outputs[output])
        self.back, self.fed = back, set(back.values())
        self.rest = [output for output in range(len(self.outputs)) if output not in back]

    def fits(self, outside: Sequence[Tensor]) -> bool:
        """Whether parameters are still where they were."""
        return outside is self.bound or all(
            pointer == tensor.data_ptr()
            for tensor, pointer in zip(outside, self.pointers, strict=True)
            if isinstance(tensor, nn.Parameter)
        )

    def __call__(self, tensors: Sequence[Tensor], outside: Sequence[Tensor]) -> list[Tensor]:
        if outside is not self.bound:  # once a solve
            for mine, tensor in zip(self.outside, outside, strict=True):
                if mine is not tensor:
                    mine.copy_(tensor.detach())
            self.bound = outside
        for i, (mine, tensor) in enumerate(zip(self.inputs, tensors, strict=True)):
            source, version = self.sources[i]
            if mine is tensor or (source() is tensor and version == tensor._version):
                continue  # it is there already
            mine.copy_(tensor)
            fed = i in self.fed  # the graph will write over it
            self.sources[i] = (lambda: None, 0) if fed else (weakref.ref(tensor), tensor._version)
        self.graph.replay()
        found = [self.inputs[self.back[i]] if i in self.back else output for i, output in enumerate(self.outputs)]
        for output in self.rest:
            found[output] = found[output].clone()
        return found


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
    key: Hashable,
    field: RightHandSide,
    function: Callable[..., Sequence[Any]],
    tensors: Sequence[Tensor],
    outside: Sequence[Tensor],
    back: Mapping[int, int],
    *,
    record: bool = True,
) -> Graph:
    """The graph of a function for these shapes, compiled unless it was before."""
    key = (key, _shapes(tensors), _shapes(outside, strides=True), surroundings(tensors[0].device))
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][1]
    graph = Graph(function, tensors, outside, back, record)
    _kept[key] = field, graph  # holding the field keeps the ids in its key from being used again
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


def _identity(function: Any, within: tuple[int, ...] = ()) -> Hashable:
    """Equal for functions that do the same with the same things: a fresh lambda is nothing new."""
    if id(function) in within:
        return "itself", within.index(id(function))
    inside = (*within, id(function))
    if isinstance(function, types.FunctionType):
        caught = []
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable that is bound later
                caught.append(cell.cell_contents)
        inner = tuple(_identity(value, inside) for value in (*caught, *(function.__defaults__ or ())))
        return function.__code__, inner, id(function.__globals__)
    if isinstance(function, Apart):
        return "apart", _identity(function.function, inside)
    if isinstance(function, types.MethodType):
        return function.__func__.__code__, _identity(function.__self__, inside)
    if isinstance(function, nn.Module):
        return id(function), tuple(module.training for module in function.modules())
    if isinstance(function, Tensor):
        return "tensor"  # an argument of the graph: its shape is part of the key, its value is not
    if function is None or isinstance(function, (bool, int, float, str)):
        return type(function), function
    return id(function)


def dense(tensor: Tensor) -> Tensor:
    """The tensor without gaps or shared memory, its dimensions in the order that they have in memory."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    inverse = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)


def take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some rows, laid out in memory as the tensor is: a layout may have been chosen because it compiles well."""
    some = tensor.index_select(0, rows)
    return some if tensor.is_contiguous() else torch.empty_like(dense(tensor[: len(some)])).copy_(some)


def _shapes(tensors: Sequence[Tensor], *, strides: bool = False) -> Hashable:
    return tuple((it.shape, it.stride() if strides else None, it.dtype, it.device) for it in tensors)
