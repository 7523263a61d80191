"""The "discrete" gradient: exact backpropagation through the accepted steps, with one state a step in memory.

The forward pass ran without autograd and left a tape of (t, h, state). Backward walks the tape in reverse, takes each
step again with autograd switched on, and pulls the gradient through it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import Status
from .ambient import Ambient
from .compiled import LADDER, Graph, dense, graph_of, identity, take
from .join import Outputs
from .layout import settle
from .problem import Problem
from .record import Moves, Window, spread
from .retake import Times, retake
from .solution import Stats
from .step import Step, like
from .tape import Even, Steps, Tape
from .touched import Touched

Pulled = tuple[list[Tensor], Sequence[Tensor | None], list[Tensor | None]]


@dataclass(eq=False)
class Discrete:
    """One solve: what forward leaves for backward. It holds no output, or memory would never be freed."""

    problem: Problem
    touched: Touched
    compile: bool
    tape: Tape
    status: Tensor
    stats: Stats
    ambient: Ambient
    graphs: dict[Hashable, Graph] = field(default_factory=dict)

    def pull(self, wanted: Sequence[bool], trained: Sequence[Tensor], grads: Outputs) -> Pulled:
        """Gradients for z0, for the wanted rows and for the trained tensors, from those of the outputs."""
        problem, ok = self.problem, self.status == Status.OK
        adjoint = [
            torch.zeros_like(leaf) if grad is None else torch.where(mask, grad, 0)
            for leaf, grad, mask in zip(problem.z0, grads.z, like(ok, problem.z0), strict=True)
        ]
        rooted = self.touched.has_rows(problem.batch)
        steps = self.tape.steps(ok, problem.z0, rooted=rooted, ladder=LADDER if self.compile else None)
        pull = _Pull(self, steps, wanted, trained, grads, adjoint)
        pull.walk()
        adjoint, rows = pull.scattered(adjoint)
        if problem.ts is not None and problem.ts.numel():
            at_start = problem.ts.detach() == problem.t0.detach()[:, None]
            for leaf, grad in enumerate(grads.saved):
                if grad is not None:
                    adjoint[leaf] = adjoint[leaf] + torch.where(spread(at_start, grad[:, 0]), grad, 0).sum(1)
        self.stats.nfe_backward = pull.evaluations()
        return adjoint, rows, [None if leaf is None else self.own(leaf) for leaf in pull.total]

    def own(self, leaf: Tensor) -> Tensor:
        """A tensor that is the caller's: a recorded graph goes on using its memory, and autograd may share it."""
        return leaf if self.compile and not leaf.is_cuda else leaf.clone()

    def call(self, back: StepBack, tensors: list[Tensor]) -> Pulled:
        """Pull through one step, compiled or not."""
        if self.compile:
            outside = self.touched.outside
            place = len(tensors[0]), back.saved, back.powers
            if place not in self.graphs:
                field, carried = self.problem.field, back.carried
                # The same field may be asked for gradients of other tensors the next time.
                numbers = {id(tensor): i for i, tensor in enumerate(outside)}
                key = back.key, tuple(numbers[id(tensor)] for tensor in self.touched.trained)
                self.graphs[place] = graph_of(key, field, back, tensors, outside, carried)
            found = self.graphs[place](tensors, outside)
        else:
            found = back(*tensors)
        first, last = len(self.problem.z0), len(found) - len(back.trained)
        return found[:first], found[first:last], found[last:]


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
        rows: Sequence[Tensor] = problem.rows
        if solve.compile:
            rows, adjoint = [settle(leaf.detach()) for leaf in rows], [settle(leaf) for leaf in adjoint]
        self.rows = [self._ordered(leaf.detach()) for leaf in rows]
        self.adjoint = [self._ordered(leaf) for leaf in adjoint]
        self.saved = [None if grad is None else self._ordered(grad) for grad in grads.saved]
        self.states = [None if grad is None else grad.flatten(0, 1) for grad in grads.states]
        self.powers = [None if grad is None else grad.flatten(0, 1) for grad in grads.powers]
        self.sums = [torch.zeros_like(row) for row, want in zip(self.rows, wanted, strict=True) if want]
        self.total: list[Tensor | None] = [None] * len(trained)
        self.spent = [0] * len(steps.sizes)  # evaluations in each step
        self._first: dict[int, list[Tensor]] = {}

    def walk(self) -> None:
        """Pull through all steps, from the last to the first."""
        for n, move in self._reversed():
            size = len(move.h)
            after = [head(leaf, size) for leaf in self.adjoint]
            (before, rows, trained), evaluations = self._pull(n, move, after)
            self.spent[n] += evaluations
            for number, leaf in enumerate(before):
                if size == len(self.adjoint[number]):
                    self.adjoint[number] = leaf
                else:
                    self.adjoint[number][:size] = leaf
            if self.solve.compile:
                self._replace(rows, trained, size)
            else:
                self._add(rows, trained, size)

    def _add(self, rows: Sequence[Tensor | None], trained: Sequence[Tensor | None], size: int) -> None:
        """Add gradients to the sums."""
        for whole, grad in zip(self.sums, rows, strict=True):
            if grad is not None:
                whole[:size] += grad
        for number, grad in enumerate(trained):
            if grad is not None:
                old = self.total[number]
                self.total[number] = grad if old is None else old + grad

    def _replace(self, rows: Sequence[Tensor | None], trained: Sequence[Tensor | None], size: int) -> None:
        """Take over sums that a compiled graph has added to."""
        for number, new in enumerate(rows):
            if new is not None:
                if size == len(self.sums[number]):
                    self.sums[number] = new
                else:
                    self.sums[number][:size] = new
        for number, new in enumerate(trained):
            if new is not None:
                self.total[number] = new

    def evaluations(self) -> Tensor:
        """How many evaluations each sample took: those of all steps up to its last."""
        order, status = self.steps.order, self.solve.status
        if isinstance(self.steps, Even):
            return torch.full_like(status, sum(self.spent))
        upto = torch.tensor([0, *self.spent], dtype=status.dtype, device=status.device).cumsum(0, dtype=status.dtype)
        made = upto[self.steps.counts.to(status.device)]
        real = self.steps.samples
        return made if order is None else torch.zeros_like(status).index_copy(0, order[:real], made[:real])

    def scattered(self, adjoint: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The adjoint at t0 and the rows' gradients, with every sample back in its place."""
        order, batch = self.steps.order, self.solve.problem.batch
        if order is None:
            return [self.solve.own(leaf) for leaf in self.adjoint], [self.solve.own(leaf) for leaf in self.sums]
        real = self.steps.samples  # those behind are padding
        placed = [a.index_copy(0, order[:real], b[:real]) for a, b in zip(adjoint, self.adjoint, strict=True)]
        zeros = [some.new_zeros(batch, *some.shape[1:]) for some in self.sums]
        return placed, [a.index_copy_(0, order[:real], b[:real]) for a, b in zip(zeros, self.sums, strict=True)]

    def _ordered(self, leaf: Tensor) -> Tensor:
        order = self.steps.order
        return leaf if order is None else take(leaf, order)  # whatever is written to is a copy

    def _reversed(self) -> Iterator[tuple[int, Moves]]:
        """Steps from last to first, with their states; those that were not kept are computed again."""
        problem, every = self.solve.problem, self.solve.tape.every
        step = Step(problem.field, problem.tableau)
        count = len(self.steps.sizes)
        for base in range((count - 1) // every * every, -1, -every):
            chunk = [self.steps.move(n) for n in range(base, min(base + every, count))]
            for i in range(1, len(chunk)):
                last, size = chunk[i - 1], len(chunk[i].h)
                theta = [row[: len(last.h)] for row in self.rows[: len(problem.theta)]]
                with torch.no_grad(), self.solve.ambient:
                    z = step(last.t, last.h, last.z, theta, None).z
                self.spent[base + i - 1] += step.evaluations
                chunk[i] = chunk[i]._replace(z=tuple(leaf[:size] for leaf in z))
            for i in range(len(chunk) - 1, -1, -1):
                yield base + i, chunk[i]

    def _given(self, size: int) -> list[Tensor]:
        """The rows of the first samples: the same objects each time, so that a recorded graph need not copy them."""
        if size not in self._first:
            rows = [head(row, size) for row in self.rows]
            # Laid out here, or a compiled graph would do it at every step.
            self._first[size] = [dense(row) for row in rows] if self.solve.compile else rows
        return self._first[size]

    def _pull(self, n: int, move: Moves, after: Sequence[Tensor]) -> tuple[Pulled, int]:
        """Through one step: what it gives, and how many evaluations it took."""
        problem, size = self.solve.problem, len(move.h)
        given = self._given(size)
        ts, window = given[-1] if problem.ts is not None else None, None
        if ts is not None and any(grad is not None for grad in self.saved):
            window = Window.of(ts, move, cut=not self.solve.compile)
        saved: list[Tensor | None] = [None] * len(self.saved)
        if window is not None:
            cut = [None if grad is None else grad[:size, window.low : window.high] for grad in self.saved]
            saved = [None if c is None else torch.where(spread(window.inside, c[:, 0]), c, 0) for c in cut]
        powers = self._dense(n, move, self.powers)
        back = StepBack(
            problem,
            tuple(self.wanted),
            tuple(self.trained),
            (window.low, window.high) if window is not None else None,
            tuple(grad is not None for grad in saved),
            tuple(grad is not None for grad in powers),
            self.solve.ambient,
            summed=self.solve.compile,
        )
        tensors = [move.t, move.h, *move.z, *given, *after]
        tensors += [window.inside, window.sigma] if window is not None else []
        tensors += [grad for grad in (*saved, *powers) if grad is not None]
        if back.summed:
            totals = zip(self.total, self.trained, strict=True)
            tensors += [head(total, size) for total in self.sums]
            tensors += [torch.zeros_like(tensor) if total is None else total for total, tensor in totals]
        before, rows, trained = self.solve.call(back, tensors)
        for leaf, state in enumerate(self._dense(n, move, self.states)):
            if state is not None:
                before[leaf] = before[leaf] + state
        tableau = problem.tableau
        extra = tableau.dense_needs_end + len(tableau.extra_a) if back.dense else 0
        return (before, rows, trained), tableau.stages + extra

    def _dense(self, n: int, move: Moves, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The part of dense output's gradients that belongs to a step."""
        if all(grad is None for grad in grads):
            return list(grads)
        moved, source = move.h != 0, self.steps.source(n)
        return [None if grad is None else torch.where(like(moved, (grad,))[0], grad[source], 0) for grad in grads]


def head(leaf: Tensor, size: int) -> Tensor:
    """The first rows, the tensor itself where that is all of them."""
    return leaf if size == len(leaf) else leaf[:size]


@dataclass(frozen=True, eq=False)
class StepBack:
    """Pulling a gradient through one step, as a pure function of tensors: this is what gets compiled.

    The tensors: t, h, z, rows (theta, t0, t1 and, if there are any, saved times), the adjoint after the step; where
    saved times are passed, which and where; gradients of the saved values, and of dense output's coefficients. Where it
    is `summed`, also the sums of rows' and trained tensors' gradients so far, to which it then adds.
    """

    problem: Problem
    wanted: tuple[bool, ...]  # which rows want a gradient
    trained: tuple[Tensor, ...]
    window: tuple[int, int] | None
    saved: tuple[bool, ...]  # which leaves' saved values have a gradient
    powers: tuple[bool, ...]
    ambient: Ambient
    summed: bool = False

    @property
    def carried(self) -> dict[int, int]:
        """Which outputs are inputs of the next step: the adjoint, and sums."""
        leaves, rows = len(self.problem.z0), sum(self.wanted)
        after = 2 + leaves + len(self.wanted)
        sums = after + leaves + 2 * (self.window is not None) + sum(self.saved) + sum(self.powers)
        back = {i: after + i for i in range(leaves)}
        if self.summed:
            back |= {leaves + i: sums + i for i in range(rows + len(self.trained))}
        return back

    @property
    def dense(self) -> bool:
        """Whether the step must make dense output."""
        return self.window is not None or any(self.powers)

    @property
    def key(self) -> Hashable:
        """Equal for those that do the same."""
        step = Step(self.problem.field, self.problem.tableau, dense=self.dense)
        here = self.wanted, len(self.trained), self.window, self.saved, self.powers
        return "back", identity(step), here, self.ambient.modes

    def __call__(self, *tensors: Tensor) -> list[Any]:
        problem, given = self.problem, iter(tensors)
        t, h = next(given), next(given)
        z = tuple(next(given).detach().requires_grad_() for _ in problem.z0)
        rows = [next(given).detach().requires_grad_(want) for want in self.wanted]
        after = [next(given) for _ in z]
        window = Window(*self.window, next(given), next(given)) if self.window is not None else None
        saved = [next(given) if has else None for has in self.saved]
        powers = [next(given) if has else None for has in self.powers]

        count = len(problem.theta)
        times = Times(*rows[count:], *([] if problem.ts is not None else [None]))
        with torch.enable_grad(), self.ambient:
            stepped, passed = retake(
                problem, Moves(None, t, t, h, ()), z, rows[:count], times, window, dense=any(self.powers)
            )
        outputs, cotangents = [*stepped.z], [*after]
        for values, grads in ((passed, saved), (stepped.dense or (), powers)):
            for value, grad in zip(values, grads, strict=False):
                if grad is not None:
                    outputs.append(value)
                    cotangents.append(grad)
        linked = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
        inputs = [*z, *(row for row in rows if row.requires_grad), *self.trained]
        got = torch.autograd.grad(
            [output for output, _ in linked], inputs, [grad for _, grad in linked], allow_unused=True
        )
        before = [
            old if grad is None else torch.where(mask, grad, old)
            for grad, old, mask in zip(got, after, like(h != 0, z), strict=False)
        ]
        grads = got[len(z) :]
        if self.summed:
            sums = [*given]
            return [*before, *(None if grad is None else old + grad for old, grad in zip(sums, grads, strict=True))]
        return [*before, *grads]
