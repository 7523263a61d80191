"""Images scaled to mean 0 and standard deviation 1 a channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .images import Images


@dataclass(frozen=True, eq=False)
class Normalisation:
    """(x - mean) / std a channel, of images from 0 to 1. Take it from the training images, and use it for all.

    >>> import torch
    >>> from ncode_lab.data import Normalisation, draw_shapes
    >>> images = draw_shapes(50, generator=0)
    >>> normalise = Normalisation.of(images)
    >>> x = normalise(images.images)
    >>> bool(x.mean().abs() < 1e-4), bool((normalise.undo(x) - images.float()).abs().max() < 1e-5)
    (True, True)
    """

    mean: Tensor  # (C,), float32
    std: Tensor  # (C,), float32

    @classmethod
    def of(cls, images: Images) -> Normalisation:
        """That of a set, on its device. Counted in whole numbers, so it is the same on every device."""
        mean, std = [], []
        level = torch.arange(256, dtype=torch.float64)
        for channel in images.images.unbind(1):
            count = torch.bincount(channel.flatten(), minlength=256).cpu().double()
            mean.append((count @ level) / count.sum() / 255)
            std.append(((count @ level**2) / count.sum() / 255**2 - mean[-1] ** 2).clamp(min=0).sqrt())
        # A channel that never changes stays as it is.
        scale = [value if value > 0 else torch.ones_like(value) for value in std]
        return cls(torch.stack(mean).float(), torch.stack(scale).float()).to(images.device)

    def to(self, device: str | torch.device) -> Normalisation:
        """The same on another device."""
        return Normalisation(self.mean.to(device), self.std.to(device))

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (..., C, H, W): uint8, or floats from 0 to 1."""
        x = images.float() / 255 if images.dtype == torch.uint8 else images
        return (x - self.mean[:, None, None]) / self.std[:, None, None]

    def undo(self, x: Tensor) -> Tensor:
        """Back to images from 0 to 1."""
        return x * self.std[:, None, None] + self.mean[:, None, None]
