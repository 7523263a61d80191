"""One Runge-Kutta step of a batch: the pure function that the loop and all gradients are written on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .system import RightHandSide, State, expand_like
from .tableau import Tableau


class StepResult(NamedTuple):
    """What one step returns."""

    z: State  # at t + h
    end: State | None  # slope at t + h
    errors: tuple[State, ...]  # one or two estimates of the error, each like z; none with fixed steps
    dense: State | None  # coefficients of sigma, sigma^2, ... of dense output, each (batch, powers, ...)
    slopes: tuple[State, ...]  # of the stages, if requested


@dataclass(frozen=True, eq=False)
class Step:
    """A pure function (t, h, z, theta, first slope) -> StepResult, for one system and method.

    `t` and `h` are (batch,) in the precision of time; h is negative for a solve backward in time and 0 for a sample
    that stands still. `estimate` requests the error, `dense` the coefficients of dense output of x and theta, `slopes`
    the slopes of the stages.
    """

    system: RightHandSide
    tableau: Tableau
    estimate: bool = False
    dense: bool = False
    slopes: bool = False

    @property
    def needs_end(self) -> bool:
        """Whether the slope at the end is evaluated; it is then the first slope of the next step."""
        tableau = self.tableau
        return (self.estimate and tableau.error_needs_end) or (self.dense and tableau.dense_needs_end)

    @property
    def evaluations(self) -> int:
        """Evaluations of the system per step; an end slope does not count, since it replaces the next first one."""
        return self.tableau.stages + (len(self.tableau.extra_a) if self.dense else 0)

    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> StepResult:
        tableau, slope = self.tableau, self.system.bind(theta)
        hs, times = expand_like(h.to(self.system.dtype), z), self._times(t, h)

        slopes = [slope(times[0], z) if first is None else first]
        for time, row in zip(times[1:], tableau.a[1:], strict=False):
            slopes.append(slope(time, advance(z, hs, slopes, row)))
        z1 = advance(z, hs, slopes, tableau.b)
        stages = tuple(slopes) if self.slopes else ()

        end = slope(times[tableau.stages], z1) if self.needs_end else None
        if end is not None:
            slopes.append(end)
        rows = (row for row in (tableau.error, tableau.error_low) if row) if self.estimate else ()
        errors = tuple(weighted_sum(slopes, row, hs) for row in rows)
        dense = None
        if self.dense:
            for time, row in zip(times[tableau.stages + 1 :], tableau.extra_a, strict=True):
                slopes.append(slope(time, advance(z, hs, slopes, row)))
            dense = self._dense(slopes, hs)
        return StepResult(z1, end, errors, dense, stages)

    def _times(self, t: Tensor, h: Tensor) -> Sequence[Tensor]:
        """The times of the stages, of the end and of dense output's further stages."""
        nodes = (*self.tableau.c, 1.0, *(self.tableau.extra_c if self.dense else ()))
        if torch.compiler.is_compiling():
            return [(t + c * h).to(self.system.dtype) for c in nodes]
        # One operation for all times: in eager mode each small operation counts.
        return torch.addcmul(t, _column(nodes, t.dtype, t.device), h).to(self.system.dtype).unbind()

    def _dense(self, slopes: Sequence[State], hs: Sequence[Tensor]) -> State:
        """Coefficients of the powers of sigma, for x and the driven control (the cost is not interpolated)."""
        shown = 1 + self.system.driven
        slopes, hs = [k[:shown] for k in slopes], hs[:shown]
        columns = [weighted_sum(slopes, column, hs) for column in zip(*self.tableau.dense, strict=True)]
        return tuple(torch.stack(leaves, dim=1) for leaves in zip(*columns, strict=True))


def _column(nodes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # A tensor made under inference_mode must not be cached: autograd could not save it later.
    return (_make_column if torch.is_inference_mode_enabled() else _cached_column)(nodes, dtype, device)


def _make_column(nodes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(nodes, dtype=dtype, device=device)[:, None]


_cached_column = lru_cache(_make_column)  # copying it to the GPU anew would synchronise


def _sum(slopes: Sequence[State], row: Sequence[float]) -> tuple[float, State]:
    """sum_i row_i * slope_i as a factor and a sum: factoring the first weight out saves an operation."""
    (w0, sums), *rest = [(w, k) for w, k in zip(row, slopes, strict=False) if w]
    for w, k in rest:
        sums = tuple(torch.add(s, leaf, alpha=w / w0) for s, leaf in zip(sums, k, strict=True))
    return w0, sums


def weighted_sum(slopes: Sequence[State], row: Sequence[float], hs: Sequence[Tensor]) -> State:
    """h * sum_i row_i * slope_i."""
    factor, sums = _sum(slopes, row)
    return tuple(s * (h * factor) for s, h in zip(sums, hs, strict=True))


def advance(z: State, hs: Sequence[Tensor], slopes: Sequence[State], row: Sequence[float]) -> State:
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
