"""One step of a batch, its error, and the size of the next step.

`Step` is the pure function that the loop and all gradients are written on. Here: explicit Runge-Kutta steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, check_number, format_type
from .system import RightHandSide, State, expand_like
from .tableau import Tableau
from .tolerance import Tolerance, batch_rms, largest_norm


class StepResult(NamedTuple):
    """What one step returns."""

    z: State  # at t + h
    start: State  # slope at t
    end: State | None  # slope at t + h, where the next step reuses it
    errors: tuple[State, ...]  # one or two estimates of the error, each like z; none with fixed steps
    dense: State | None  # coefficients of sigma, sigma^2, ... of dense output, each (batch, powers, ...)
    slopes: tuple[State, ...] = ()  # of the stages, if requested
    failure: Tensor | None = None  # status of each sample, OK where the step could be computed
    spent: Tensor | None = None  # evaluations of each sample, where their number is not fixed


@dataclass(frozen=True, eq=False)
class Step(ABC):
    """A pure function (t, h, z, theta, first slope) -> StepResult, for one system and method.

    `t` and `h` are (batch,) in the precision of time, t counted from t0; h is negative for a solve backward in time and
    0 for a sample that stands still. `estimate` requests the error, `dense` the coefficients of dense output of x and
    theta, `slopes` what `quadrature` needs.
    """

    system: RightHandSide
    tableau: Any  # the coefficients, with at least `order` and `error_order`
    estimate: bool = False
    dense: bool = False
    slopes: bool = False

    @property
    def signature(self) -> Hashable:
        """Everything that the step depends on, apart from its system and its arguments."""
        return self.tableau, self.estimate, self.dense, self.slopes

    @property
    def needs_end(self) -> bool:
        """Whether the slope at the end is evaluated; it is then the first slope of the next step."""
        return False

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """Evaluations of the system per step; an end slope does not count, since it replaces the next first one."""

    @property
    def counts_evaluations(self) -> bool:
        """Whether the result also has a number of evaluations that depends on the sample."""
        return False

    @property
    @abstractmethod
    def quadrature_points(self) -> int:
        """Number of points that `quadrature` returns."""

    @abstractmethod
    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> StepResult: ...

    @abstractmethod
    def quadrature(
        self, h: Tensor, z: State, slopes: Sequence[State], dense: State | None
    ) -> Iterator[tuple[float, float, State]]:
        """Points (node, weight, state) such that h * sum weight * F(t + node h, state) integrates F along the step.

        `z` is the state before the step; `slopes` and `dense` are what the step returned.
        """


@dataclass(frozen=True, eq=False)
class ExplicitStep(Step):
    """A step of an explicit Runge-Kutta method."""

    tableau: Tableau

    @property
    def needs_end(self) -> bool:
        tableau = self.tableau
        return (self.estimate and tableau.error_needs_end) or (self.dense and tableau.dense_needs_end)

    @property
    def evaluations(self) -> int:
        return self.tableau.stages + (len(self.tableau.extra_a) if self.dense else 0)

    @property
    def quadrature_points(self) -> int:
        return sum(1 for weight in self.tableau.b if weight)

    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> StepResult:
        tableau, slope = self.tableau, self.system.bind(theta)
        hs, times = expand_like(h.to(self.system.dtype), z), self._times(t, h, theta)

        slopes = [slope(times[0], z) if first is None else first]
        for time, row in zip(times[1:], tableau.a[1:], strict=False):
            slopes.append(slope(time, advance(z, hs, slopes, row)))
        z1 = advance(z, hs, slopes, tableau.b)
        stages = tuple(slopes) if self.slopes else ()

        end = slope(times[tableau.stages], z1) if self.needs_end else None
        if end is not None:
            slopes.append(end)
        errors: tuple[State, ...] = ()
        if self.estimate:
            with torch.no_grad():
                errors = tuple(weighted_sum(slopes, row, hs) for row in (tableau.error, tableau.error_low) if row)
        dense = None
        if self.dense:
            for time, row in zip(times[tableau.stages + 1 :], tableau.extra_a, strict=True):
                slopes.append(slope(time, advance(z, hs, slopes, row)))
            dense = self._dense(slopes, hs)
        return StepResult(z1, slopes[0], end, errors, dense, stages)

    def quadrature(
        self, h: Tensor, z: State, slopes: Sequence[State], dense: State | None
    ) -> Iterator[tuple[float, float, State]]:
        """The stages with their weights."""
        tableau, hs = self.tableau, expand_like(h.to(self.system.dtype), z)
        for node, weight, row in zip(tableau.c, tableau.b, tableau.a, strict=True):
            if weight:
                yield node, weight, advance(z, hs, slopes, row) if any(row) else z

    def _times(self, t: Tensor, h: Tensor, theta: Sequence[Tensor]) -> Sequence[Tensor]:
        """The system's times at the stages, at the end and at dense output's further stages."""
        nodes, clock = (*self.tableau.c, 1.0, *(self.tableau.extra_c if self.dense else ())), self.system.clock
        if torch.compiler.is_compiling():
            return [clock(theta, t + c * h) for c in nodes]
        # One operation for all times: in eager mode each small operation counts.
        return clock(theta, torch.addcmul(t, _column(nodes, t.dtype, t.device), h)).unbind()

    def _dense(self, slopes: Sequence[State], hs: Sequence[Tensor]) -> State:
        """Coefficients of the powers of sigma, for x and the driven control (the cost is not interpolated)."""
        shown = self.system.shown
        slopes, hs = [k[:shown] for k in slopes], hs[:shown]
        columns = [weighted_sum(slopes, column, hs) for column in zip(*self.tableau.dense, strict=True)]
        return tuple(torch.stack(leaves, dim=1) for leaves in zip(*columns, strict=True))


def _column(nodes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # A tensor made under inference_mode must not be cached: autograd could not save it later.
    return (_make_column if torch.is_inference_mode_enabled() else _cached_column)(nodes, dtype, device)


def _make_column(nodes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(nodes, dtype=dtype, device=device)[:, None]


_cached_column = lru_cache(_make_column)  # copying it to the GPU anew would synchronise


def _sum(slopes: Sequence[State], row: tuple[float, ...]) -> tuple[float, State]:
    """sum_i row_i * slope_i as a factor and a sum: factoring the first weight out saves an operation."""
    first, factor, rest = _terms(row)
    sums = slopes[first]
    for i, weight in rest:
        sums = tuple([torch.add(s, leaf, alpha=weight) for s, leaf in zip(sums, slopes[i], strict=True)])
    return factor, sums


@lru_cache(maxsize=1024)
def _terms(row: tuple[float, ...]) -> tuple[int, float, tuple[tuple[int, float], ...]]:
    """The index and the weight of the first slope of a row, and the others, with weights relative to it."""
    (first, factor), *rest = [(i, weight) for i, weight in enumerate(row) if weight]
    return first, factor, tuple((i, weight / factor) for i, weight in rest)


def weighted_sum(slopes: Sequence[State], row: tuple[float, ...], hs: Sequence[Tensor]) -> State:
    """h * sum_i row_i * slope_i."""
    factor, sums = _sum(slopes, row)
    return tuple(s * (h * factor) for s, h in zip(sums, hs, strict=True))


def advance(z: State, hs: Sequence[Tensor], slopes: Sequence[State], row: tuple[float, ...]) -> State:
    """z + h * sum_i row_i * slope_i."""
    factor, sums = _sum(slopes, row)
    return tuple(torch.addcmul(leaf, h, s, value=factor) for leaf, h, s in zip(z, hs, sums, strict=True))


def evaluate_dense(z: State, coefficients: State, sigma: Tensor) -> State:
    """Dense output at sigma (batch, T): each leaf (batch, T, ...)."""
    out = []
    for leaf, powers in zip(z, coefficients, strict=False):
        at = sigma.to(leaf.real.dtype).reshape(*sigma.shape, *[1] * (leaf.dim() - 1))
        value = powers[:, -1:].expand(-1, sigma.shape[1], *[-1] * (leaf.dim() - 1))
        for q in range(powers.shape[1] - 2, -1, -1):
            value = torch.addcmul(powers[:, q : q + 1], value, at)
        out.append(torch.addcmul(leaf[:, None], value, at))
    return tuple(out)


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

        At most by the margin that `safety` leaves: a longer last step would be rejected, planned shorter, stretched to
        its old length and rejected again, forever.
        """
        return max(1 + 1e-9, min(1.1, 0.99 / self.safety))


