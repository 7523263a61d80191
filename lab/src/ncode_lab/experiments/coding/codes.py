"""Codes of images: encode, decode, and standardise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ncode.models import Autoencoder

from ...data import Images


@torch.no_grad()
def encode(model: Autoencoder, images: Images, batch: int = 500) -> Tensor:
    """The codes of images, (n, d), on the model's device."""
    device = next(model.parameters()).device
    return torch.cat([model.encode(to_floats(part.to(device))) for part in images.images.split(batch)])


@torch.no_grad()
def decode(model: Autoencoder, codes: Tensor, batch: int = 500) -> Tensor:
    """The images of codes (n, d), as bytes, on the model's device."""
    return torch.cat([to_bytes(model.decode(part)) for part in codes.to(next(model.parameters())).split(batch)])


def to_floats(images: Tensor) -> Tensor:
    """Bytes as floats from 0 to 1, of the default dtype."""
    return images.to(torch.get_default_dtype()) / 255


def to_bytes(images: Tensor) -> Tensor:
    """Floats from 0 to 1 as bytes; values outside are clipped."""
    return images.clamp(0, 1).mul(255).add(0.5).to(torch.uint8)


class Units(NamedTuple):
    """Mean and standard deviation of each value of a code.

    The scale of codes is arbitrary: the end of a flow varies by hundredths in one value and by tenths in the next, a
    linear map of features by ones. The decoder does not mind, but k-means, the least variance of a mixture and the
    width of a kernel do, so densities are fitted to standardised codes.
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, codes: Tensor) -> Units:
        """The units of codes (n, values). A constant value keeps its scale."""
        deviation = codes.std(0)
        return cls(codes.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, codes: Tensor) -> Tensor:
        return (codes - self.mean) / self.deviation

    def undo(self, codes: Tensor) -> Tensor:
        return self.mean + self.deviation * codes.to(self.mean)
