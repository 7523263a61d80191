"""What the loop leaves behind: saved values and dense output. The tape for gradients has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .field import State
from .step import evaluate


class Moves(NamedTuple):
    """One attempt as it was carried out: who moved, from where, how far."""

    rows: Tensor | None  # which samples these are; None for all
    t: Tensor
    t_next: Tensor
    h: Tensor  # 0 where a sample did not move
    z: State  # before the move
    theta: Sequence[Tensor] = ()
    dense: State | None = None
    slopes: tuple[State, ...] = ()
    number: Tensor | None = None  # how many steps each sample had taken before


class Recorder(Protocol):
    """Anything that wants to see each attempt."""

    def add(self, moves: Moves) -> None:
        """See one attempt."""
        ...


@dataclass
class Window:
    """The saved times that one attempt passed: columns [low, high), and which of them for each sample."""

    low: int
    high: int
    inside: Tensor  # (rows, high - low)
    sigma: Tensor  # where in the step, 0 to 1

    @classmethod
    def of(cls, ts: Tensor, moves: Moves, *, cut: bool = True) -> Window | None:
        """Find them. On CPU the window is cut to the columns that matter; on CUDA that would mean waiting."""
        if ts.shape[1] == 0:
            return None
        if moves.rows is not None:
            ts = ts[moves.rows]
        t, t_next, h = moves.t[:, None], moves.t_next[:, None], moves.h[:, None]
        forward = h >= 0
        inside = torch.where(forward, (ts > t) & (ts <= t_next), (ts < t) & (ts >= t_next)) & (h != 0)
        low, high = 0, ts.shape[1]
        if cut and ts.device.type == "cpu" and not torch.compiler.is_compiling():
            columns = inside.any(0).nonzero()
            if len(columns) == 0:
                return None
            low, high = int(columns[0]), int(columns[-1]) + 1
        inside = inside[:, low:high]
        sigma = torch.where(inside, (ts[:, low:high] - t) / torch.where(h == 0, 1.0, h), 0.0)
        return cls(low, high, inside, sigma)


class Saver:
    """Fills the values at the saved times as the loop passes them."""

    def __init__(self, ts: Tensor, t0: Tensor, z: Sequence[Tensor]):
        self.ts = ts
        at_start = ts == t0[:, None]
        self.values = tuple(
            torch.where(spread(at_start, leaf), leaf[:, None], torch.full_like(leaf[:, None], torch.nan)) for leaf in z
        )

    def add(self, moves: Moves) -> None:
        window = Window.of(self.ts, moves)
        if window is None or moves.dense is None:
            return
        columns = slice(window.low, window.high)
        passed = evaluate(moves.z, moves.dense, window.sigma)
        for value, new in zip(self.values, passed, strict=True):
            mask = spread(window.inside, new[:, 0])
            if moves.rows is None:
                value[:, columns] = torch.where(mask, new, value[:, columns])
            else:
                value[moves.rows, columns] = torch.where(mask, new, value[moves.rows, columns])


def spread(mask: Tensor, leaf: Tensor) -> Tensor:
    """A (batch, T) mask with as many dimensions as (batch, T, ...) values of this leaf."""
    return mask.reshape(*mask.shape, *[1] * (leaf.dim() - 1))


class DenseTape:
    """Every step's state and coefficients: what dense output is made of."""

    def __init__(self) -> None:
        self.moves: list[Moves] = []

    def add(self, moves: Moves) -> None:
        self.moves.append(moves)

    def stacked(self) -> tuple[State, State]:
        """States (n, batch, ...) and coefficients (n, batch, powers, ...)."""
        shown = len(self.moves[0].dense or ())
        states = tuple(torch.stack([m.z[i] for m in self.moves]) for i in range(shown))
        return states, tuple(torch.stack([(m.dense or ())[i] for m in self.moves]) for i in range(shown))
