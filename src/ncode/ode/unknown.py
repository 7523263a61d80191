"""`refuse_unknown`: a tensor that requires a gradient and was not found at t0 would silently lose its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..errors import InputError

UNKNOWN = (
    "the dynamics use a tensor of shape {shape}, which requires a gradient, at a later time than t0, and solve did not"
    " find it among what they hold: its gradient would be lost. Make it a parameter of an nn.Module that the dynamics"
    ' use, pass it as theta, or use gradient="autograd"'
)


def refuse_unknown(outputs: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Refuse a graph that leads to a leaf which is not known, and so was not found: its gradient would be lost.

    A leaf with the memory of a known tensor is one that the functions detached themselves, as in x.detach().
    """
    memory = {tensor.data_ptr() for tensor in known}
    leaves, ends = {id(tensor) for tensor in known}, {tensor.grad_fn for tensor in known}

    def check(leaf: Tensor) -> None:
        if id(leaf) not in leaves and leaf.data_ptr() not in memory:
            raise InputError(UNKNOWN.format(shape=tuple(leaf.shape)))

    for output in outputs:
        if output.requires_grad and output.grad_fn is None:
            check(output)
    stack: list[Any] = [node for output in outputs if (node := output.grad_fn) is not None and node not in ends]
    visited = {*stack, *ends}
    while stack:
        node = stack.pop()
        after = node.next_functions
        for it, _ in after:
            if it is not None and it not in visited:
                visited.add(it)
                stack.append(it)
        if not after and (variable := getattr(node, "variable", None)) is not None:
            check(variable)
