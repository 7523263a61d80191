"""Roots of functions of one variable, many side by side: where in a step an event function changes its sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Bracket(NamedTuple):
    """Two points between which functions change their sign, a third point, and the values there; each (batch,)."""

    a: Tensor
    at_a: Tensor
    b: Tensor
    at_b: Tensor
    c: Tensor
    at_c: Tensor


def step_bracket(in_first: Tensor, start: Tensor, middle: Tensor, end: Tensor) -> Bracket:
    """The half of a step in which the value changes its sign; the third point is the other end."""
    high, low = torch.where(in_first, middle, end), torch.where(in_first, start, middle)
    # After a reset the value at the start is 0 up to rounding: it counts as having the other sign.
    low = torch.where(low.sign() == -high.sign(), low, -torch.finfo(high.dtype).eps * high)
    half = torch.where(in_first, 0.5, 1.0).to(torch.float64)
    return Bracket(
        half, high, half - 0.5, low, torch.where(in_first, 1.0, 0.0).to(half), torch.where(in_first, end, start)
    )


def find_root(function: Callable[[Tensor], Tensor], bracket: Bracket) -> Tensor:
    """Where a function changes its sign in a bracket, elementwise, to 1e-12.

    Each guess is the root of the parabola through the last three points (Muller, 1956), which lies in the bracket since
    the signs at its ends differ. Guesses from one side leave the other end of the bracket where it is, so each goes
    further than the one before. From the twelfth on, every second guess is the middle: at most a hundred are needed.
    The result is nan if the function is nan at a guess.
    """
    a, fa, b, fb, c, fc = bracket
    within = max(1e-12, 4 * torch.finfo(a.dtype).eps)
    best, done = a, fa == 0
    stale = torch.zeros_like(a, dtype=torch.int32)  # guesses since b has changed
    for guess in range(100):
        width = b - a
        least = (within / width.abs().clamp_min(within)).clamp_max(0.5)
        move = _parabola_root(fa, fb, fc, (c - a) / width)
        move = torch.where(stale > 0, (move * 4.0**stale).clamp_max(0.5), move)
        move = torch.where(move.isfinite(), move, 0.5) if guess < 12 or guess % 2 else torch.full_like(move, 0.5)
        x = a + torch.minimum(torch.maximum(move, least), 1 - least) * width
        fx = function(x).to(fa.dtype)
        same = fx.sign() == fa.sign()
        stale = torch.where(same, stale + 1, 0)
        c, fc = torch.where(same, a, b), torch.where(same, fa, fb)
        b, fb = torch.where(same, b, a), torch.where(same, fb, fa)
        a, fa = x, fx
        closer = torch.where(fa.abs() < fb.abs(), a, b)
        best = torch.where(done, best, torch.where(fa.isnan(), torch.nan, closer))
        done = done | ((b - a).abs() < 2 * within) | (fa == 0) | fa.isnan()
        if bool(done.all()):
            break
    return best


def _parabola_root(fa: Tensor, fb: Tensor, fc: Tensor, c: Tensor) -> Tensor:
    """The root between 0 and 1 of the parabola with values fa at 0, fb at 1, of the opposite sign, and fc at c."""
    rise = fb - fa
    bend = ((fc - fa) / c - rise) / (c - 1)
    fall = bend - rise  # minus the slope at 0: it has the sign of fa, as has the denominator
    return 2 * fa / (fall + torch.copysign((fall * fall - 4 * bend * fa).sqrt(), fa))