def check_factor(rule: StepSizeRule, factor: Any, ratio: Tensor) -> Tensor:
    """Refuse what is no factor per sample, or one for all of them."""
    if isinstance(factor, Tensor) and factor.shape in (ratio.shape, (1,), ()):
        return factor
    given = f"a tensor of shape {tuple(factor.shape)}" if isinstance(factor, Tensor) else format_type(factor)
    raise InputError(
        f"{type(rule).__name__}.factor returned {given}; expected one factor per sample, a tensor of shape"
        f" {tuple(ratio.shape)}: compute it from ratio, or write torch.full_like(ratio, 0.9)"
    )


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
        for each in fields(self):
            number = check_number(f"{each.name} of PID", getattr(self, each.name), low=-math.inf)
            object.__setattr__(self, each.name, number)
        if not 0 < self.safety < 1 or not 1e-12 <= self.smallest < 1 < self.largest <= 1e12:
            raise InputError(
                "PID needs 0 < safety < 1 and 1e-12 <= smallest < 1 < largest <= 1e12; given"
                f" safety={self.safety}, smallest={self.smallest}, largest={self.largest}"
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


class StepLimits(NamedTuple):
    """The smallest and the largest step that may be tried; only the last one, which ends at t1, may be smaller."""

    low: float = 0.0
    high: float = math.inf

    def clamp(self, h: Tensor) -> Tensor:
        """Steps (batch,), signed, within the limits."""
        return h if self == (0.0, math.inf) else torch.copysign(h.abs().clamp(self.low, self.high), h)


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
    scales = tolerance.scales([leaf.abs() for leaf in z])

    def size(leaves: State) -> Tensor:
        sizes = largest_norm(system, leaves, scales).to(span.dtype)
        return sizes if shared is None else batch_rms(sizes, shared)

    d0, d1 = size(z), size(slope)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1)
    h0 = torch.minimum(h0, span.abs()) * span.sign()

    hs = expand_like(h0.to(system.dtype), z)
    trial = system.bind(theta)(system.clock(theta, t0 + h0), advance(z, hs, [slope], (1.0,)))
    change = tuple(b - a for a, b in zip(slope, trial, strict=True))
    d2 = size(change) / h0.abs()
    steepest = torch.maximum(d1, d2)
    h1 = torch.where(steepest <= 1e-15, (h0.abs() * 1e-3).clamp_min(1e-6), (0.01 / steepest) ** (1 / order))
    h = torch.minimum(100 * h0.abs(), h1)
    # A trial that is not finite says only that h0 was too long: try it and let the loop shrink it.
    h = torch.where(h.isfinite(), h, h0.abs())
    # With atol = 0 an element that is 0 asks for a step of 0; from this one the loop grows or fails.
    h = torch.maximum(h, 1e4 * torch.finfo(span.dtype).eps * span.abs())
    return torch.minimum(h, span.abs()) * span.sign()


def fixed_steps(span: float, dt: float) -> int:
    """Number of steps of size dt that cover the span, forgiving rounding in their ratio."""
    count = abs(span) / dt * (1 - 1e-12) - 1e-9
    if not count < 2**62:
        raise InputError(f"dt = {dt:.3g} is too small for an interval of length {abs(span):.3g}: use a larger step")
    return max(math.ceil(count), int(span != 0))
