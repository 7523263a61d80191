"""Checks of what measures are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncode import InputError


def check_codes(codes: Any, name: str = "codes", *, width: int | None = None) -> Tensor:
    """One finite vector a row, (n, d), without its graph; `width` is the d it must have."""
    if not isinstance(codes, Tensor):
        raise InputError(f"{name} must be a tensor (n, d), one vector a row; given {type(codes).__name__}")
    if codes.dim() != 2 or 0 in codes.shape:
        raise InputError(
            f"{name} must be of shape (n, d), one vector a row; given {tuple(codes.shape)}: use flatten(1)"
        )
    if not codes.is_floating_point():
        raise InputError(f"{name} must be of a floating dtype; given {codes.dtype}: use .float()")
    if width is not None and codes.shape[1] != width:
        raise InputError(f"{name} must have {width} columns, as what was fitted; given {codes.shape[1]}")
    codes = codes.detach()
    finite = codes.isfinite().all(1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise InputError(f"{name} must be finite; {int((~finite).sum())} rows are not, the first is row {row}")
    return codes


def check_count(name: str, value: Any, *, low: int = 1) -> int:
    """A whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number; given {value!r}")
    if value < low:
        raise InputError(f"{name} must be at least {low}; given {value}")
    return value


def check_labels(labels: Any, name: str, *, length: int | None = None) -> Tensor:
    """Whole numbers from 0 upwards, one a sample, as int64."""
    if not isinstance(labels, Tensor):
        raise InputError(f"{name} must be a tensor of whole numbers, one a sample; given {type(labels).__name__}")
    if labels.dim() != 1 or not len(labels):
        raise InputError(f"{name} must be of shape (n,), one a sample; given {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers; given {labels.dtype}: use .long()")
    if length is not None and len(labels) != length:
        raise InputError(f"{name} must be as many as the samples, {length}; given {len(labels)}")
    labels = labels.long()
    if labels.min() < 0:
        raise InputError(f"{name} must not be negative; the smallest is {int(labels.min())}")
    return labels
