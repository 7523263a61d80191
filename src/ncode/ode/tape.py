"""The tape of accepted steps that gradients are pulled along.

The loop writes down attempts, in which some samples move and others are refused or done. The tape gives back steps:
step n of every sample side by side, whenever each was taken, with the samples in the order of how many steps they took.
So those that take part in step n are the first `size` ones, and nothing is spent on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .compiled import rung
from .field import State
from .record import Moves


class _Entry(NamedTuple):
    """One attempt on the tape; `z` holds the rows that `kept` points at (all rows where it is None)."""

    moves: Moves
    kept: Tensor | None
    z: State


class _Taken(NamedTuple):
    """Accepted steps, one after the other."""

    sample: Tensor  # whose
    number: Tensor  # how many the sample had taken before
    row: Tensor  # which row of all attempts


class Tape:
    """Records the accepted steps: times and step sizes of all, states of every `every`-th step of a sample."""

    def __init__(self, every: int = 1):
        self.every = every
        self.entries: list[_Entry] = []

    def add(self, moves: Moves) -> None:
        """Write one attempt down."""
        assert moves.number is not None
        kept, z = None, moves.z
        if self.every > 1:
            kept = ((moves.h != 0) & (moves.number % self.every == 0)).nonzero().flatten()
            z = z if len(kept) == len(moves.h) else tuple(leaf.index_select(0, kept) for leaf in z)
        self.entries.append(_Entry(moves._replace(z=(), theta=(), dense=None, slopes=()), kept, z))

    def steps(self, ok: Tensor, z0: State, *, rooted: bool, ladder: int | None = None) -> Steps:
        """The steps of the samples that did not fail.

        `rooted` leaves every sample in its place. Otherwise the number of samples shrinks from step to step, with a
        `ladder` only by that factor: then some samples have no step n, and stand still at their last state.
        """
        together = self._together(ok, rooted)
        if together is not None:
            moves = [self.entries[attempt].moves._replace(z=self.entries[attempt].z) for attempt in together]
            return Even(moves, len(ok), together)
        return self._uneven(ok, z0, rooted=rooted, ladder=ladder)

    def _uneven(self, ok: Tensor, z0: State, *, rooted: bool, ladder: int | None) -> Uneven:
        """The steps of samples that went different ways: tables of where each one's step n is written."""
        batch, every, taken = len(ok), self.every, self._taken(ok, rooted)
        everyone = torch.arange(batch, device=ok.device)
        counts = torch.bincount(taken.sample, minlength=batch)
        sizes: list[int] = torch.bincount(taken.number).tolist()
        samples = batch if rooted or not sizes else sizes[0]
        order, rank = None, everyone
        if rooted:
            sizes = [batch] * len(sizes)
        else:
            order = torch.argsort(counts, descending=True, stable=True)[:samples]
            rank = torch.zeros_like(everyone).scatter_(0, order, everyone[:samples])
            counts = counts[order]
            if ladder is not None and sizes:
                sizes = [rung(batch, size) for size in sizes]
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
        return Uneven(
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
        )

    def _taken(self, ok: Tensor, rooted: bool) -> _Taken:
        """Every step that counts, in the order in which they were taken."""
        moves, everyone = [entry.moves for entry in self.entries], torch.arange(len(ok), device=ok.device)
        sample = torch.cat([everyone[:0], *(everyone if m.rows is None else m.rows for m in moves)])
        number = torch.cat([everyone[:0].int(), *(m.number for m in moves if m.number is not None)]).long()
        row = ((self._all("h", ok.device) != 0) & (ok[sample] | rooted)).nonzero().flatten()
        return _Taken(sample[row], number[row], row)

    def _all(self, name: str, device: torch.device) -> Tensor:
        """One time of all attempts, row after row."""
        parts = [getattr(entry.moves, name) for entry in self.entries]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=device)

    def _together(self, ok: Tensor, rooted: bool) -> list[int] | None:
        """Which attempts moved samples, if each moved all of them or none: then attempts are steps."""
        if any(entry.moves.rows is not None for entry in self.entries):
            return None
        # All counts in one piece: on CUDA each question waits.
        steps = [entry.moves.h for entry in self.entries]
        asked = torch.stack([*steps, ok.to(steps[0].dtype) if steps else ok])
        *moved, good = torch.count_nonzero(asked, dim=1).tolist()
        batch = len(ok)
        if any(count not in (0, batch) for count in moved) or not (rooted or good == batch):
            return None
        return [attempt for attempt, count in enumerate(moved) if count]

    def _states(self, z0: State) -> tuple[State, Tensor]:
        """All kept states in one row after the other, z0 last; and where the state of each attempt's row lies."""
        device, places, base = z0[0].device, [], 0
        states = tuple(torch.cat([*(e.z[i] for e in self.entries), leaf.detach()]) for i, leaf in enumerate(z0))
        if all(entry.kept is None for entry in self.entries):
            return states, torch.arange(len(states[0]) - len(z0[0]), device=device)
        for entry in self.entries:
            place = torch.zeros(len(entry.moves.h), dtype=torch.long, device=device)
            count = len(entry.z[0])
            rows = torch.arange(base, base + count, device=device)
            places.append(rows if entry.kept is None else place.scatter_(0, entry.kept, rows))
            base += count
        return states, torch.cat(places)


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
    return (
        leaf
        if more <= 0
        else torch.cat([leaf, leaf[:1].expand(more) if value is None else leaf.new_full((more,), value)])
    )


