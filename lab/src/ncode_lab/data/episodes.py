"""Bit patterns to be remembered."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_count, check_number

from .streams import Randomness, as_generator, move


class Episodes(NamedTuple):
    """A batch of episodes: patterns shown one after another, and a degraded one to complete.

    >>> from ncode_lab.data import episodes
    >>> shown = episodes(2, bits=4, patterns=3, generator=0)
    >>> shown.order.shape, bool((shown.query * shown.target >= 0).all())
    (torch.Size([2, 6]), True)
    """

    stimuli: Tensor  # what is shown, (batch, times * patterns, bits), each -1 or 1
    query: Tensor  # the degraded pattern, (batch, bits), each -1, 0 or 1
    target: Tensor  # the whole of it, (batch, bits)
    order: Tensor  # which pattern is shown when, (batch, times * patterns), int64
    asked: Tensor  # which pattern is asked for, (batch,), int64

    def to(self, device: str | torch.device) -> Episodes:
        """The same on another device."""
        return Episodes(*(move(tensor, device) for tensor in self))


def episodes(
    batch: int,
    bits: int = 100,
    patterns: int = 3,
    *,
    generator: Randomness,
    times: int = 2,
    degradation: float = 0.5,
    device: str | torch.device | None = None,
) -> Episodes:
    """Episodes of the memory task of Miconi et al. (2018): see patterns, then complete a degraded one of them.

    All patterns are shown once in random order, then once more in another order, `times` in all. The query is one of
    them with a share of its bits set to 0.

    Args:
        batch: How many episodes.
        bits: Length of a pattern.
        patterns: How many patterns an episode has.
        generator: A torch.Generator, on whose device all is drawn, or a seed.
        times: How often each pattern is shown.
        degradation: The share of bits set to 0, from 0 to 1: exactly that many, rounded to a whole number of bits.
        device: Where the result goes; where it was drawn, unless told.

    >>> from ncode_lab.data import episodes
    >>> shown = episodes(8, bits=100, patterns=3, generator=0)
    >>> shown.stimuli.shape, shown.query.shape, (shown.query == 0).sum(1).unique()
    (torch.Size([8, 6, 100]), torch.Size([8, 100]), tensor([50]))
    """
    batch, bits, patterns, times = (
        check_count(name, value)
        for name, value in (("batch", batch), ("bits", bits), ("patterns", patterns), ("times", times))
    )
    if check_number("degradation", degradation, low=0.0) > 1:
        raise InputError(f"degradation is a share of the bits, from 0 to 1; given {degradation}")
    generator = as_generator(generator)
    where = {"generator": generator, "device": generator.device}
    all_patterns = torch.randint(2, (batch, patterns, bits), **where).float() * 2 - 1
    order = torch.rand(batch, times, patterns, **where).argsort(2).flatten(1)
    asked = torch.randint(patterns, (batch,), **where)
    samples = torch.arange(batch, device=generator.device)
    stimuli, target = all_patterns[samples[:, None], order], all_patterns[samples, asked]
    lost = torch.rand(batch, bits, **where).argsort(1)[:, : round(degradation * bits)]
    return Episodes(stimuli, target.scatter(1, lost, 0.0), target, order, asked).to(device or generator.device)
