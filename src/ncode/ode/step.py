"""One Runge-Kutta step of a batch: the unit on which the loop and all gradients are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .field import RightHandSide, State
from .tableau import Tableau


class Stepped(NamedTuple):
    """What one step returns."""

    z: State  # at t + h
    end: State | None  # slope at t + h
    errors: tuple[State, ...]  # one or two estimates of the error, each like z; none with fixed steps
    dense: State | None  # dense output's coefficients of sigma, sigma^2, ..., each (batch, powers, ...)
    slopes: tuple[State, ...]  # of the stages, where asked for


@dataclass(frozen=True, eq=False)
class Step:
    """A pure function (t, h, z, theta, first slope) -> Stepped, for one field and method.

    `t` and `h` are (batch,) in the precision of time, h negative for a solve backward in time and 0 for a sample that
    stands still. `estimate` asks for the error, `dense` for the coefficients of dense output of x and theta, `slopes`
    for the slopes of the stages.
    """

    field: RightHandSide
    tableau: Tableau
    estimate: bool = False
    dense: bool = False
    slopes: bool = False

    @property
    def needs_end(self) -> bool:
        """Whether the slope at the end is evaluated; it is then handed on as the next step's first."""
        tableau = self.tableau
        return (self.estimate and tableau.error_needs_end) or (self.dense and tableau.dense_needs_end)

    @property
    def evaluations(self) -> int:
        """Evaluations of the field in one step: where the end slope is handed on, it replaces the next first."""
        return self.tableau.stages + (len(self.tableau.extra_a) if self.dense else 0)

    def __call__(self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None) -> Stepped:
        tableau, dtype = self.tableau, self.field.dtype
        hs, slope = like(h.to(dtype), z), self.field.bind(theta)
        times = self._times(t, h)

        slopes = [slope(times[0], z) if first is None else first]
        for time, row in zip(times[1:], tableau.a[1:], strict=False):
            slopes.append(slope(time, advance(z, hs, slopes, row)))
        z1 = advance(z, hs, slopes, tableau.b)
        kept = tuple(slopes) if self.slopes else ()

        end = slope(times[tableau.stages], z1) if self.needs_end else None
        if end is not None:
            slopes.append(end)
        rows = (row for row in (tableau.error, tableau.error_low) if row) if self.estimate else ()
        errors = tuple(weigh(slopes, row, hs) for row in rows)
        dense = None
        if self.dense:
            for time, row in zip(times[tableau.stages + 1 :], tableau.extra_a, strict=True):
                slopes.append(slope(time, advance(z, hs, slopes, row)))
            dense = self._dense(slopes, hs)
        return Stepped(z1, end, errors, dense, kept)

    def _times(self, t: Tensor, h: Tensor) -> Sequence[Tensor]:
        """The times of the stages, of the end and of dense output's further stages."""
        tableau = self.tableau
        nodes = (*tableau.c, 1.0, *(tableau.extra_c if self.dense else ()))
        if torch.compiler.is_compiling():
            return [(t + c * h).to(self.field.dtype) for c in nodes]
        # All at once: in eager mode each small operation counts.
        return torch.addcmul(t, _column(nodes, t.dtype, t.device), h).to(self.field.dtype).unbind()

    def _dense(self, slopes: Sequence[State], hs: Sequence[Tensor]) -> State:
        """Coefficients of the powers of sigma, for x and the driven control (the cost is not interpolated)."""
        shown = 1 + self.field.driven
        slopes, hs = [k[:shown] for k in slopes], hs[:shown]
        columns = [weigh(slopes, column, hs) for column in zip(*self.tableau.dense, strict=True)]
        return tuple(torch.stack(leaves, dim=1) for leaves in zip(*columns, strict=True))


@lru_cache
def _column(nodes: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a column on the device, made once: making it anew would wait for the GPU."""
    return torch.tensor(nodes, dtype=dtype, device=device)[:, None]


def like(h: Tensor, z: State) -> tuple[Tensor, ...]:
    """A (batch,) tensor with as many dimensions as each leaf of z."""
    return tuple(h.reshape(-1, *[1] * (leaf.dim() - 1)) for leaf in z)


def total(slopes: Sequence[State], row: Sequence[float]) -> tuple[float, State]:
    """sum_i row_i * slope_i, as a factor and a sum: taking the first weight out saves an operation."""
    (w0, sums), *rest = [(w, k) for w, k in zip(row, slopes, strict=False) if w]
    for w, k in rest:
        sums = tuple(torch.add(s, leaf, alpha=w / w0) for s, leaf in zip(sums, k, strict=True))
    return w0, sums


def weigh(slopes: Sequence[State], row: Sequence[float], hs: Sequence[Tensor]) -> State:
    """h * sum_i row_i * slope_i."""
    factor, sums = total(slopes, row)
    return tuple(s * (h * factor) for s, h in zip(sums, hs, strict=True))


def advance(z: State, hs: Sequence[Tensor], slopes: Sequence[State], row: Sequence[float]) -> State:
    """z + h * sum_i row_i * slope_i."""
    factor, sums = total(slopes, row)
    return tuple(torch.addcmul(leaf, h, s, value=factor) for leaf, h, s in zip(z, hs, sums, strict=True))


def evaluate(z: State, coefficients: State, sigma: Tensor) -> State:
    """Dense output at sigma (batch, T): each leaf (batch, T, ...)."""
    out = []
    for leaf, powers in zip(z, coefficients, strict=False):
        at = sigma.to(leaf.real.dtype).reshape(*sigma.shape, *[1] * (leaf.dim() - 1))
        value = powers[:, -1:].expand(-1, sigma.shape[1], *[-1] * (leaf.dim() - 1))
        for q in range(powers.shape[1] - 2, -1, -1):
            value = torch.addcmul(powers[:, q : q + 1], value, at)
        out.append(torch.addcmul(leaf[:, None], value, at))
    return tuple(out)
