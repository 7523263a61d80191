"""The distance between textures, for an autoencoder's loss: a mean square alone blurs images.

The image y with the smallest mean square is the mean of all images that a code may stand for, in which fine detail is
too faint. `texture_distance` compares the strength of detail, and not its shape. With detail d_k(x), k over scales,
directions and colours, and w the mean over a small window,

    s_k(x) = w(d_k(x)^2)^(1/2),    texture distance = sum over k of mean (s_k(y) - s_k(x))^2.

(s - s')^2 is the squared Fréchet distance of N(0, s^2) and N(0, s'^2): this is FID's distance with windows of detail in
place of Inception's features, so that training uses nothing of the network that computes FID.

Detail is slope and bend, across and down, at three scales: the tight frame of linear splines. The squares of its parts
nearly sum to that of the image, so the distance is in units of the mean square.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d

from ncode import InputError

from ...precision import tf32

SCALES = 3
WINDOW = 4  # pixels, at each scale
SMALLEST = WINDOW + 2  # side of the smallest image with a window of detail
FLOOR = 1e-3  # strength below which detail counts as none: a quarter of a step of 8-bit colours


class Texture(nn.Module):
    """The distance between textures as a term of an autoencoder's loss, weighted relative to the mean square."""

    def __init__(self, weight: float):
        super().__init__()
        if not weight > 0:
            raise InputError(f"the weight of textures must be above 0; given {weight}")
        self.weight = weight

    def forward(self, back: Tensor, images: Tensor) -> Tensor:
        return self.weight * texture_distance(back, images)


def texture_distance(back: Tensor, images: Tensor) -> Tensor:
    """The distance between the strengths of detail in reconstructions and images: a scalar, in units of squares.

    Neither the brightness of an image nor the sign of its detail matters.
    """
    if back.shape != images.shape or images.dim() != 4 or min(images.shape[2:]) < SMALLEST:
        raise InputError(
            "textures are compared between two batches of images (batch, channels, height, width) of the same shape and"
            f" of at least {SMALLEST} x {SMALLEST}; given {tuple(back.shape)} and {tuple(images.shape)}"
        )
    # Squares of small differences need more than 16 bits.
    with torch.autocast(images.device.type, enabled=False):
        ours, theirs = (_colours(each if each.dtype == torch.float64 else each.float()) for each in (back, images))
        distance = torch.zeros((), device=ours.device, dtype=ours.dtype)
        for _ in range(SCALES):
            distance = distance + (_strength(ours) - _strength(theirs)).square().sum((1, 2)).mean() / images.shape[1]
            ours, theirs = avg_pool2d(ours, 2), avg_pool2d(theirs, 2)
            if min(ours.shape[2:]) < SMALLEST:
                break
    return distance


def _strength(x: Tensor) -> Tensor:
    """The root of the mean square of detail in each window, (batch, channels, 8, ...)."""
    # Rounding a pixel to TF32 is as large as the least detail that counts.
    with tf32(False):
        detail = conv2d(x.flatten(0, 1)[:, None], _filters(x.device, x.dtype))
    # Never the root of 0, whose slope is infinite.
    return (avg_pool2d(detail.square(), WINDOW, 1) + FLOOR**2).sqrt().unflatten(0, x.shape[:2])


@functools.cache
def _filters(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Level, slope and bend, across and down, (8, 1, 3, 3): at each frequency, all nine squares sum to that of x.

    The first, the level both ways, is not detail and is left out. Cached, since nothing can be copied to a device while
    a CUDA graph is recorded.
    """
    level, slope, bend = [1, 2, 1], [-(2**0.5), 0, 2**0.5], [-1, 2, -1]
    along = torch.tensor([level, slope, bend], dtype=torch.float64) / 4
    both = torch.einsum("ai,bj->abij", along, along).reshape(9, 1, 3, 3)
    return both[1:].to(device, dtype)


def _colours(x: Tensor) -> Tensor:
    """Brightness, red against blue, and green against both: nearly uncorrelated in photographs."""
    if x.shape[1] != 3:
        return x
    red, green, blue = x.unbind(1)
    bright, warm, cool = red + green + blue, red - blue, red - 2 * green + blue
    return torch.stack([bright / 3**0.5, warm / 2**0.5, cool / 6**0.5], 1)
