"""What the loop leaves behind: a record of each attempt, values at saved times, dense output, times of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .step import evaluate_dense
from .system import State, map_tensors


class StepRecord(NamedTuple):
    """One attempt as it was carried out: which samples moved, from where, how far."""

    rows: Tensor | None  # indices of these samples; None for all
    t: Tensor
    t_next: Tensor
    h: Tensor  # 0 where a sample did not move
    z: State  # before the step
    theta: Sequence[Tensor] = ()
    dense: State | None = None
    slopes: tuple[State, ...] = ()
    number: Tensor | None = None  # steps that each sample had taken before


class Recorder(Protocol):
    """An object that receives each attempt."""

    def add(self, record: StepRecord) -> None:
        """Receive one attempt."""
        ...


class Window(NamedTuple):
    """The saved times that one step passes: columns [low, high), and which of them for each sample."""

    low: int
    high: int
    inside: Tensor  # (rows, high - low)
    sigma: Tensor  # position in the step, 0 to 1


def find_window(ts: Tensor, record: StepRecord, *, cut: bool = True) -> Window | None:
    """The saved times (batch, T) that a step passes; None if it is known that there are none.

    On CPU the window is cut to the columns that matter; on CUDA that would synchronise.
    """
    if ts.shape[1] == 0:
        return None
    if record.rows is not None:
        ts = ts[record.rows]
    t, t_next, h = record.t[:, None], record.t_next[:, None], record.h[:, None]
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
    return Window(low, high, inside, sigma)


def mask_like(mask: Tensor, leaf: Tensor) -> Tensor:
    """A (batch, T) mask with as many dimensions as (batch, T, ...) values of this (batch, ...) leaf."""
    return mask.reshape(*mask.shape, *[1] * (leaf.dim() - 1))


class Passed(NamedTuple):
    """Values at the saved times that one attempt passes, with their graph."""

    rows: Tensor | None  # indices of these samples; None for all
    window: Window
    values: State  # each (rows, columns, ...)


class SavedValues:
    """Fills in the values at the saved times as the loop passes them; those that have a graph go to `passed`, too."""

    def __init__(self, ts: Tensor, t0: Tensor, z: Sequence[Tensor], passed: list[Passed] | None):
        self.ts, self.passed = ts, passed
        at_start = ts == t0[:, None]
        self.values = tuple(
            torch.where(mask_like(at_start, leaf), leaf[:, None], torch.full_like(leaf[:, None], torch.nan))
            for leaf in z
        )

    def add(self, record: StepRecord) -> None:
        window = find_window(self.ts, record)
        if window is None or record.dense is None:
            return
        columns = slice(window.low, window.high)
        passed = evaluate_dense(record.z, record.dense, window.sigma)
        if self.passed is not None and torch.is_grad_enabled():
            self.passed.append(Passed(record.rows, window, passed))
        with torch.no_grad():
            for value, new in zip(self.values, passed, strict=True):
                mask = mask_like(window.inside, new[:, 0])
                if record.rows is None:
                    value[:, columns] = torch.where(mask, new, value[:, columns])
                else:
                    value[record.rows, columns] = torch.where(mask, new, value[record.rows, columns])


class DenseRecorder:
    """Keeps the state and the coefficients of every step, for dense output."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        self.records.append(map_tensors(Tensor.detach, record))

    def stacked(self) -> tuple[State, State]:
        """States (n, batch, ...) and coefficients (n, batch, powers, ...)."""
        shown = len(self.records[0].dense or ())
        states = tuple(torch.stack([it.z[i] for it in self.records]) for i in range(shown))
        return states, tuple(torch.stack([(it.dense or ())[i] for it in self.records]) for i in range(shown))


class StepTimes:
    """Keeps the times at which accepted steps end."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        self.records.append(StepRecord(record.rows, record.t_next, record.t_next, record.h, (), number=record.number))

    def table(self, t: Tensor, accepted: Tensor) -> Tensor:
        """(batch, n + 1): 0 and the times after each of a sample's accepted steps, then nan. `t`: the last times."""
        everyone = torch.arange(len(t), device=t.device)
        table = t.new_full((len(t), 1 + int(accepted.max())), torch.nan)
        table[:, 0] = 0.0
        if self.records:
            moved = torch.cat([it.h for it in self.records]) != 0
            sample = torch.cat([everyone if it.rows is None else it.rows for it in self.records])[moved]
            number = torch.cat([it.number for it in self.records if it.number is not None])[moved].long()
            table[sample, number + 1] = torch.cat([it.t_next for it in self.records])[moved]
        return table


def join_tables(tables: Sequence[Tensor]) -> Tensor:
    """Tables of times side by side, without the nan between and without times that occur twice."""
    joined = torch.cat(list(tables), 1)
    twice = torch.zeros_like(joined, dtype=torch.bool)
    place = torch.arange(joined.shape[1], device=joined.device)
    last = torch.where(joined.isnan(), -1, place).cummax(1).values[:, :-1]
    before = torch.where(last >= 0, joined.gather(1, last.clamp_min(0)), torch.nan)
    twice[:, 1:] = joined[:, 1:] == before
    there = ~joined.isnan() & ~twice
    order = torch.argsort(there, dim=1, descending=True, stable=True)
    counts = there.sum(1, keepdim=True)
    return torch.where(place < counts, joined.gather(1, order), torch.nan)[:, : int(counts.max())]


class Observer:
    """Calls the user's callback after each attempt, with copies of the whole batch: dropped samples included."""

    def __init__(
        self, callback: Callable[[Tensor, Any, Tensor], Any], t0: Tensor, z: State, nest: Callable[[State], Any]
    ):
        self.callback, self.t0, self.nest = callback, t0, nest
        self.t, self.z = t0, z

    def observe(self, rows: Tensor | None, t: Tensor, z: State, moved: Tensor) -> None:
        """Take the times since t0 and the states after an attempt, and which samples moved."""
        accepted = moved
        if rows is None:
            self.t, self.z = self.t0 + t, tuple(leaf.clone() for leaf in z[: len(self.z)])
        else:
            self.t = self.t.index_copy(0, rows, self.t0[rows] + t)
            self.z = tuple(old.index_copy(0, rows, new) for old, new in zip(self.z, z, strict=False))
            accepted = torch.zeros_like(self.t, dtype=torch.bool).index_copy(0, rows, moved)
        self.callback(self.t.clone(), self.nest(tuple(leaf.clone() for leaf in self.z)), accepted)
