"""Random crops and flips of a whole batch at once, where the batch is."""

from __future__ import annotations

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_choice, check_number

from .streams import Randomness, as_generator, move


def augment(
    images: Tensor, *, generator: Randomness, padding: int = 4, flip: bool = True, border: str = "reflect"
) -> Tensor:
    """Shift each image by up to `padding` pixels either way, and mirror every second one, left to right, at random.

    The same as padding, a random crop to the old size, and a flip. Shifts are drawn where the generator is; a generator
    on the CPU gives the same ones whatever device the images are on.

    Args:
        images: (batch, C, H, W), uint8 or floating.
        generator: A torch.Generator or a seed: `stream(seed, "augment", step)` makes training resumable.
        padding: The largest shift, in pixels.
        flip: Whether to mirror.
        border: What comes in at the edges: "reflect", the image mirrored, or "zero".

    >>> import torch
    >>> from ncode_lab.data import augment, stream
    >>> images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    >>> augment(images.expand(8, 3, 16, 16), generator=stream(0, "augment", 100)).shape
    torch.Size([8, 3, 16, 16])
    """
    if images.dim() != 4:
        raise InputError(f"images must be (batch, C, H, W); given shape {tuple(images.shape)}")
    check_choice("border", border, ("reflect", "zero"))
    batch, height, width = images.shape[0], images.shape[2], images.shape[3]
    padding = _check_padding(padding, height, width)
    generator = as_generator(generator)
    shift = torch.randint(-padding, padding + 1, (2, batch), generator=generator, device=generator.device)
    mirror = torch.rand(batch, generator=generator, device=generator.device) < 0.5
    down, right = move(shift, images.device)
    rows = torch.arange(height, device=images.device) + down[:, None]
    columns = torch.arange(width, device=images.device) + right[:, None]
    if flip:
        columns = torch.where(move(mirror, images.device)[:, None], columns.flip(1), columns)
    return _gather(images, rows, columns, border == "zero")


def _gather(images: Tensor, rows: Tensor, columns: Tensor, zero: bool) -> Tensor:
    """The pixels at rows (batch, H) and columns (batch, W), which may lie outside by less than a size."""
    batch, channels, height, width = images.shape
    pixels = _inside(rows, height)[:, :, None] * width + _inside(columns, width)[:, None, :]
    index = pixels.flatten(1)[:, None].expand(batch, channels, height * width)
    moved = images.flatten(2).gather(2, index).view(batch, channels, height, width)
    if not zero:
        return moved
    seen = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    return moved * seen[:, None]


def _inside(index: Tensor, size: int) -> Tensor:
    """Indices mirrored at the first and the last pixel."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def _check_padding(padding: int, height: int, width: int) -> int:
    number = check_number("padding", padding, low=0)
    if number != int(number):
        raise InputError(f"padding must be a whole number of pixels; given {padding}")
    if number >= min(height, width):
        raise InputError(f"padding must be smaller than the images, {height} x {width}; given {padding}")
    return int(number)
