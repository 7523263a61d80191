"""What a training step draws at random: generators by purpose, batches, and augmentation.

Everything is a function of the seed and the step, so that a run can resume at any step.
"""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor

from ncode import InputError
from ncode.errors import check_count

Randomness = torch.Generator | int


def stream(seed: int, *purpose: int | str) -> torch.Generator:
    """Return a CPU generator that depends on the seed and the purpose, so that one use never shifts another.

    The purpose consists of strings and numbers that name the use, such as `"crop", step`.

    >>> import torch
    >>> from ncode_lab.data import stream
    >>> first, again = (torch.rand(3, generator=stream(0, "crop", 17)) for _ in range(2))
    >>> torch.equal(first, again), torch.equal(first, torch.rand(3, generator=stream(0, "crop", 18)))
    (True, False)
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number; given {seed!r}")
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    # The CPU generator uses 32 bits of its seed only.
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


def as_generator(given: Randomness) -> torch.Generator:
    """Return a generator as it is, and a CPU generator for a seed."""
    if isinstance(given, torch.Generator):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise InputError(f"generator must be a torch.Generator or a seed; given {given!r}")
    return stream(given)


def move(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for the device's queue."""
    # A copy to the CPU has to wait, or the values would be read before they arrive.
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")


def batches_per_epoch(batch: int, size: int) -> int:
    """Return the number of whole batches per epoch; the remainder is left out, and differs from epoch to epoch.

    >>> from ncode_lab.data import batches_per_epoch
    >>> batches_per_epoch(128, 50_000)
    390
    """
    batch, size = check_count("batch", batch), check_count("size", size)
    if batch > size:
        raise InputError(f"a batch of {batch} does not fit {size} images: use a batch of at most {size}")
    return size // batch


def batch_indices(step: int, batch: int, size: int, seed: int, device: str | torch.device = "cpu") -> Tensor:
    """Return the indices (batch,) of the images of a step. Each epoch has its own order, without repetition.

    Args:
        step: The step, counted from 0 over all epochs.
        batch: Images per step.
        size: Number of images.
        seed: The seed of the run.
        device: Where the indices go. They are drawn on the CPU, so they are the same for every device.

    >>> from ncode_lab.data import batch_indices
    >>> batch_indices(12, 4, 10, seed=0).shape  # step 12 is the first of the seventh epoch
    torch.Size([4])
    """
    if step < 0:
        raise InputError(f"step must be at least 0; given {step}")
    epoch, place = divmod(int(step), batches_per_epoch(batch, size))
    return _epoch_order(epoch, size, seed, str(device))[place * batch : (place + 1) * batch].clone()


@functools.lru_cache(maxsize=4)
def _epoch_order(epoch: int, size: int, seed: int, device: str) -> Tensor:
    return move(torch.randperm(size, generator=stream(seed, "epoch", epoch)), device)


def augment(images: Tensor, *, generator: Randomness, padding: int = 4, flip: bool = True) -> Tensor:
    """Shift each image at random by up to `padding` pixels in each direction, and mirror half of them left to right.

    Equals padding by reflection, a random crop to the original size, and a random flip, for the whole batch at once.

    Args:
        images: (batch, C, H, W), uint8 or floating.
        generator: A torch.Generator or a seed. A CPU generator gives the same result for images on every device;
            `stream(seed, "augment", step)` makes training resumable.
        padding: The largest shift, in pixels.
        flip: Whether to mirror.

    >>> import torch
    >>> from ncode_lab.data import augment, stream
    >>> images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    >>> augment(images.expand(8, 3, 16, 16), generator=stream(0, "augment", 100)).shape
    torch.Size([8, 3, 16, 16])
    """
    if images.dim() != 4:
        raise InputError(f"images must be (batch, C, H, W); given shape {tuple(images.shape)}")
    batch, height, width = images.shape[0], images.shape[2], images.shape[3]
    padding = check_count("padding", padding, low=0)
    if padding >= min(height, width):
        raise InputError(f"padding must be smaller than the images, {height} x {width}; given {padding}")
    generator = as_generator(generator)
    shift = torch.randint(-padding, padding + 1, (2, batch), generator=generator, device=generator.device)
    mirror = torch.rand(batch, generator=generator, device=generator.device) < 0.5
    down, right = move(shift, images.device)
    rows = torch.arange(height, device=images.device) + down[:, None]
    columns = torch.arange(width, device=images.device) + right[:, None]
    if flip:
        columns = torch.where(move(mirror, images.device)[:, None], columns.flip(1), columns)
    pixels = _reflect(rows, height)[:, :, None] * width + _reflect(columns, width)[:, None, :]
    index = pixels.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(images.shape)


def _reflect(index: Tensor, size: int) -> Tensor:
    return (size - 1) - ((size - 1) - index.abs()).abs()
