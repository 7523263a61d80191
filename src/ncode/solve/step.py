"""One Runge-Kutta step of a batch: the unit on which the loop and all gradients are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> Stepped:
        tableau, dtype = self.tableau, self.field.dtype
        hs = like(h.to(dtype), z)

        def slope(c: float, at: State) -> State:
            return self.field((t + c * h if c else t).to(dtype), at, theta)

        slopes = [slope(0.0, z) if first is None else first]
        for c, row in zip(tableau.c[1:], tableau.a[1:], strict=True):
            slopes.append(slope(c, advance(z, hs, slopes, row)))
        z1 = advance(z, hs, slopes, tableau.b)

        end = slope(1.0, z1) if self.needs_end else None
        if end is not None:
            slopes.append(end)
        rows = (row for row in (tableau.error, tableau.error_low) if row) if self.estimate else ()
        errors = tuple(tuple(hl * e for hl, e in zip(hs, weigh(slopes, row), strict=True)) for row in rows)
        kept = tuple(slopes[: tableau.stages]) if self.slopes else ()
        return Stepped(z1, end, errors, self._dense(slopes, slope, z, hs) if self.dense else None, kept)

    def _dense(self, slopes: list[State], slope, z: State, hs: Sequence[Tensor]) -> State:
        """Coefficients of the powers of sigma, for x and the driven control (the cost is not interpolated)."""
        for c, row in zip(self.tableau.extra_c, self.tableau.extra_a, strict=True):
            slopes.append(slope(c, advance(z, hs, slopes, row)))
        powers = len(self.tableau.dense[0])
        shown = 1 + self.field.driven
        columns = [
            weigh([k[:shown] for k in slopes], tuple(row[q] for row in self.tableau.dense))
            for q in range(powers)
        ]
        return tuple(
            torch.stack([hs[leaf] * column[leaf] for column in columns], dim=1) for leaf in range(shown)
        )


def like(h: Tensor, z: State) -> tuple[Tensor, ...]:
    """A (batch,) tensor with as many dimensions as each leaf of z."""
    return tuple(h.reshape(-1, *[1] * (leaf.dim() - 1)) for leaf in z)


def weigh(slopes: Sequence[State], row: Sequence[float]) -> State:
    """sum_i row_i * slope_i, leaf by leaf."""
    used = [(w, k) for w, k in zip(row, slopes, strict=False) if w]
    (w0, k0), rest = used[0], used[1:]
    sums = [leaf * w0 if w0 != 1.0 else leaf for leaf in k0]
    for w, k in rest:
        sums = [torch.add(s, leaf, alpha=w) for s, leaf in zip(sums, k, strict=True)]
    return tuple(sums)


def advance(z: State, hs: Sequence[Tensor], slopes: Sequence[State], row: Sequence[float]) -> State:
    """z + h * sum_i row_i * slope_i."""
    return tuple(
        torch.addcmul(leaf, h, total) for leaf, h, total in zip(z, hs, weigh(slopes, row), strict=True)
    )


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
