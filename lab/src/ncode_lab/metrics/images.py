"""Images on their way into a feature network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ncode import InputError

from .checks import check_count

FeatureNetwork = Callable[[Tensor], Tensor]


def check_images(images: Any) -> Tensor:
    """A uint8 tensor (n, 3, height, width)."""
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
            f"images must be bytes, uint8 of 0 to 255; given {images.dtype}: ncode_lab.metrics.to_bytes makes them of"
            " numbers in [0, 1]"
        )
    return images


def to_bytes(images: Tensor) -> Tensor:
    """Numbers in [0, 1] as bytes, rounded to the nearest.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.to_bytes(torch.tensor([0.0, 0.5, 1.0]))
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    if not isinstance(images, Tensor) or not images.is_floating_point():
        given = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"to_bytes takes a tensor of numbers in [0, 1]; given {given}")
    if not images.numel():
        return images.to(torch.uint8)
    low, high = (float(bound) for bound in images.detach().aminmax())
    if not (low >= 0.0 and high <= 1.0):
        raise InputError(f"images must lie in [0, 1]; given {low:g} to {high:g}: use images.clamp(0, 1), or rescale")
    return images.detach().float().mul(255).add(0.5).to(torch.uint8)


@torch.no_grad()
def extract(network: FeatureNetwork, images: Tensor, batch: int = 250) -> Tensor:
    """The features (n, d) of uint8 images, in batches, on the network's device.

    >>> import torch, ncode_lab.metrics
    >>> network = lambda images: images.flatten(2).float().mean(2)
    >>> ncode_lab.metrics.extract(network, torch.full((4, 3, 8, 8), 7, dtype=torch.uint8)).shape
    torch.Size([4, 3])
    """
    images, batch = check_images(images), check_count("batch", batch)
    device = _device(network)
    parts = [network(part if device is None else part.to(device)) for part in images.split(batch)]
    for part in parts:
        if not isinstance(part, Tensor) or part.dim() != 2:
            given = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise InputError(f"the feature network must return a tensor (n, d), one row an image; given {given}")
    return torch.cat(parts)


def _device(network: FeatureNetwork) -> torch.device | None:
    if isinstance(network, torch.nn.Module):
        for tensor in network.parameters():
            return tensor.device
    return None