class Steps(Protocol):
    """Steps of samples side by side, from the first."""

    @property
    def samples(self) -> int:
        """How many samples there are in the order; what follows them only fills a compiled shape."""
        ...

    @property
    def order(self) -> Tensor | None:
        """Which samples they are; None for all in their places."""
        ...

    @property
    def sizes(self) -> list[int]:
        """How many samples take part in each step: the first ones in that order."""
        ...

    @property
    def counts(self) -> Tensor:
        """How many steps each of them took."""
        ...

    def move(self, n: int) -> Moves:
        """Step n, with its states where they were kept."""
        ...

    def source(self, n: int) -> Tensor:
        """Which of all attempts' rows those of step n were."""
        ...


@dataclass(frozen=True)
class Even:
    """All samples took the same steps, side by side."""

    moves: list[Moves]
    samples: int
    attempts: Sequence[int]  # which of the attempts they were
    order: None = None

    @property
    def sizes(self) -> list[int]:
        return [self.samples] * len(self.moves)

    @property
    def counts(self) -> Tensor:
        return torch.full((self.samples,), len(self.moves), device=self.moves[0].h.device if self.moves else None)

    def move(self, n: int) -> Moves:
        return self.moves[n]

    def source(self, n: int) -> Tensor:
        first = self.attempts[n] * self.samples
        return torch.arange(first, first + self.samples, device=self.moves[n].h.device)


@dataclass(frozen=True)
class Uneven:
    """Steps that are gathered from attempts as they are asked for."""

    sizes: list[int]
    order: Tensor | None
    samples: int
    counts: Tensor  # of steps, in that order
    t: Tensor  # (steps, samples), as all times here
    t_next: Tensor
    h: Tensor
    sources: Tensor  # which row of all attempts each was
    states: State
    kept: Tensor  # (steps / every, samples): which row of the states
    every: int

    def move(self, n: int) -> Moves:
        size = self.sizes[n]
        t, t_next, h = (time[n, :size] for time in (self.t, self.t_next, self.h))
        z: State = ()
        if n % self.every == 0:
            z = tuple(leaf.index_select(0, self.kept[n // self.every, :size]) for leaf in self.states)
        return Moves(None, t, t_next, h, z)

    def source(self, n: int) -> Tensor:
        return self.sources[n, : self.sizes[n]]
