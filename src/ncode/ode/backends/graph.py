"""A pure function of a tree of tensors, traced, compiled by TorchInductor, and on CUDA recorded as a CUDA graph.

This is the one place where trees become flat lists of tensors. Results that are inputs, unchanged, are not computed
but handed back; results that the next call takes as inputs stay in the memory of the CUDA graph.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..._torch_private import compile_graph, trace
from ...errors import InputError
from ..system import map_tensors, rebuild, tensors_of, without_gaps
from . import TensorFunction
from .layout import DECOMPOSITIONS, force_batch_last, to_batch_first, to_batch_last

TRACING = threading.RLock()
"""Held while something is traced or compiled: torch keeps the state of both for the whole process."""


class CompiledFunction:
    """A compiled function of (inputs, captures), for the shapes that it was made with.

    On CUDA, fields of the result that `function.carries` names live in the memory of the inputs and change with the
    next call; everything else belongs to the caller.
    """

    def __init__(self, function: TensorFunction, inputs: Any, captures: Sequence[Tensor]):
        self.function, self.inputs = function, map_tensors(lambda _: torch.empty(0), inputs)
        tensors = [without_gaps(to_batch_last(tensor)) for tensor in tensors_of(inputs)]
        self.strides = [tensor.stride() for tensor in tensors]
        self.on_cuda = is_recorded(tensors[0], function)
        self.result: Any = None
        self.sources: list[int] = []  # for each tensor of the result, its place among inputs and outputs
        self.packs = 0  # the last outputs are stacks of several tensors
        self.carried: dict[int, int] = {}  # output -> input of the next call
        self.recording: CudaGraph | None = None
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            decompositions = DECOMPOSITIONS if tensors[0].device.type == "cpu" else None
            # The dynamics see the layout that they see without compilation, so that their views are as valid.
            with _explain_choices():
                graph = trace(self._flat, [to_batch_first(tensor) for tensor in tensors], decompositions)
            _captures_to_arguments(graph, captures)
            force_batch_last(graph, len(tensors[0]))
            self.compiled = compile_graph(graph, [*tensors, *captures])

    def __call__(self, tensors: Sequence[Tensor], captures: Sequence[Tensor]) -> Any:
        """The result for the tensors of the inputs, in the order of `tensors_of`."""
        if self.on_cuda:
            if self.recording is None or not self.recording.fits(captures):
                self.recording = CudaGraph(self.compiled, tensors, self.strides, captures, self.carried)
            outputs = self.recording(tensors, captures)
        else:
            pairs = zip(tensors, self.strides, strict=True)
            laid = [it if it.stride() == strides else _with_strides(it, strides) for it, strides in pairs]
            outputs = self.compiled(*laid, *captures)
        plain = len(outputs) - self.packs
        values = [*tensors, *outputs[:plain], *(part for pack in outputs[plain:] for part in pack.unbind())]
        return rebuild(self.result, [values[source] for source in self.sources])

    def _flat(self, *tensors: Tensor) -> list[Tensor]:
        """The function on flat lists; decides on the way where each tensor of the result comes from."""
        inputs = rebuild(self.inputs, tensors)
        result = self.function(inputs)
        leaves, carried = tensors_of(result), self._carried_leaves(inputs, result)
        place = {id(tensor): index for index, tensor in enumerate(tensors)}
        self.result = map_tensors(lambda _: torch.empty(0), result)
        self.sources, self.carried = [0] * len(leaves), {}
        outputs: list[Tensor] = []
        seen: dict[int, int] = {}
        packs: dict[tuple[torch.dtype, torch.Size], list[int]] = {}
        for number, leaf in enumerate(leaves):
            target, source = carried.get(number), place.get(id(leaf))
            # A call writes over inputs that are carried, in the memory of a CUDA graph.
            kept = target == source if target is not None else not (self.on_cuda and source in carried.values())
            if source is not None and kept:
                self.sources[number] = source
            elif target is None and not self.on_cuda and id(leaf) in seen:
                self.sources[number] = seen[id(leaf)]
            elif target is None and self.on_cuda and leaf.dim() == 1:  # copied out together with others
                packs.setdefault((leaf.dtype, leaf.shape), []).append(number)
            else:
                if target is not None:
                    self.carried[len(outputs)] = target
                self.sources[number] = len(tensors) + len(outputs)
                outputs.append(leaf if source is None and id(leaf) not in seen else leaf.clone())
                seen.setdefault(id(leaf), self.sources[number])
        self.packs, end = len(packs), len(tensors) + len(outputs)
        for members in packs.values():
            for number in members:
                self.sources[number], end = end, end + 1
        return [*outputs, *(torch.stack([leaves[number] for number in members]) for members in packs.values())]

    def _carried_leaves(self, inputs: Any, result: Any) -> dict[int, int]:
        """For each tensor of the result that the next call takes as an input: which one."""
        place = {id(tensor): index for index, tensor in enumerate(tensors_of(inputs))}
        number, found = 0, {}
        for name in result._fields:
            leaves = _leaves(getattr(result, name))
            targets = _leaves(getattr(inputs, name)) if name in self.function.carries else [None] * len(leaves)
            for leaf, target in zip(leaves, targets, strict=True):
                if isinstance(leaf, Tensor):
                    if isinstance(target, Tensor):
                        found[number] = place[id(target)]
                    number += 1
        return found


class NoNumPy(TorchFunctionMode):
    """Raises the error of torch for values that are read, where NumPy reads them: no trace shows this."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            raise RuntimeError("the dynamics take the value out of a tracing tensor (NumPy)")
        return func(*args, **(kwargs or {}))


