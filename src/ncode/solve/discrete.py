"""The "discrete" gradient: exact backpropagation through the accepted steps, with one state a step in memory.

The forward pass ran without autograd and left a tape of (t, h, state). Backward walks the tape in reverse, takes each
step again with autograd switched on, and pulls the gradient through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .ambient import Ambient
from .join import Outputs
from .problem import Problem
from .record import Moves, Window, spread
from .retake import Stepper, Times, retake
from .solution import Stats
from .status import Status
from .step import Step, like
from .tape import Steps, Tape

Pulled = tuple[list[Tensor], list[Tensor], list[Tensor | None]]


@dataclass(eq=False)
class Discrete:
    """One solve: what forward leaves for backward. It holds no output, or memory would never be freed."""

    problem: Problem
    rooted: bool  # whether samples must keep their places, since a closure may hold rows that belong to them
    narrow: bool  # whether the number of samples may shrink from step to step
    prepare: Callable[[Step], Stepper]
    tape: Tape
    status: Tensor
    stats: Stats
    ambient: Ambient

    def pull(self, wanted: Sequence[bool], trained: Sequence[Tensor], grads: Outputs) -> Pulled:
        """Gradients for z0, for the wanted rows and for the trained tensors, from those of the outputs."""
        problem, ok = self.problem, self.status == Status.OK
        adjoint = [
            torch.zeros_like(leaf) if grad is None else torch.where(mask, grad, 0)
            for leaf, grad, mask in zip(problem.z0, grads.z, like(ok, problem.z0), strict=True)
        ]
        steps = self.tape.steps(ok, problem.z0, rooted=self.rooted, narrow=self.narrow)
        pull = _Pull(self, steps, wanted, trained, grads, adjoint)
        pull.walk()
        adjoint, rows = pull.scattered(adjoint)
        if problem.ts is not None:
            at_start = problem.ts.detach() == problem.t0.detach()[:, None]
            for leaf, grad in enumerate(grads.saved):
                if grad is not None:
                    adjoint[leaf] = adjoint[leaf] + torch.where(spread(at_start, grad[:, 0]), grad, 0).sum(1)
        self.stats.nfe_backward = pull.evaluations
        return adjoint, rows, pull.total


class _Pull:
    """The walk itself. Everything that has a row a sample is in the order of the steps."""

    def __init__(
        self,
        solve: Discrete,
        steps: Steps,
        wanted: Sequence[bool],
        trained: Sequence[Tensor],
        grads: Outputs,
        adjoint: Sequence[Tensor],
    ):
        self.solve, self.steps, self.wanted, self.trained = solve, steps, wanted, trained
        problem = solve.problem
        rows = [*problem.theta, problem.t0, problem.t1, *(() if problem.ts is None else (problem.ts,))]
        self.rows = [self._ordered(leaf.detach()) for leaf in rows]
        self.adjoint = [self._ordered(leaf) for leaf in adjoint]
        self.saved = [None if grad is None else self._ordered(grad) for grad in grads.saved]
        self.states = [None if grad is None else grad.flatten(0, 1) for grad in grads.states]
        self.powers = [None if grad is None else grad.flatten(0, 1) for grad in grads.powers]
        self.sums = [torch.zeros_like(row) for row, want in zip(self.rows, wanted, strict=True) if want]
        self.total: list[Tensor | None] = [None] * len(trained)
        self.evaluations = torch.zeros_like(solve.status)

    def walk(self) -> None:
        """Pull through all steps, from the last to the first."""
        for move in self._reversed():
            size = len(move.h)
            after = [leaf[:size] for leaf in self.adjoint]
            before, rows, trained, evaluations = self._pull(move, after)
            for whole, leaf in zip(self.adjoint, before, strict=True):
                whole[:size] = leaf
            for whole, grad in zip(self.sums, rows, strict=True):
                if grad is not None:
                    whole[:size] += grad
            for number, grad in enumerate(trained):
                if grad is not None:
                    old = self.total[number]
                    self.total[number] = grad if old is None else old + grad
            made = (move.h != 0).int() * evaluations
            order = self.steps.order
            self.evaluations = (
                self.evaluations + made
                if order is None
                else self.evaluations.index_add(0, order[:size], made)
            )

    def scattered(self, adjoint: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The adjoint at t0 and the rows' gradients, with every sample back in its place."""
        order, batch = self.steps.order, self.solve.problem.batch
        if order is None:
            return self.adjoint, self.sums
        placed = [whole.index_copy(0, order, some) for whole, some in zip(adjoint, self.adjoint, strict=True)]
        zeros = [some.new_zeros(batch, *some.shape[1:]) for some in self.sums]
        return placed, [
            whole.index_copy_(0, order, some) for whole, some in zip(zeros, self.sums, strict=True)
        ]

    def _ordered(self, leaf: Tensor) -> Tensor:
        order = self.steps.order
        return leaf.clone() if order is None else leaf.index_select(0, order)

    def _reversed(self) -> Iterator[Moves]:
        """Steps from last to first, with their states; those that were not kept are computed again."""
        problem, every = self.solve.problem, self.solve.tape.every
        step = self.solve.prepare(Step(problem.field, problem.tableau))
        count = len(self.steps.sizes)
        for base in range((count - 1) // every * every, -1, -every):
            chunk = [self.steps.move(n) for n in range(base, min(base + every, count))]
            for i in range(1, len(chunk)):
                last, size = chunk[i - 1], len(chunk[i].h)
                theta = [row[: len(last.h)] for row in self.rows[: len(problem.theta)]]
                with torch.no_grad(), self.solve.ambient:
                    z = step(last.t, last.h, last.z, theta, None).z
                chunk[i] = chunk[i]._replace(z=tuple(leaf[:size] for leaf in z))
            for i in range(len(chunk) - 1, -1, -1):
                yield chunk[i]

    def _pull(
        self, move: Moves, after: Sequence[Tensor]
    ) -> tuple[list[Tensor], Sequence[Tensor | None], Sequence[Tensor | None], int]:
        """Through one step: the adjoint before it, gradients for rows and trained tensors, evaluations made."""
        problem, size = self.solve.problem, len(move.h)
        stand_ins = [
            row[:size].detach().requires_grad_(want) for row, want in zip(self.rows, self.wanted, strict=True)
        ]
        count = len(problem.theta)
        theta, times = (
            stand_ins[:count],
            Times(*stand_ins[count:], *([] if problem.ts is not None else [None])),
        )
        window = None
        if times.ts is not None and any(grad is not None for grad in self.saved):
            window = Window.of(times.ts.detach(), move)
        dense = any(grad is not None for grad in self.powers)
        with torch.enable_grad(), self.solve.ambient:
            z = tuple(leaf.detach().requires_grad_() for leaf in move.z)
            stepped, passed = retake(problem, self.solve.prepare, move, z, theta, times, window, dense=dense)

        outputs, cotangents = [*stepped.z], [*after]
        moved = move.h != 0
        for value, grad in zip(passed, self.saved, strict=False):
            if grad is not None and window is not None:
                outputs.append(value)
                grad = grad[:size, window.low : window.high]
                cotangents.append(torch.where(spread(window.inside, grad[:, 0]), grad, 0))
        for value, grad in zip(stepped.dense or (), self.powers, strict=False):
            if grad is not None:
                outputs.append(value)
                cotangents.append(torch.where(like(moved, (value,))[0], grad[move.source], 0))
        linked = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
        inputs = [*z, *(leaf for leaf in stand_ins if leaf.requires_grad), *self.trained]
        got = torch.autograd.grad(
            [output for output, _ in linked], inputs, [grad for _, grad in linked], allow_unused=True
        )

        before = []
        for leaf, (grad, old, mask) in enumerate(zip(got, after, like(moved, z), strict=False)):
            new = old if grad is None else torch.where(mask, grad, old)
            state = self.states[leaf] if leaf < len(self.states) else None
            before.append(new if state is None else new + torch.where(mask, state[move.source], 0))
        tableau = problem.tableau
        extra = tableau.dense_needs_end + len(tableau.extra_a) if dense or window is not None else 0
        split = len(z) + len(self.sums)
        return before, got[len(z) : split], got[split:], tableau.stages + extra
