"""Checks of codes, labels and images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncode import InputError


def check_codes(codes: Any, name: str = "codes", *, width: int | None = None) -> Tensor:
    """Return finite vectors (n, d), detached; `width` is the required d."""
    if not isinstance(codes, Tensor):
        raise InputError(f"{name} must be a tensor (n, d), one vector per row; given {type(codes).__name__}")
    if codes.dim() != 2 or 0 in codes.shape:
        raise InputError(
            f"{name} must be of shape (n, d), one vector per row; given {tuple(codes.shape)}: use flatten(1)"
        )
    if not codes.is_floating_point():
        raise InputError(f"{name} must be of a floating dtype; given {codes.dtype}: use .float()")
    if width is not None and codes.shape[1] != width:
        raise InputError(f"{name} must have {width} columns; given {codes.shape[1]}")
    codes = codes.detach()
    finite = codes.isfinite().all(1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise InputError(f"{name} must be finite; {int((~finite).sum())} rows are not, the first is row {row}")
    return codes


def check_labels(labels: Any, name: str, *, length: int | None = None) -> Tensor:
    """Return non-negative whole numbers (n,) as int64; `length` is the required n."""
    if not isinstance(labels, Tensor):
        raise InputError(f"{name} must be a tensor of whole numbers, one per sample; given {type(labels).__name__}")
    if labels.dim() != 1 or not len(labels):
        raise InputError(f"{name} must be of shape (n,), one per sample; given {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers; given {labels.dtype}: use .long()")
    if length is not None and len(labels) != length:
        raise InputError(f"{name} must be one per sample, {length}; given {len(labels)}")
    labels = labels.long()
    if labels.min() < 0:
        raise InputError(f"{name} must not be negative; the smallest is {int(labels.min())}")
    return labels


def check_images(images: Any) -> Tensor:
    """Return a uint8 tensor (n, 3, height, width)."""
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a uint8 tensor (n, 3, height, width); given {type(images).__name__}")
    if images.dim() != 4 or 0 in images.shape:
        raise InputError(f"images must be of shape (n, 3, height, width); given {tuple(images.shape)}")
    if images.shape[1] != 3:
        grey = ": repeat the grey channel with images.expand(-1, 3, -1, -1)" if images.shape[1] == 1 else ""
        last = ": put channels second with images.movedim(-1, 1)" if images.shape[3] == 3 else ""
        raise InputError(f"images must have 3 channels, (n, 3, height, width); given {tuple(images.shape)}{grey}{last}")
    if images.dtype != torch.uint8:
        raise InputError(
            f"images must be bytes, uint8 from 0 to 255; given {images.dtype}: convert numbers in [0, 1] with"
            " (images * 255).round().to(torch.uint8)"
        )
    return images
