"""Random numbers as a function of a seed and of what they are for."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from ncode import InputError

Randomness = torch.Generator | int


def stream(seed: int, *purpose: int | str, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator of its own for each seed and purpose, so that one use of random numbers never shifts another.

    Made anew for each step, it lets a run go on at any step as if it had never stopped.

    Args:
        seed: The seed of the run.
        purpose: What the numbers are for: words and numbers, such as `"crop", step`.
        device: Where the numbers are drawn. Those of the CPU are the same whatever device trains.

    >>> import torch
    >>> from ncode_lab.data import stream
    >>> first, again = (torch.rand(3, generator=stream(0, "crop", 17)) for _ in range(2))
    >>> torch.equal(first, again), torch.equal(first, torch.rand(3, generator=stream(0, "crop", 18)))
    (True, False)
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number; given {seed!r}")
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    # The CPU's generator looks at 32 bits only, so no more are given to any.
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:4], "big"))


def as_generator(given: Randomness) -> torch.Generator:
    """A generator as given, or one on the CPU for a seed."""
    if isinstance(given, torch.Generator):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise InputError(f"generator must be a torch.Generator or a seed; given {given!r}")
    return stream(given)


def move(tensor: Tensor, device: str | torch.device) -> Tensor:
    """The tensor on a device, without waiting for what that device is doing."""
    # Towards the CPU it must wait, or the values would be read before they arrive.
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")
