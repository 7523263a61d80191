"""The tape of a forward pass, for gradients: accepted steps, as the loop took them and as backward wants them.

The loop records attempts, in which some samples move and others are rejected or done. The tape returns steps: step n of
every sample side by side, whenever each was taken, with the samples ordered by the number of steps they took. So those
that take part in step n are the first `size` ones, and nothing is spent on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .record import StepRecord
from .system import State, where


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
            held = None if bool(ok.all()) else (ok, replacement(ok))
            together = self._common_attempts(ok, True)
            return self._uneven(ok, z0, True, None, held) if together is None else self._even(together, len(ok), held)
        return self._uneven(ok, z0, False, bucket_size) if together is None else self._even(together, len(ok))

    def _even(self, together: Sequence[int], batch: int, held: tuple[Tensor, State] | None = None) -> EvenSteps:
        records = [self.entries[attempt].record._replace(z=self.entries[attempt].z) for attempt in together]
        return EvenSteps([_hold(record, held) for record in records], batch, together, held)

    def _uneven(
        self,
        ok: Tensor,
        z0: State,
        keep_order: bool,
        bucket_size: Callable[[int, int], int] | None,
        held: tuple[Tensor, State] | None = None,
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
        has_state = taken.number % every == 0
        # A sample that never moved stands at its start.
        start = len(states[0]) - batch + (everyone if order is None else order)
        place, height = position[taken.row[has_state]], -(-len(sizes) // every)
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
            kept=_table(rank[has_state], taken.number[has_state] // every, place, height, start),
            every=every,
            held=held,
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


def _hold(record: StepRecord, held: tuple[Tensor, State] | None) -> StepRecord:
    """The step with failed samples held at their replacement."""
    if held is None:
        return record
    ok, z = held
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
    held: tuple[Tensor, State] | None = None
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
    held: tuple[Tensor, State] | None = None  # which samples move, and the states at which others stand still

    def step(self, n: int) -> StepRecord:
        """Step n, with its states if they were kept."""
        size = self.sizes[n]
        t, t_next, h = (time[n, :size] for time in (self.t, self.t_next, self.h))
        z: State = ()
        if n % self.every == 0:
            z = tuple(leaf.index_select(0, self.kept[n // self.every, :size]) for leaf in self.states)
        return _hold(StepRecord(None, t, t_next, h, z), self.held)

    def source(self, n: int) -> Tensor:
        """The rows of step n among those of all attempts."""
        return self.sources[n, : self.sizes[n]]


Steps = EvenSteps | UnevenSteps
