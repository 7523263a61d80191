"""Rates of error and of success."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ncode import InputError

from .checks import check_count, check_labels


def bit_error_rate(bits: Tensor, target: Tensor) -> Tensor:
    """The part of all bits whose sign is wrong; the target is made of -1 and 1, and a bit of 0 is wrong.

    >>> import torch
    >>> from ncode_lab.metrics import bit_error_rate
    >>> bit_error_rate(torch.tensor([[0.2, -0.9], [0.4, 0.1]]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    tensor(0.2500)
    """
    if not isinstance(bits, Tensor) or not isinstance(target, Tensor):
        wrong = target if isinstance(bits, Tensor) else bits
        raise InputError(f"bits and their target must be tensors; given {type(wrong).__name__}")
    if bits.shape != target.shape or not bits.numel():
        raise InputError(
            f"bits and their target must be of one shape: given {tuple(bits.shape)}, {tuple(target.shape)}"
        )
    if bits.isnan().any():
        raise InputError(f"bits must be numbers: {int(bits.isnan().sum())} of {bits.numel()} are nan")
    if not (target.abs() == 1).all():
        raise InputError("the target's bits must be -1 or 1: use 2 * target - 1 for bits of 0 and 1")
    return (bits.detach().sign() != target.to(bits)).float().mean()


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The part of the samples whose largest logit is their label's.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor(0.5000)
    """
    return top_k(logits, labels, 1)


def top_k(logits: Tensor, labels: Tensor, k: int = 5) -> Tensor:
    """The part of the samples with their label among the k largest logits; of equal logits the first classes count.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.top_k(torch.tensor([[0.1, 0.5, 0.4], [0.8, 0.15, 0.05]]), torch.tensor([2, 2]), k=2)
    tensor(0.5000)
    """
    _check_logits(logits)
    labels = check_labels(labels, "labels", length=len(logits)).to(logits.device)
    classes = logits.shape[1]
    if labels.max() >= classes:
        raise InputError(f"labels must be below {classes}, the number of logits; the largest is {int(labels.max())}")
    if check_count("k", k) > classes:
        raise InputError(f"k must be at most {classes}, the number of logits; given {k}")
    order = logits.detach().argsort(dim=1, descending=True, stable=True)
    return (order[:, :k] == labels[:, None]).any(1).float().mean()


def _check_logits(logits: Any) -> None:
    if not isinstance(logits, Tensor) or logits.dim() != 2 or 0 in logits.shape:
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"logits must be a tensor (n, classes); given {given}")
    if logits.isnan().any():
        raise InputError(f"logits must be numbers: {int(logits.isnan().any(1).sum())} of {len(logits)} rows hold nan")
