"""Gradients that cannot be differentiated again, and say so to those who try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError

Gradients = Sequence[Tensor | None]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sentence: str, count: int, *tensors: Tensor) -> Any:
        ctx.sentence = sentence
        return tuple(grad.view_as(grad) for grad in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InputError(ctx.sentence)


def once(sentence: str, inputs: Gradients, grads: Gradients) -> Gradients:
    """What a backward returns, tied to all that it depends on where somebody means to differentiate it again."""
    if not torch.is_grad_enabled():
        return grads
    tied = [tensor for tensor in inputs if tensor is not None]
    marked = iter(_Once.apply(sentence, len(tied), *tied, *(grad for grad in grads if grad is not None)))
    return [None if grad is None else next(marked) for grad in grads]
