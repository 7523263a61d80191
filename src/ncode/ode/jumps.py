"""Jumps of the dynamics at known times: pieces of the time line, between one jump and the next.

A step ends where its piece ends, and the next one starts anew. The times of its evaluations are moved inward by one
rounding error at both ends of the piece, so that functions see the side that the step belongs to.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Piece(NamedTuple):
    """The jumps next to a time, in the direction of a solve; each (batch,), infinite where there is none."""

    behind: Tensor
    ahead: Tensor


def find_piece(jumps: Tensor, t: Tensor, direction: Tensor) -> tuple[Piece, Tensor]:
    """The neighbours among the jumps (batch, n) of times (batch,); a jump at t itself is behind.

    `direction` is 1 or -1, (batch,). Also returns the columns of both neighbours, (batch, 2).
    """
    distance = (jumps - t[:, None]).detach() * direction[:, None]
    ahead, after = torch.where(distance > 0, distance, torch.inf).min(1)
    behind, before = torch.where(distance <= 0, distance, -torch.inf).max(1)
    columns = torch.stack([before, after], 1)
    found = jumps.gather(1, columns)
    infinite = direction * torch.inf
    piece = Piece(
        torch.where(behind.isfinite(), found[:, 0], -infinite), torch.where(ahead.isfinite(), found[:, 1], infinite)
    )
    return piece, columns


def time_bounds(piece: Piece, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The earliest and the latest time within a piece whose ends are times of the clock, each (batch,)."""
    low = torch.minimum(*piece).detach().to(dtype)
    high = torch.maximum(*piece).detach().to(dtype)
    infinity = torch.full_like(low, torch.inf)
    first, last = torch.nextafter(low, infinity), torch.nextafter(high, -infinity)
    narrow = first > last  # too short for two roundings
    return torch.where(narrow, -infinity, first), torch.where(narrow, infinity, last)
