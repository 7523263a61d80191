"""The "discrete" gradient: exact backpropagation through the accepted steps, with one state a step in memory.

The forward pass ran without autograd and left a tape of (t, h, state). Backward walks the tape in reverse, takes each
step again with autograd switched on, and pulls the gradient through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from .ambient import Ambient
from .join import Outputs
from .problem import Problem
from .record import Moves, Tape, Window, spread
from .retake import Stepper, Times, retake
from .solution import Stats
from .status import Status
from .step import Step, like


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs of which each sample has its own row: leaves of the constant control, and times."""

    theta: tuple[Tensor, ...]
    times: Times

    @classmethod
    def of(cls, problem: Problem, rows: Tensor | None, wanted: Sequence[bool]) -> Rows:
        """Stand-ins for some samples' rows, each wanting a gradient or not."""
        every = [*problem.theta, problem.t0, problem.t1, *(() if problem.ts is None else (problem.ts,))]
        leaves = [
            (leaf.detach() if rows is None else leaf.detach().index_select(0, rows)).requires_grad_(want)
            for leaf, want in zip(every, wanted, strict=True)
        ]
        count = len(problem.theta)
        t0, t1, *ts = leaves[count:]
        return cls(tuple(leaves[:count]), Times(t0, t1, ts[0] if ts else None))

    @property
    def wanted(self) -> list[Tensor]:
        """Those that want a gradient."""
        return [leaf for leaf in (*self.theta, *self.times) if leaf is not None and leaf.requires_grad]


