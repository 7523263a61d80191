"""A device's share of a batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ncode import InputError


def share(batch: Any, rank: int, devices: int) -> Any:
    """The rank's slice of every tensor in a batch, along its first axis. Numbers and scalars are for all.

    >>> import torch
    >>> share({"x": torch.arange(6), "noise": 0.1}, rank=1, devices=3)
    {'x': tensor([2, 3]), 'noise': 0.1}
    """
    if devices == 1:
        return batch
    sizes = set(_sizes(batch))
    if len(sizes) != 1:
        raise InputError(
            f"the tensors of a batch must be of one length, to be shared by {devices} devices; given {sorted(sizes)}"
        )
    size = sizes.pop()
    if size % devices:
        raise InputError(
            f"a batch of {size} cannot be shared equally by {devices} devices: "
            f"choose a batch size that {devices} divides, or other --devices"
        )
    part = size // devices
    return _map(batch, slice(rank * part, (rank + 1) * part))


def _sizes(batch: Any) -> list[int]:
    if isinstance(batch, Tensor):
        return [batch.shape[0]] if batch.dim() else []
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, tuple | list):
        return [size for each in batch for size in _sizes(each)]
    return []


def _map(batch: Any, part: slice) -> Any:
    if isinstance(batch, Tensor):
        return batch[part] if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: _map(each, part) for key, each in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [_map(each, part) for each in batch]
        # A named tuple takes its fields one by one.
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
