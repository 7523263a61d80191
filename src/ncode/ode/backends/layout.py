"""Memory layout of compiled graphs on CPU: small samples are stored with the batch last.

A CPU works on eight or sixteen neighbours at once. Where a sample has only a few numbers in each dimension, the best
neighbours are other samples: element by element, the whole batch side by side. So for small samples every tensor of the
graph that has one row per sample is stored that way (its shape does not change), and what stands in the way of one loop
over the batch is decomposed: batched products into sums, tanh into a ratio of polynomials.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..._torch_private import stride_order_op

SMALL = 512  # samples of at most this many numbers are stored with the batch last

_aten = torch.ops.aten


def to_batch_last(tensor: Tensor) -> Tensor:
    """The tensor, stored with the batch last if its samples are small."""
    if not _is_small(tensor.device, tuple(tensor.shape)):
        return tensor
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


def to_batch_first(tensor: Tensor) -> Tensor:
    """The tensor, stored with the batch first."""
    return tensor.contiguous() if _is_small(tensor.device, tuple(tensor.shape)) else tensor


def force_batch_last(graph: torch.fx.GraphModule, batch: int) -> None:
    """Store every tensor of the graph that has one row per sample with the batch last."""
    force_stride_order = stride_order_op()

    for node in list(graph.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or _is_view(node.target) or not isinstance(value, Tensor):
            continue
        shape = tuple(value.shape)
        if shape[:1] != (batch,) or not _is_small(value.device, shape):
            continue
        with graph.graph.inserting_after(node):
            moved = graph.graph.call_function(force_stride_order, (node, _strides(shape)))
        moved.meta = dict(node.meta)
        node.replace_all_uses_with(moved, delete_user_cb=lambda user, moved=moved: user is not moved)
    for node in graph.graph.nodes:
        # A view that joins the batch with what comes after it cannot follow; a reshape copies where it has to.
        if node.op == "call_function" and node.target in (_aten.view.default, _aten._unsafe_view.default):
            node.target = _aten.reshape.default
        # The two parts of a complex number must lie side by side.
        if node.op == "call_function" and node.target is _aten.view_as_complex.default:
            with graph.graph.inserting_before(node):
                layout: dict[str, Any] = {"memory_format": torch.contiguous_format}
                node.args = (graph.graph.call_function(_aten.clone.default, node.args, layout),)
    graph.recompile()


def _is_small(device: torch.device, shape: tuple[int, ...]) -> bool:
    return device.type == "cpu" and len(shape) > 1 and shape[0] > 1 and 1 < math.prod(shape[1:]) <= SMALL


def _is_view(operation: Any) -> bool:
    return operation is _aten._unsafe_view.default or getattr(operation, "is_view", False)


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [1] * len(shape), shape[0]
    for dim in range(len(shape) - 1, 0, -1):
        strides[dim], step = step, step * shape[dim]
    return strides


def _baddbmm(start: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _aten.bmm(a, b)
    return (start if beta == 1 else start * beta) + (product if alpha == 1 else product * alpha)


def _tanh(x: Tensor) -> Tensor:
    """tanh in single precision by a ratio of polynomials (coefficients: Eigen), within 4e-7 of the value.

    The vectorised tanh of C libraries takes several times as long, and a small network's flow consists of little else.
    """
    if x.dtype != torch.float32:
        return NotImplemented
    x = x.clamp(-7.90531110763549805, 7.90531110763549805)
    square = x * x
    upper = square * -2.76076847742355e-16 + 2.00018790482477e-13
    for coefficient in (
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ):
        upper = upper * square + coefficient
    lower = square * 1.19825839466702e-06 + 1.18534705686654e-04
    for coefficient in (2.26843463243900e-03, 4.89352518554385e-03):
        lower = lower * square + coefficient
    return x * upper / lower


DECOMPOSITIONS = {_aten.baddbmm.default: _baddbmm, _aten.tanh.default: _tanh}