_READS = frozenset({Tensor.numpy, Tensor.__array__, Tensor.__dlpack__})


@contextmanager
def _explain_choices() -> Iterator[None]:
    """Explain the error of a function that reads a value, which a graph for all values does not have."""
    try:
        with NoNumPy():
            yield
    except RuntimeError as error:
        if "value out of a tracing tensor" not in str(error):
            raise
        raise InputError(
            "compiled dynamics cannot read the value of a tensor (float(t), x.item(), NumPy, `if` on a tensor), since"
            " it would stay what it was when they were compiled: write operations of torch, such as"
            " torch.where(t[:, None] > 0.5, a, b) for a choice, or use compile=False"
        ) from error


class CudaGraph:
    """A compiled function as a CUDA graph: one launch, on memory of its own.

    Parameters are read where they are, since optimisers change them in place. Everything else is copied in.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        tensors: Sequence[Tensor],
        strides: Sequence[tuple[int, ...]],
        captures: Sequence[Tensor],
        carried: Mapping[int, int],
    ):
        self.inputs = [_with_strides(tensor, stride) for tensor, stride in zip(tensors, strides, strict=True)]
        self.captures = [it if isinstance(it, nn.Parameter) else it.detach().clone() for it in captures]
        self.pointers = [tensor.data_ptr() for tensor in captures]
        self.bound: Sequence[Tensor] | None = None
        self.copied: list[tuple[Any, int]] = [(lambda: None, 0)] * len(self.inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # the first runs finish lazy initialisation, which cannot be recorded
            for _ in range(2):
                function(*self.inputs, *self.captures)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = list(function(*self.inputs, *self.captures))
            for output, i in carried.items():
                self.inputs[i].copy_(self.outputs[output])
        self.carried, self.targets = carried, set(carried.values())
        self.rest = [output for output in range(len(self.outputs)) if output not in carried]

    def fits(self, captures: Sequence[Tensor]) -> bool:
        """Whether parameters are still where they were."""
        return captures is self.bound or all(
            pointer == tensor.data_ptr()
            for tensor, pointer in zip(captures, self.pointers, strict=True)
            if isinstance(tensor, nn.Parameter)
        )

    def __call__(self, tensors: Sequence[Tensor], captures: Sequence[Tensor]) -> list[Tensor]:
        if captures is not self.bound:  # once per solve
            for mine, tensor in zip(self.captures, captures, strict=True):
                if mine is not tensor:
                    mine.copy_(tensor.detach())
            self.bound = captures
        for i, (mine, tensor) in enumerate(zip(self.inputs, tensors, strict=True)):
            source, version = self.copied[i]
            if mine is tensor or (source() is tensor and version == tensor._version):
                continue  # it is there already
            mine.copy_(tensor)
            # What the graph writes over must be copied in anew.
            self.copied[i] = (lambda: None, 0) if i in self.targets else (weakref.ref(tensor), tensor._version)
        self.graph.replay()
        found = [self.inputs[self.carried[i]] if i in self.carried else it for i, it in enumerate(self.outputs)]
        for output in self.rest:
            found[output] = found[output].clone()
        return found


def is_recorded(tensor: Tensor, function: TensorFunction) -> bool:
    """Whether a function of such tensors is recorded as a CUDA graph."""
    return tensor.is_cuda and function.recorded


def _leaves(tree: Any) -> list[Any]:
    """All leaves of a tree, those that are not tensors included."""
    return [leaf for item in tree for leaf in _leaves(item)] if isinstance(tree, tuple) else [tree]


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def _captures_to_arguments(graph: torch.fx.GraphModule, captures: Sequence[Tensor]) -> None:
    """Turn tensors that the graph holds into arguments, in the order of `captures`."""
    first = next(node for node in graph.graph.nodes if node.op != "placeholder")
    with graph.graph.inserting_before(first):
        arguments = [graph.graph.placeholder(f"capture_{i}") for i in range(len(captures))]
    places = {id(tensor): i for i, tensor in enumerate(captures)}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            place = places.get(id(getattr(graph, node.target)))
            if place is not None:
                node.replace_all_uses_with(arguments[place])
                graph.graph.erase_node(node)
    graph.recompile()
