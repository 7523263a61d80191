"""Gradients that are exact to first order only: differentiating them again is refused with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError


class _ForbidDoubleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sentence: str, count: int, *tensors: Tensor) -> Any:
        ctx.sentence = sentence
        return tuple(grad.view_as(grad) for grad in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InputError(ctx.sentence)


def forbid_double_backward(
    sentence: str, inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """What a backward returns, such that differentiating it again raises an InputError with this sentence."""
    if not torch.is_grad_enabled():
        return grads
    depends_on = [tensor for tensor in inputs if tensor is not None]
    given = [grad for grad in grads if grad is not None]
    marked = iter(_ForbidDoubleBackward.apply(sentence, len(depends_on), *depends_on, *given))
    return [None if grad is None else next(marked) for grad in grads]


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sentence: str, tensor: Tensor) -> Any:
        ctx.sentence = sentence
        ctx.save_for_backward(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *forbid_double_backward(ctx.sentence, (*ctx.saved_tensors, grad), (grad,))


def first_order(sentence: str, tensor: Tensor) -> Tensor:
    """The same tensor; differentiating its gradient again raises an InputError with this sentence."""
    return _FirstOrder.apply(sentence, tensor) if tensor.requires_grad else tensor  # pyright: ignore[reportReturnType]
