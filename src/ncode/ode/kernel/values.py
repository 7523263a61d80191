"""What lowering knows of the values of a graph: their kinds, and facts about nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from .ir import Buffer, View
from .operations import LINEAR

SAMPLE = 2**32  # the stride that marks the batch dimension; a sample has fewer elements


@dataclass(frozen=True, eq=False)
class Lane:
    """A tensor with one row per sample. `layout` is a tensor without memory: its strides are those in the buffer."""

    buffer: Buffer
    layout: Tensor

    @property
    def batch(self) -> int:
        """Which dimension is the batch."""
        sizes, strides = self.layout.shape, self.layout.stride()
        return next(d for d in range(len(sizes)) if strides[d] == SAMPLE and sizes[d] > 1)

    @property
    def view(self) -> View:
        """The tensor of one sample."""
        kept = [d for d in range(self.layout.dim()) if d != self.batch]
        sizes, strides = self.layout.shape, self.layout.stride()
        return View(
            self.buffer,
            tuple(sizes[d] for d in kept),
            tuple(strides[d] for d in kept),
            int(self.layout.storage_offset()),
        )


@dataclass(frozen=True)
class Fill:
    """A tensor with one value throughout."""

    value: float
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Shared:
    """A tensor that all samples share."""

    node: fx.Node


@dataclass(frozen=True, eq=False)
class Summed:
    """A sum over samples."""

    node: fx.Node


@dataclass(frozen=True)
class Mixed:
    """A value that mixes samples: an error if it is used, which a sum that is only differentiated is not."""

    reason: str


def example(node: fx.Node) -> Tensor:
    """The tensor that the trace saw, for its shape, strides and dtype."""
    return node.meta["val"]


def name_of(node: fx.Node) -> str:
    """The name of an operation, without its overload; a foreign one has a dot in it."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return str(target)
    return target._schema.name.removeprefix("aten::")


def is_linear(name: str, args: Sequence[Any], rounded: bool = False) -> bool:
    """Whether an operation on sums over samples is linear in them, so that it may follow the sum over all steps."""
    sums = [isinstance(it, Summed) for it in args]
    zeros = [isinstance(it, Fill) and not it.value for it in args]
    if name in ("mul", "mm", "bmm"):
        return sums.count(True) == 1
    if name == "div":
        return sums == [True, False] and not rounded
    if name in ("add", "sub"):
        return all(a or b for a, b in zip(sums[:2], zeros, strict=False))
    if name == "where":
        return not sums[0] and all(a or b for a, b in zip(sums[1:], zeros[1:], strict=True))
    return name in LINEAR and sums[0]


def simplified(op: str, args: Sequence[Any], shape: Sequence[int]) -> Lane | Fill | None:
    """The result of a product with 0 or 1 or of a sum with 0, which Jacobians are full of, without an operation."""
    numbers = [it.value if isinstance(it, Fill) else it for it in args]
    zeros = [isinstance(it, (int, float)) and it == 0 for it in numbers]
    ones = [isinstance(it, (int, float)) and it == 1 for it in numbers]
    kept = None
    if (op == "mul" and any(zeros)) or (op == "div" and zeros[0]) or (op in ("neg", "copy") and zeros[0]):
        return Fill(0.0, tuple(shape))
    if op == "mul" and any(ones):
        kept = args[1 if ones[0] else 0]
    elif op == "add" and any(zeros):
        kept = args[1 if zeros[0] else 0]
    elif (op == "sub" and zeros[1]) or (op == "div" and ones[1]):
        kept = args[0]
    if isinstance(kept, Lane) and tuple(kept.layout.shape) == tuple(shape):
        return kept
    return None


def map_nodes(arguments: Any, function: Callable[[fx.Node], Any]) -> Any:
    """Arguments of a node, with the values of the nodes among them."""
    return map_arg(arguments, function)


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in leaves(item)]
    if isinstance(tree, dict):
        return leaves(list(tree.values()))
    return [tree]
