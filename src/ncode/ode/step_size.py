"""Step sizes: how large an error is, how the next step follows from it, and how the first step is chosen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .step import advance
from .system import RightHandSide, State, expand_like


class StepSizeRule(ABC):
    """How the next step size follows from the errors of past steps. Subclass it for a rule of your own.

    A ratio is the error of a step over its tolerance; a step is accepted if it is at most 1. The solver clamps the
    factor of a rejected step to at most `safety`, and uses `smallest` where the error is not finite. Rules are compared
    by value where solves are compiled, so make them frozen dataclasses.

    >>> import torch, ncode
    >>> class HalveOrDouble(ncode.StepSizeRule):
    ...     def factor(self, order, ratio, previous, earlier):
    ...         return torch.where(ratio < 0.5**order, 2.0, torch.where(ratio > 1.0, 0.5, 1.0))
    >>> sol = ncode.solve(lambda t, x, theta: -x, torch.ones(1, 1), 0.0, 1.0, step_rule=HalveOrDouble())
    >>> sol.status[0].name
    'OK'
    """

    safety: float = 0.9
    """Largest factor after a rejected step, below 1."""

    smallest: float = 0.2
    """Factor after a step whose error is not finite."""

    uses_history: bool = False
    """Whether `factor` reads the ratios of the last two accepted steps."""

    @abstractmethod
    def factor(self, order: int, ratio: Tensor, previous: Tensor, earlier: Tensor) -> Tensor:
        """What to multiply the step size by, (batch,).

        Args:
            order: The error of a step shrinks as h^order.
            ratio: Error over tolerance of this step, (batch,).
            previous, earlier: The ratios of the last two accepted steps.
        """

    @property
    def stretch(self) -> float:
        """How much longer than planned the last step may be: one more short step would cost as much as a long one.

        It may use up the margin of safety, where the error is expected just below the tolerance. Not more: a rejected
        step would be stretched to its old length and rejected forever.
        """
        return max(1 + 1e-9, min(1.1, 0.99 / self.safety))


@dataclass(frozen=True)
class PID(StepSizeRule):
    """PID control of the step size (Soederlind, 2003). The default rule, as a pure integral controller.

    With r_n the ratio of error to tolerance at step n and k the order of the error, the step is multiplied by

        safety * r_n^(-(p + i + d) / k) * r_{n-1}^((p + 2 d) / k) * r_{n-2}^(-d / k)

    clamped to [smallest, largest]. A small p smooths the sequence of steps and saves rejections where the dynamics are
    rough.

    >>> from ncode import PID
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
    def uses_history(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(self.p or self.d)

    def factor(self, order: int, ratio: Tensor, previous: Tensor, earlier: Tensor) -> Tensor:
        factor = self.safety * ratio ** (-(self.p + self.i + self.d) / order)
        if self.p or self.d:
            factor = factor * previous ** ((self.p + 2 * self.d) / order)
        if self.d:
            factor = factor * earlier ** (-self.d / order)
        return factor.clamp(self.smallest, self.largest)


@dataclass(frozen=True)
class Tolerance:
    """Error relative to tolerance: a step is good if it is at most 1."""

    rtol: float
    atol: float

    def ratio(self, system: RightHandSide, z: State, z1: State, errors: Sequence[State]) -> Tensor:
        """(batch,): the largest of the parts' ratios, each a root mean square over the part's elements."""
        scales = [self.scale(torch.maximum(a.abs(), b.abs())) for a, b in zip(z, z1, strict=True)]
        ratio = largest_norm(system, errors[0], scales)
        for low in errors[1:]:
            # Hairer's rule for DOP853: the low-order estimate tells how much smaller than the high one the error is.
            other = largest_norm(system, low, scales)
            combined = (ratio * ratio + 0.01 * other * other).sqrt()
            ratio = ratio * ratio / combined.clamp_min(torch.finfo(ratio.dtype).tiny)
        return ratio

    def scale(self, size: Tensor) -> Tensor:
        """The error that is allowed for values of this size."""
        return size * self.rtol + max(self.atol, torch.finfo(size.dtype).tiny)


def largest_norm(system: RightHandSide, leaves: State, scales: Sequence[Tensor]) -> Tensor:
    """(batch,): the largest norm of the system's parts."""
    norms = [_rms(leaves[part], scales[part]) for part in system.parts]
    largest = norms[0]
    for norm in norms[1:]:
        largest = torch.maximum(largest, norm)
    return largest


def _rms(leaves: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Root mean square of the scaled elements of one part, one value per sample."""
    squares = [
        (leaf / scale).abs().square().sum(dim=tuple(range(1, leaf.dim())))
        if leaf.dim() > 1
        else (leaf / scale).abs().square()
        for leaf, scale in zip(leaves, scales, strict=True)
    ]
    count = sum(leaf[0].numel() for leaf in leaves)
    return (sum(squares[1:], squares[0]) / count).sqrt()


def batch_rms(ratio: Tensor, mask: Tensor) -> Tensor:
    """(batch,): the root mean square over the samples in the mask, the same value for all."""
    squares = torch.where(mask, ratio, 0.0).square()
    return (squares.sum() / mask.sum().clamp_min(1)).sqrt().expand_as(ratio)


def first_step(
    system: RightHandSide,
    tolerance: Tolerance,
    order: int,
    t0: Tensor,
    t1: Tensor,
    z: State,
    theta: Sequence[Tensor],
    slope: State,
    shared: Tensor | None = None,
) -> Tensor:
    """A first step (batch,), signed: the rule of Hairer, Norsett and Wanner, at the cost of one evaluation.

    A trial Euler step measures the second derivative; the step is such that the method's error term is about 1 %.
    `shared`, a (batch,) mask, makes it one step for these samples, by their mean sizes.
    """
    span = t1 - t0
    scales = [tolerance.scale(leaf.abs()) for leaf in z]

    def size(leaves: State) -> Tensor:
        sizes = largest_norm(system, leaves, scales).to(span.dtype)
        return sizes if shared is None else batch_rms(sizes, shared)

    d0, d1 = size(z), size(slope)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1)
    h0 = torch.minimum(h0, span.abs()) * span.sign()

    hs = expand_like(h0.to(system.dtype), z)
    trial = system.bind(theta)((t0 + h0).to(system.dtype), advance(z, hs, [slope], (1.0,)))
    change = tuple(b - a for a, b in zip(slope, trial, strict=True))
    d2 = size(change) / h0.abs()
    steepest = torch.maximum(d1, d2)
    h1 = torch.where(steepest <= 1e-15, (h0.abs() * 1e-3).clamp_min(1e-6), (0.01 / steepest) ** (1 / order))
    h = torch.minimum(100 * h0.abs(), h1)
    # A trial that is not finite says only that h0 was too long: try it and let the loop shrink it.
    h = torch.where(h.isfinite(), h, h0.abs())
    return torch.minimum(h, span.abs()) * span.sign()


def fixed_steps(span: float, dt: float) -> int:
    """Number of steps of size dt that cover the span, forgiving rounding in their ratio."""
    return max(math.ceil(abs(span) / dt * (1 - 1e-12) - 1e-9), int(span != 0))
