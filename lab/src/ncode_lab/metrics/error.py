"""Error rates."""

from __future__ import annotations

from torch import Tensor

from ncode import InputError


def bit_error_rate(bits: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of bits whose sign is wrong. The target consists of -1 and 1; a bit of 0 is wrong.

    >>> import torch
    >>> from ncode_lab.metrics import bit_error_rate
    >>> bit_error_rate(torch.tensor([[0.2, -0.9], [0.4, 0.1]]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    tensor(0.2500)
    """
    for given in (bits, target):
        if not isinstance(given, Tensor):
            raise InputError(f"bits and their target must be tensors; given {type(given).__name__}")
    if bits.shape != target.shape or not bits.numel():
        raise InputError(
            f"bits and their target must be of one shape: given {tuple(bits.shape)}, {tuple(target.shape)}"
        )
    if bits.isnan().any():
        raise InputError(f"bits must be numbers: {int(bits.isnan().sum())} of {bits.numel()} are nan")
    if not (target.abs() == 1).all():
        raise InputError("the target's bits must be -1 or 1: use 2 * target - 1 for bits of 0 and 1")
    return (bits.detach().sign() != target.to(bits)).float().mean()