@dataclass(eq=False)
class Discrete:
    """One solve: what forward leaves for backward. It holds no output, or memory would never be freed."""

    problem: Problem
    rooted: bool  # whether samples must keep their places, since a closure may hold rows that belong to them
    prepare: Callable[[Step], Stepper]
    tape: Tape
    status: Tensor
    stats: Stats
    ambient: Ambient

    def pull(
        self, wanted: Sequence[bool], trained: Sequence[Tensor], grads: Outputs
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Gradients for z0, for the wanted rows and for the trained tensors, from those of the outputs."""
        problem = self.problem
        ok = self.status == Status.OK
        adjoint = [
            torch.zeros_like(leaf) if grad is None else torch.where(like(ok, (leaf,))[0], grad, 0)
            for leaf, grad in zip(problem.z0, grads.z, strict=True)
        ]
        rows_total = [torch.zeros_like(leaf) for leaf in Rows.of(problem, None, wanted).wanted]
        total: list[Tensor | None] = [None] * len(trained)
        spent = torch.zeros_like(self.status)
        lost = not self.rooted and not bool(ok.all())
        number = len(self.tape.moves)
        for _, group in groupby(reversed(self.tape.moves), key=lambda move: id(move.rows)):
            moves = list(group)[::-1]
            number -= len(moves)
            rows = moves[0].rows
            if lost:  # what a failed sample met may not be finite: leave it out
                good = (ok if rows is None else ok[rows]).nonzero().flatten()
                rows = good if rows is None else rows[good]
                moves = [move_of(move, good, rows) for move in moves]
            stand_in = Rows.of(problem, rows, wanted)
            part = adjoint if rows is None else [leaf[rows] for leaf in adjoint]
            sums: list[Tensor | None] = [None] * len(rows_total)
            for move, offset in self._reversed(moves, stand_in.theta):
                part, got, evaluations = self._pull_step(
                    move, number + offset, stand_in, trained, part, grads
                )
                accumulate(sums, got[: len(sums)])
                accumulate(total, got[len(sums) :])
                made = (move.h != 0).int() * evaluations
                spent = spent + made if rows is None else spent.index_add(0, rows, made)
            adjoint = (
                part
                if rows is None
                else [a.index_copy(0, rows, b) for a, b in zip(adjoint, part, strict=True)]
            )
            for whole, some in zip(rows_total, sums, strict=True):
                if some is not None:
                    whole.add_(some) if rows is None else whole.index_add_(0, rows, some)
        self.stats.nfe_backward = spent
        if problem.ts is not None:
            at_start = problem.ts.detach() == problem.t0.detach()[:, None]
            for leaf, grad in enumerate(grads.saved):
                if grad is not None:
                    adjoint[leaf] = adjoint[leaf] + torch.where(spread(at_start, grad[:, 0]), grad, 0).sum(1)
        return adjoint, rows_total, total

    def _reversed(self, moves: list[Moves], theta: Sequence[Tensor]) -> Iterator[tuple[Moves, int]]:
        """Moves of the same samples from last to first, with their states; those not kept are computed again."""
        step = self.prepare(Step(self.problem.field, self.problem.tableau, estimate=False, dense=False))
        for base in range((len(moves) - 1) // self.tape.every * self.tape.every, -1, -self.tape.every):
            chunk = moves[base : base + self.tape.every]
            states = [chunk[0].z]
            for move in chunk[:-1]:
                with torch.no_grad(), self.ambient:
                    states.append(step(move.t, move.h, states[-1], theta, None).z)
            for offset in range(len(chunk) - 1, -1, -1):
                yield chunk[offset]._replace(z=states[offset]), base + offset

    def _pull_step(
        self,
        move: Moves,
        number: int,
        rows: Rows,
        trained: Sequence[Tensor],
        adjoint: list[Tensor],
        grads: Outputs,
    ) -> tuple[list[Tensor], list[Tensor | None], int]:
        """Pull the adjoint through one step: the adjoint before it, and gradients for rows and trained tensors."""
        problem = self.problem
        window = None
        if problem.ts is not None and any(grad is not None for grad in grads.saved):
            window = Window.of(problem.ts.detach(), move)
        dense = any(grad is not None for grad in grads.powers)
        with torch.enable_grad(), self.ambient:
            z = tuple(leaf.detach().requires_grad_() for leaf in move.z)
            stepped, passed = retake(
                problem, self.prepare, move, z, rows.theta, rows.times, window, dense=dense
            )
        outputs, cotangents = list(stepped.z), list(adjoint)
        for value, grad in zip(passed, grads.saved, strict=False):
            if grad is not None and window is not None:
                grad = (grad if move.rows is None else grad[move.rows])[:, window.low : window.high]
                outputs.append(value)
                cotangents.append(torch.where(spread(window.inside, grad[:, 0]), grad, 0))
        for value, grad in zip(stepped.dense or (), grads.powers, strict=False):
            if grad is not None:
                outputs.append(value)
                cotangents.append(grad[number])
        linked = [
            (output, grad) for output, grad in zip(outputs, cotangents, strict=True) if output.requires_grad
        ]
        got = torch.autograd.grad(
            [output for output, _ in linked],
            [*z, *rows.wanted, *trained],
            [grad for _, grad in linked],
            allow_unused=True,
        )
        moved = move.h != 0
        before = [
            after if grad is None else torch.where(like(moved, (grad,))[0], grad, after)
            for grad, after in zip(got, adjoint, strict=False)
        ]
        for leaf, grad in enumerate(grads.states):
            if grad is not None:
                before[leaf] = before[leaf] + grad[number]
        evaluations = problem.tableau.stages
        if dense or window is not None:
            evaluations += problem.tableau.dense_needs_end + len(problem.tableau.extra_a)
        return before, list(got[len(z) :]), evaluations


def accumulate(sums: list[Tensor | None], new: Sequence[Tensor | None]) -> None:
    """Add gradients, None standing for none."""
    for i, grad in enumerate(new):
        if grad is not None:
            old = sums[i]
            sums[i] = grad if old is None else old + grad


def move_of(move: Moves, good: Tensor, rows: Tensor) -> Moves:
    """The move of some of its samples."""
    t, t_next, h, *z = (leaf.index_select(0, good) for leaf in (move.t, move.t_next, move.h, *move.z))
    return Moves(rows, t, t_next, h, tuple(z))
