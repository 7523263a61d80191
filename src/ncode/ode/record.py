"""What the loop leaves behind: step records, values at saved times, dense output, and the tape for gradients.

The loop records attempts, in which some samples move and others are rejected or done. The tape returns steps: step n of
every sample side by side, whenever each was taken, with the samples ordered by the number of steps they took. So those
that take part in step n are the first `size` ones, and nothing is spent on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .step import evaluate_dense
from .system import State, map_tensors, where


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

    def __init__(self, ts: Tensor, t0: Tensor, z: Sequence[Tensor], passed: list[Passed] | None = None):
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
            table[sample, number + 1] = torch.cat([it.t for it in self.records])[moved]
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


class _Entry(NamedTuple):
    """One attempt; `z` holds the states of the rows in `kept` (of all rows where that is None)."""

    record: StepRecord
    kept: Tensor | None
    z: State


class _Taken(NamedTuple):
    """Accepted steps, one after the other."""

    sample: Tensor
    number: Tensor  # steps that the sample had taken before
    row: Tensor  # its row among those of all attempts


class Tape:
    """Records accepted steps: times and step sizes of all, states of every `every`-th step of a sample."""

    def __init__(self, every: int = 1):
        self.every = every
        self.entries: list[_Entry] = []

    def add(self, record: StepRecord) -> None:
        assert record.number is not None
        kept, z = None, record.z
        if self.every > 1:
            kept = ((record.h != 0) & (record.number % self.every == 0)).nonzero().flatten()
            z = z if len(kept) == len(record.h) else tuple(leaf.index_select(0, kept) for leaf in z)
        z = tuple(leaf.detach() for leaf in z)
        self.entries.append(_Entry(record._replace(z=(), theta=(), dense=None, slopes=()), kept, z))

    def steps(
        self,
        ok: Tensor,
        z0: State,
        *,
        may_reorder: Callable[[], bool],
        replacement: Callable[[Tensor], State],
        bucket_size: Callable[[int, int], int] | None = None,
    ) -> Steps:
        """The steps of the samples that did not fail.

        Where samples took different steps and `may_reorder()` is true, the number of samples shrinks from step to step,
        down to the sizes that `bucket_size` (of a backend) allows: then some samples have no step n, and stand still at
        their last state. Otherwise every sample stays in its place; those that failed stand at `replacement(ok)`.
        """
        together = self._common_attempts(ok, False)
        if together is None and not may_reorder():
            fixed = None if bool(ok.all()) else (ok, replacement(ok))
            together = self._common_attempts(ok, True)
            return self._uneven(ok, z0, True, None, fixed) if together is None else self._even(together, len(ok), fixed)
        return self._uneven(ok, z0, False, bucket_size) if together is None else self._even(together, len(ok))

    def _even(self, together: Sequence[int], batch: int, fixed: tuple[Tensor, State] | None = None) -> EvenSteps:
        records = [self.entries[attempt].record._replace(z=self.entries[attempt].z) for attempt in together]
        return EvenSteps([_hold(record, fixed) for record in records], batch, together, fixed)

    def _uneven(
        self,
        ok: Tensor,
        z0: State,
        keep_order: bool,
        bucket_size: Callable[[int, int], int] | None,
        fixed: tuple[Tensor, State] | None = None,
    ) -> UnevenSteps:
        """The steps of samples that took different steps: tables of where each one's step n is recorded."""
        batch, every, taken = len(ok), self.every, self._taken(ok, keep_order)
        everyone = torch.arange(batch, device=ok.device)
        counts = torch.bincount(taken.sample, minlength=batch)
        sizes: list[int] = torch.bincount(taken.number).tolist()
        samples = batch if keep_order or not sizes else sizes[0]
        order, rank = None, everyone
        if keep_order:
            sizes = [batch] * len(sizes)
        else:
            order = torch.argsort(counts, descending=True, stable=True)[:samples]
            rank = torch.zeros_like(everyone).scatter_(0, order, everyone[:samples])
            counts = counts[order]
            if bucket_size is not None and sizes:
                sizes = [bucket_size(batch, size) for size in sizes]
                order, counts = _padded(order, sizes[0]), _padded(counts, sizes[0], value=0)
        rank = rank[taken.sample]
        source = _table(rank, taken.number, taken.row, len(sizes), torch.zeros_like(counts))
        t, t_next, h = (self._all(name, ok.device)[source] for name in ("t", "t_next", "h"))
        moving = torch.arange(len(sizes), device=ok.device)[:, None] < counts
        states, position = self._states(z0)
        held = taken.number % every == 0
        # A sample that never moved stands at its start.
        start = len(states[0]) - batch + (everyone if order is None else order)
        place, height = position[taken.row[held]], -(-len(sizes) // every)
        return UnevenSteps(
            sizes=sizes,
            order=order,
            samples=samples,
            counts=counts,
            t=torch.where(moving, t, t_next),
            t_next=t_next,
            h=torch.where(moving, h, 0.0),
            sources=source,
            states=states,
            kept=_table(rank[held], taken.number[held] // every, place, height, start),
            every=every,
            fixed=fixed,
        )

    def _taken(self, ok: Tensor, keep_order: bool) -> _Taken:
        """Every step that counts, in the order in which they were taken."""
        records, everyone = [entry.record for entry in self.entries], torch.arange(len(ok), device=ok.device)
        sample = torch.cat([everyone[:0], *(everyone if it.rows is None else it.rows for it in records)])
        number = torch.cat([everyone[:0].int(), *(it.number for it in records if it.number is not None)]).long()
        row = ((self._all("h", ok.device) != 0) & (ok[sample] | keep_order)).nonzero().flatten()
        return _Taken(sample[row], number[row], row)

    def _all(self, name: str, device: torch.device) -> Tensor:
        """One time of all attempts, row after row."""
        parts = [getattr(entry.record, name) for entry in self.entries]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=device)

    def _common_attempts(self, ok: Tensor, keep_order: bool) -> list[int] | None:
        """The attempts that moved samples, if each moved all of them or none: then attempts are steps."""
        if any(entry.record.rows is not None for entry in self.entries):
            return None
        # All counts in one tensor: on CUDA each read synchronises.
        steps = [entry.record.h for entry in self.entries]
        asked = torch.stack([*steps, ok.to(steps[0].dtype) if steps else ok])
        *moved, good = torch.count_nonzero(asked, dim=1).tolist()
        batch = len(ok)
        if any(count not in (0, batch) for count in moved) or not (keep_order or good == batch):
            return None
        return [attempt for attempt, count in enumerate(moved) if count]

    def _states(self, z0: State) -> tuple[State, Tensor]:
        """All kept states, row after row and z0 last; and where the state of each attempt's row lies."""
        device, places, base = z0[0].device, [], 0
        states = tuple(torch.cat([*(e.z[i] for e in self.entries), leaf.detach()]) for i, leaf in enumerate(z0))
        if all(entry.kept is None for entry in self.entries):
            return states, torch.arange(len(states[0]) - len(z0[0]), device=device)
        for entry in self.entries:
            place = torch.zeros(len(entry.record.h), dtype=torch.long, device=device)
            count = len(entry.z[0])
            rows = torch.arange(base, base + count, device=device)
            places.append(rows if entry.kept is None else place.scatter_(0, entry.kept, rows))
            base += count
        return states, torch.cat(places)


def _hold(record: StepRecord, fixed: tuple[Tensor, State] | None) -> StepRecord:
    """The step with failed samples held at their replacement."""
    if fixed is None:
        return record
    ok, z = fixed
    return record._replace(h=torch.where(ok, record.h, 0.0), z=where(ok, record.z, z) if record.z else ())


def _table(rank: Tensor, number: Tensor, value: Tensor, height: int, empty: Tensor) -> Tensor:
    """(height, ranks): value at (number, rank), and below a rank's last entry that entry again; `empty` where none."""
    table = torch.zeros(height, len(empty), dtype=torch.long, device=empty.device)
    filled = torch.zeros_like(table, dtype=torch.bool)
    table[number, rank], filled[number, rank] = value, True
    depth = filled.sum(0)
    last = torch.where(depth > 0, table.gather(0, (depth - 1).clamp_min(0)[None])[0], empty) if height else empty
    return torch.where(filled, table, last)


def _padded(leaf: Tensor, size: int, value: int | None = None) -> Tensor:
    """A vector made longer, with a value or with its own first element."""
    more = size - len(leaf)
    if not more:
        return leaf
    return torch.cat([leaf, leaf[:1].expand(more) if value is None else leaf.new_full((more,), value)])


@dataclass(frozen=True)
class EvenSteps:
    """Steps from first to last, which all samples took side by side. The fields mean what they do in `UnevenSteps`."""

    records: list[StepRecord]
    samples: int
    attempts: Sequence[int]  # their positions among all attempts
    fixed: tuple[Tensor, State] | None = None
    order: None = None

    @property
    def sizes(self) -> list[int]:
        return [self.samples] * len(self.records)

    def reached(self, start: Tensor) -> Tensor:
        """The time at which the last step ends; `start` without steps."""
        return self.records[-1].t_next if self.records else start

    @property
    def counts(self) -> Tensor:
        return torch.full((self.samples,), len(self.records), device=self.records[0].h.device if self.records else None)

    def step(self, n: int) -> StepRecord:
        return self.records[n]

    def source(self, n: int) -> Tensor:
        first = self.attempts[n] * self.samples
        return torch.arange(first, first + self.samples, device=self.records[n].h.device)


@dataclass(frozen=True)
class UnevenSteps:
    """Steps that are gathered from attempts when they are needed."""

    sizes: list[int]  # number of samples that take part in each step: the first ones in the order
    order: Tensor | None  # indices of the samples; None for all in their places
    samples: int  # number of samples in the order; what follows them is padding
    counts: Tensor  # number of steps of each of them
    t: Tensor  # (steps, samples), as all times here
    t_next: Tensor
    h: Tensor
    sources: Tensor  # rows among those of all attempts
    states: State
    kept: Tensor  # (steps / every, samples): rows of the states
    every: int
    fixed: tuple[Tensor, State] | None = None  # which samples did not fail, and the states of those that did

    def step(self, n: int) -> StepRecord:
        """Step n, with its states if they were kept."""
        size = self.sizes[n]
        t, t_next, h = (time[n, :size] for time in (self.t, self.t_next, self.h))
        z: State = ()
        if n % self.every == 0:
            z = tuple(leaf.index_select(0, self.kept[n // self.every, :size]) for leaf in self.states)
        return _hold(StepRecord(None, t, t_next, h, z), self.fixed)

    def source(self, n: int) -> Tensor:
        """The rows of step n among those of all attempts."""
        return self.sources[n, : self.sizes[n]]


Steps = EvenSteps | UnevenSteps
