"""Step sizes: how large an error is, how the next step follows from it, and how the first is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .field import RightHandSide, State
from .step import advance, like


@dataclass(frozen=True)
class PID:
    """The controller of step sizes (Soederlind, 2003).

    With r_n the ratio of error to tolerance at step n and k the order of the error, the step is multiplied by

        safety * r_n^(-(p + i + d) / k) * r_{n-1}^((p + 2 d) / k) * r_{n-2}^(-d / k)

    kept between `smallest` and `largest`. p = d = 0 is the textbook rule. A little p smooths the sequence and saves
    rejections where the field is rough.

    >>> PID(p=0.2).largest
    10.0
    """

    p: float = 0.0
    i: float = 1.0
    d: float = 0.0
    safety: float = 0.9
    smallest: float = 0.2
    largest: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.safety < 1 or not 0 < self.smallest < 1 < self.largest:
            raise InputError(
                f"PID needs 0 < safety < 1 and 0 < smallest < 1 < largest; given safety={self.safety},"
                f" smallest={self.smallest}, largest={self.largest}"
            )
        if self.i <= 0:
            raise InputError(f"PID needs an integral gain i > 0, or steps never recover; given i={self.i}")

    @property
    def stretch(self) -> float:
        """How much longer than planned the last step may be: a short one more would cost as much as a long one.

        It may use up the margin of safety, where the error is expected just below the tolerance. Not more: a step that
        is refused would be stretched to what it was, and refused for ever.

        >>> round(PID(safety=0.9).stretch, 3)
        1.1
        """
        return max(1 + 1e-9, min(1.1, 0.99 / self.safety))

    def factor(self, order: int, now: Tensor, before: Tensor, earlier: Tensor) -> Tensor:
        """What to multiply the step by, given the ratios of this step and the last two accepted ones."""
        factor = self.safety * now ** (-(self.p + self.i + self.d) / order)
        if self.p or self.d:
            factor = factor * before ** ((self.p + 2 * self.d) / order)
        if self.d:
            factor = factor * earlier ** (-self.d / order)
        return factor.clamp(self.smallest, self.largest)


@dataclass(frozen=True)
class Tolerance:
    """Error relative to tolerance: at most 1 is good."""

    rtol: float
    atol: float

    def ratio(self, field: RightHandSide, z: State, z1: State, errors: Sequence[State]) -> Tensor:
        """(batch,): the largest of the parts' ratios, each a root mean square over the part's elements."""
        scales = [self.scale(torch.maximum(a.abs(), b.abs())) for a, b in zip(z, z1, strict=True)]
        ratio = self._largest(field, errors[0], scales)
        for low in errors[1:]:
            # Hairer's stretch for DOP853: the low estimate tells how much smaller than the high one the error is.
            other = self._largest(field, low, scales)
            ratio = (
                ratio * ratio / (ratio * ratio + 0.01 * other * other).sqrt().clamp_min(torch.finfo(ratio.dtype).tiny)
            )
        return ratio

    def scale(self, size: Tensor) -> Tensor:
        """The error that is allowed for a value of this size."""
        return size * self.rtol + max(self.atol, torch.finfo(size.dtype).tiny)

    @staticmethod
    def _largest(field: RightHandSide, leaves: State, scales: Sequence[Tensor]) -> Tensor:
        norms = [rms(leaves[part], scales[part]) for part in field.parts]
        largest = norms[0]
        for norm in norms[1:]:
            largest = torch.maximum(largest, norm)
        return largest


def mean_square(ratio: Tensor, mask: Tensor) -> Tensor:
    """(batch,): the root mean square over the samples in the mask, the same for all."""
    squares = torch.where(mask, ratio, 0.0).square()
    return (squares.sum() / mask.sum().clamp_min(1)).sqrt().expand_as(ratio)


def rms(leaves: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Root mean square of the scaled elements of one part, a sample each."""
    squares = [
        (leaf / scale).abs().square().sum(dim=tuple(range(1, leaf.dim())))
        if leaf.dim() > 1
        else (leaf / scale).abs().square()
        for leaf, scale in zip(leaves, scales, strict=True)
    ]
    count = sum(leaf[0].numel() for leaf in leaves)
    return (sum(squares[1:], squares[0]) / count).sqrt()


def first_step(
    field: RightHandSide,
    tolerance: Tolerance,
    order: int,
    t0: Tensor,
    t1: Tensor,
    z: State,
    theta: Sequence[Tensor],
    slope: State,
    together: Tensor | None = None,
) -> Tensor:
    """A first step (batch,), signed: Hairer, Norsett and Wanner's rule, for the price of one evaluation.

    A trial Euler step measures the second derivative; the step is such that the method's error term is about 1 %.
    `together` (batch,) makes it one step for those samples, by their mean sizes.
    """
    span = t1 - t0
    scales = [tolerance.scale(leaf.abs()) for leaf in z]

    def size(leaves: State) -> Tensor:
        sizes = Tolerance._largest(field, leaves, scales).to(span.dtype)
        return sizes if together is None else mean_square(sizes, together)

    d0, d1 = size(z), size(slope)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1)
    h0 = torch.minimum(h0, span.abs()) * span.sign()

    hs = like(h0.to(field.dtype), z)
    probe = field.bind(theta)((t0 + h0).to(field.dtype), advance(z, hs, [slope], (1.0,)))
    change = tuple(b - a for a, b in zip(slope, probe, strict=True))
    d2 = size(change) / h0.abs()
    steepest = torch.maximum(d1, d2)
    h1 = torch.where(steepest <= 1e-15, (h0.abs() * 1e-3).clamp_min(1e-6), (0.01 / steepest) ** (1 / order))
    h = torch.minimum(100 * h0.abs(), h1)
    # A probe that is not finite says only that h0 was too far: try it and let the loop shrink it.
    h = torch.where(h.isfinite(), h, h0.abs())
    return torch.minimum(h, span.abs()) * span.sign()


def fixed_steps(span: float, dt: float) -> int:
    """How many steps of size dt cover the span, forgiving rounding in their ratio."""
    return max(math.ceil(abs(span) / dt * (1 - 1e-12) - 1e-9), int(span != 0))
