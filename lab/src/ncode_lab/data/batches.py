"""Which images a step trains on, as a function of the seed and of the step."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_count

from .streams import move, stream


def batches_per_epoch(batch: int, size: int) -> int:
    """How many whole batches an epoch has; what remains is left out, and is another part in each epoch.

    >>> from ncode_lab.data import batches_per_epoch
    >>> batches_per_epoch(128, 50_000)
    390
    """
    batch, size = check_count("batch", batch), check_count("size", size)
    if batch > size:
        raise InputError(f"a batch of {batch} does not fit {size} images: use a batch of at most {size}")
    return size // batch


def epoch_order(epoch: int, size: int, seed: int, device: str | torch.device = "cpu") -> Tensor:
    """The order of an epoch: a permutation of 0 ... size - 1, the same on every device.

    >>> from ncode_lab.data import epoch_order
    >>> epoch_order(0, 5, seed=0).sort().values
    tensor([0, 1, 2, 3, 4])
    """
    if epoch < 0:
        raise InputError(f"epoch must be at least 0; given {epoch}")
    return _order(int(epoch), check_count("size", size), seed, str(device)).clone()


def batch_indices(step: int, batch: int, size: int, seed: int, device: str | torch.device = "cpu") -> Tensor:
    """The indices of the images of a step, counted from 0 over all epochs, (batch,): training can go on at any step.

    Each epoch has an order of its own, in which no image comes twice.

    Args:
        step: The step, from 0.
        batch: How many images a step takes.
        size: How many images there are.
        seed: The seed of the run.
        device: Where the indices go. They are drawn on the CPU, and so are the same for every device.

    >>> from ncode_lab.data import batch_indices
    >>> batch_indices(12, 4, 10, seed=0).shape  # step 12 is the first of the seventh epoch
    torch.Size([4])
    """
    if step < 0:
        raise InputError(f"step must be at least 0; given {step}")
    epoch, place = divmod(int(step), batches_per_epoch(batch, size))
    return _order(epoch, size, seed, str(device))[place * batch : (place + 1) * batch].clone()


@functools.lru_cache(maxsize=4)
def _order(epoch: int, size: int, seed: int, device: str) -> Tensor:
    return move(torch.randperm(size, generator=stream(seed, "epoch", epoch)), device)
