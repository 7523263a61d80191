"""The solution of a forward pass as a function of time, for an adjoint that cannot solve it backward in time.

What decays fast forward in time grows as fast backward, so that no method solves a stiff problem back to where it came
from. Its adjoint reads x(t) from dense output instead, which the forward pass keeps here.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..record import StepRecord
from ..step import evaluate_dense
from ..system import State, where


class _Tables(NamedTuple):
    """All accepted steps, row after row; and where the n-th step of each sample is among them."""

    begins: Tensor
    lengths: Tensor
    states: State
    powers: State
    ends: Tensor  # (batch, n), times the direction of the solve; infinite behind a sample's last step
    rows: Tensor  # (batch, n)
    counts: Tensor  # (batch,)


class Trajectory:
    """Records accepted steps with their dense output, and evaluates them at any time.

    Samples in the mask of `hold` have the given states at all times.
    """

    def __init__(self, batch: int, direction: Tensor):
        self.batch, self.direction = batch, direction
        self.records: list[StepRecord] = []
        self.held: tuple[Tensor, State] | None = None

    def add(self, record: StepRecord) -> None:
        assert record.number is not None and record.dense is not None
        moved = (record.h != 0).nonzero().flatten()
        sample = moved if record.rows is None else record.rows[moved]
        powers, z = record.dense, record.z[: len(record.dense)]
        if len(moved) < len(record.h):
            z, powers = (tuple(leaf.index_select(0, moved) for leaf in leaves) for leaves in (z, powers))
        t, t_next, h, number = (it.index_select(0, moved) for it in (record.t, record.t_next, record.h, record.number))
        self.records.append(StepRecord(sample, t, t_next, h, z, dense=powers, number=number))

    def hold(self, mask: Tensor, states: State) -> None:
        self.held = mask, states

    @cached_property
    def _tables(self) -> _Tables:
        records, device = self.records, self.direction.device
        sample = torch.cat([it.rows for it in records if it.rows is not None])
        number = torch.cat([it.number for it in records if it.number is not None]).long()
        counts = torch.bincount(sample, minlength=self.batch)
        shape = self.batch, int(counts.max())
        ends = torch.full(shape, torch.inf, dtype=self.direction.dtype, device=device)
        ends[sample, number] = torch.cat([it.t_next for it in records]) * self.direction[sample]
        rows = torch.zeros(shape, dtype=torch.long, device=device)
        rows[sample, number] = torch.arange(len(sample), device=device)
        states = tuple(map(torch.cat, zip(*(it.z for it in records), strict=True)))
        powers = tuple(map(torch.cat, zip(*(it.dense or () for it in records), strict=True)))
        begins, lengths = torch.cat([it.t for it in records]), torch.cat([it.h for it in records])
        return _Tables(begins, lengths, states, powers, ends, rows, counts)

    def at(self, sample: Tensor, t: Tensor) -> State:
        """x and the driven control of some samples at their times (rows,), counted from t0."""
        tables = self._tables
        place = (t.detach() * self.direction[sample])[:, None]
        number = torch.searchsorted(tables.ends[sample], place)
        number = torch.minimum(number, (tables.counts[sample] - 1).clamp_min(0)[:, None])
        row = tables.rows[sample].gather(1, number)[:, 0]
        sigma = (t - tables.begins[row]) / tables.lengths[row]
        states, powers = (tuple(leaf.index_select(0, row) for leaf in it) for it in (tables.states, tables.powers))
        values = tuple(leaf[:, 0] for leaf in evaluate_dense(states, powers, sigma[:, None]))
        if self.held is None:
            return values
        mask, fixed = self.held
        return where(mask[sample], tuple(leaf[sample] for leaf in fixed), values)
