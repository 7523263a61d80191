"""The "discrete" gradient: exact backpropagation through the accepted steps, with one state per step in memory.

The forward pass left a tape of (t, h, state). Backward walks the tape in reverse, replays each step with autograd, and
pulls the gradient through it (replay.py); unless the forward pass ran with autograd and its graph was kept (kept.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._torch_private import backward_keeps_graph
from ..problem import SampleInputs
from ..record import StepRecord, find_window, mask_like
from ..system import State, expand_like, first_rows, map_tensors, take_rows, without_gaps
from ..tape import EvenSteps, Steps, Tape
from .function import InputGradients, Outputs, Pullback, has_hooks, inner_product
from .kept import KeptGraph
from .replay import GradientSums, PullbackInputs, PullbackResult, StepPullback


@dataclass(eq=False)
class DiscretePullback(Pullback):
    """What a forward pass leaves behind for the "discrete" gradient: its tape, and its graph if that was kept."""

    tape: Tape
    graph: KeptGraph | None = None

    def pull(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        graph, self.graph = self.graph, self.graph if backward_keeps_graph() else None
        # Hooks must see the sum of all steps, and samples that failed must not spoil the gradients of others.
        if graph is None or any(map(has_hooks, graph.trained)) or not bool(self.ends.ok.all()):
            return self._pull_tape(needed, grads)
        checks = not self.waits
        if checks:
            self.check_function()
        found = graph.pull(self.problem, needed, grads, self.graph is not None)
        self.stats.nfe_backward = torch.full_like(self.ends.status, int(checks))
        if found is None:
            return self._pull_tape(needed, grads, int(checks))
        by_z, _ = self._add_saved_at_start(grads, list(found.z0), None)
        return found._replace(z0=tuple(by_z))

    @property
    def waits(self) -> bool:
        """Whether reading a value would be all that makes backward wait for a GPU."""
        return self.problem.t0.is_cuda and self.problem.fixed_count is not None

    def _pull_tape(self, needed: SampleInputs, grads: Outputs, spent: int = 0) -> InputGradients:
        """Gradients by the tape, after some evaluations."""
        problem, has_result = self.problem, self.ends.has_result
        if problem.options.backend.has_changed(problem.system):  # perhaps a mere counter
            self.check_function()
        adjoint = [
            torch.zeros_like(leaf) if grad is None else torch.where(mask, grad, 0)
            for leaf, grad, mask in zip(problem.z0, grads.z, expand_like(has_result, problem.z0), strict=True)
        ]
        steps = self.tape.steps(
            self.ends.replayed,
            problem.z0,
            may_reorder=self.may_reorder,
            replacement=self.replacement,
            bucket_size=problem.options.backend.bucket_size,
        )
        walk = _Walk(self, steps, needed, grads, adjoint)
        walk.run()
        self.stats.nfe_backward = walk.evaluations() + spent
        found, sums = walk.in_sample_order(adjoint)
        found, sums = self._add_start(needed, grads, adjoint, found, sums)
        return InputGradients(tuple(found), sums, map_tensors(walk.own, walk.sums.captures))

    def _add_start(
        self,
        needed: SampleInputs,
        grads: Outputs,
        end: Sequence[Tensor],
        found: list[Tensor],
        sums: SampleInputs,
    ) -> tuple[list[Tensor], SampleInputs]:
        """Add the gradients of what lies at t0, before any step: saved times there, and samples with t1 = t0.

        The value there is z0 + (time - t0) dz/dt, so a time's gradient is the product with the slope at t0.
        """
        slope, (theta, span, ts) = self.captures.slope, sums
        still = self.ends.has_result & ~self.ends.moved
        if needed.span:
            span = span + torch.where(still & self.ends.ok, inner_product(end, slope), 0)
        for leaf, grad in enumerate(grads.states):
            if grad is not None:  # a sample that never moved has its own state in every row of dense output
                found[leaf] = found[leaf] + torch.where(expand_like(still, (found[leaf],))[0], grad.sum(0), 0)
        found, ts = self._add_saved_at_start(grads, found, ts)
        return found, SampleInputs(theta, span, ts)

    def _add_saved_at_start(
        self, grads: Outputs, found: list[Any], ts: Tensor | None
    ) -> tuple[list[Any], Tensor | None]:
        """Add the gradients of values saved at t0 to those of z0 and of the times, where these have one."""
        times, slope = self.problem.ts, self.captures.slope
        if times is None or not times.numel():
            return found, ts
        at_start = times.detach() == 0
        for leaf, grad in enumerate(grads.saved):
            if grad is not None:
                here = torch.where(mask_like(at_start, grad[:, 0]), grad, 0)
                found[leaf] = None if found[leaf] is None else found[leaf] + here.sum(1)
                if ts is not None:
                    there = [inner_product([column], [slope[leaf]]) for column in here.unbind(1)]
                    ts = ts + torch.where(at_start, torch.stack(there, 1), 0)
        return found, ts


class _Walk:
    """The walk along the tape, in reverse. Everything with one row per sample is in the order of the steps."""

    def __init__(
        self,
        pullback: DiscretePullback,
        steps: Steps,
        needed: SampleInputs,
        grads: Outputs,
        adjoint: Sequence[Tensor],
    ):
        self.pullback, self.steps, self.needed, self.captures = pullback, steps, needed, pullback.captures.trained
        self.backend = pullback.problem.options.backend
        prepare = self.backend.prepare
        self.inputs = map_tensors(lambda leaf: self._ordered(prepare(leaf.detach())), pullback.problem.inputs)
        self.adjoint = [self._ordered(prepare(leaf)) for leaf in adjoint]
        self.saved = [None if grad is None else self._ordered(grad) for grad in grads.saved]
        self.states = [None if grad is None else grad.flatten(0, 1) for grad in grads.states]
        self.powers = [None if grad is None else grad.flatten(0, 1) for grad in grads.powers]
        theta = tuple(_zeros(leaf, need) for leaf, need in zip(self.inputs.theta, needed.theta, strict=True))
        times = [_zeros(time, need) for time, need in zip(self.inputs[1:], needed[1:], strict=True)]
        self.sums = GradientSums(SampleInputs(theta, *times), (None,) * len(self.captures))
        self.spent = [0] * len(steps.sizes)  # evaluations in each step
        self._first: dict[int, SampleInputs] = {}
        self._step_pullbacks: dict[Hashable, StepPullback] = {}

    def run(self) -> None:
        """Pull through all steps, from the last to the first."""
        for n, record in self._reversed():
            result = self._pull(n, record)
            for leaf, new in enumerate(result.adjoint):
                self.adjoint[leaf] = _write(self.adjoint[leaf], new)
            theta = tuple(map(_write, self.sums.inputs.theta, result.sums.inputs.theta))
            times = map(_write, self.sums.inputs[1:], result.sums.inputs[1:])
            pairs = zip(self.sums.captures, result.sums.captures, strict=True)
            captures = tuple(old if new is None else new for old, new in pairs)
            self.sums = GradientSums(SampleInputs(theta, *times), captures)
            if result.deviates is not None and bool(result.deviates):
                # Perhaps by the rounding of another number or order of samples only.
                self.pullback.check_function()
                self.spent[n] += 1

    def evaluations(self) -> Tensor:
        """Evaluations per sample: those of all steps up to its last."""
        order, status = self.steps.order, self.pullback.ends.status
        if isinstance(self.steps, EvenSteps):
            return torch.full_like(status, sum(self.spent))
        upto = torch.tensor([0, *self.spent], dtype=status.dtype, device=status.device).cumsum(0, dtype=status.dtype)
        made = upto[self.steps.counts.to(status.device)]
        real = self.steps.samples
        return made if order is None else torch.zeros_like(status).index_copy(0, order[:real], made[:real])

    def in_sample_order(self, adjoint: Sequence[Tensor]) -> tuple[list[Tensor], SampleInputs]:
        """The adjoint at t0 and the gradients of the inputs, with every sample back in its place."""
        order, batch = self.steps.order, self.pullback.problem.batch
        if order is None:
            return [self.own(leaf) for leaf in self.adjoint], map_tensors(self.own, self.sums.inputs)
        real = self.steps.samples  # those behind are padding
        placed = [a.index_copy(0, order[:real], b[:real]) for a, b in zip(adjoint, self.adjoint, strict=True)]

        def place(some: Tensor) -> Tensor:
            return some.new_zeros(batch, *some.shape[1:]).index_copy_(0, order[:real], some[:real])

        return placed, map_tensors(place, self.sums.inputs)

    def own(self, leaf: Tensor) -> Tensor:
        """The caller's own tensor: others lie in the memory of a CUDA graph, or may be shared by autograd."""
        return leaf if self.backend.fuses and not leaf.is_cuda else leaf.clone()

    def _ordered(self, leaf: Tensor) -> Tensor:
        order = self.steps.order
        return leaf if order is None else take_rows(leaf, order)

    def _reversed(self) -> Iterator[tuple[int, StepRecord]]:
        """Steps from last to first, with their states; those that were not kept are recomputed."""
        problem, every = self.pullback.problem, self.pullback.tape.every
        step = problem.options.make_step(problem.system)
        count = len(self.steps.sizes)
        for base in range((count - 1) // every * every, -1, -every):
            chunk = [self.steps.step(n) for n in range(base, min(base + every, count))]
            for i in range(1, len(chunk)):
                last, size = chunk[i - 1], len(chunk[i].h)
                theta = [row[: len(last.h)] for row in self.inputs.theta]
                theta, _ = problem.system.enter(theta, last.t, last.t_next)
                with torch.no_grad(), self.pullback.context:
                    z = step(last.t, last.h, last.z, theta).z
                self.spent[base + i - 1] += step.evaluations
                chunk[i] = chunk[i]._replace(z=tuple(leaf[:size] for leaf in z))
            for i in range(len(chunk) - 1, -1, -1):
                yield base + i, chunk[i]

    def _pull(self, n: int, record: StepRecord) -> PullbackResult:
        """Pull through one step."""
        size, backend = len(record.h), self.backend
        inputs, window = self._first_inputs(size), None
        if inputs.ts is not None and any(grad is not None for grad in self.saved):
            window = find_window(inputs.ts, record, cut=not backend.fuses)
        saved: list[Tensor | None] = [None] * len(self.saved)
        if window is not None:
            cut = [None if grad is None else grad[:size, window.low : window.high] for grad in self.saved]
            saved = [None if c is None else torch.where(mask_like(window.inside, c[:, 0]), c, 0) for c in cut]
        powers = self._dense_part(n, record, self.powers)
        step_pullback = self._step_pullback(None if window is None else (window.low, window.high))
        given = PullbackInputs(
            record.t,
            record.h,
            record.z,
            inputs,
            tuple(first_rows(leaf, size) for leaf in self.adjoint),
            None if window is None else window.inside,
            None if window is None else window.sigma,
            tuple(saved),
            tuple(powers),
            self._first_sums(size),
            self._expected(size) if n == 0 else None,
        )
        result = backend.run(step_pullback, given, self.pullback.captures.outside)
        states = self._dense_part(n, record, self.states)
        adjoint = [
            leaf if i >= len(states) or states[i] is None else leaf + states[i] for i, leaf in enumerate(result.adjoint)
        ]
        problem, dense = self.pullback.problem, window is not None or any(grad is not None for grad in powers)
        step = problem.options.make_step(problem.system, dense=dense)
        self.spent[n] += step.evaluations + step.needs_end
        return result._replace(adjoint=tuple(adjoint))

    def _step_pullback(self, columns: tuple[int, int] | None) -> StepPullback:
        if columns not in self._step_pullbacks:
            whole = self.pullback
            outside = {id(tensor): i for i, tensor in enumerate(whole.captures.outside)}
            order = tuple(outside.get(id(tensor)) for tensor in self.captures)
            self._step_pullbacks[columns] = StepPullback(
                whole.problem, self.needed, self.captures, columns, whole.context, order
            )
        return self._step_pullbacks[columns]

    def _first_inputs(self, size: int) -> SampleInputs:
        """The inputs of the first samples: the same objects each time, so that a CUDA graph need not copy them."""
        if size not in self._first:
            inputs = map_tensors(lambda leaf: first_rows(leaf, size), self.inputs)
            # In their final layout, or a compiled graph would copy them at every step.
            self._first[size] = map_tensors(without_gaps, inputs) if self.backend.fuses else inputs
        return self._first[size]

    def _first_sums(self, size: int) -> GradientSums:
        inputs, captures = self.sums
        if self.backend.fuses:  # a graph of its own for the first step would not be worth it
            pairs = zip(captures, self.captures, strict=True)
            captures = tuple(torch.zeros_like(like) if total is None else total for total, like in pairs)
        return GradientSums(map_tensors(lambda leaf: first_rows(leaf, size), inputs), captures)

    def _expected(self, size: int) -> State | None:
        """The slopes at t0 of the forward pass; None where comparing would take time, or wait for a GPU."""
        if self.backend.fuses or self.pullback.waits or self.steps.held is not None:
            return None
        return tuple(first_rows(self._ordered(leaf), size) for leaf in self.pullback.captures.slope)

    def _dense_part(self, n: int, record: StepRecord, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The part of dense output's gradients that belongs to a step."""
        if all(grad is None for grad in grads):
            return list(grads)
        rows, moved = self.steps.source(n), record.h != 0
        return [None if it is None else torch.where(expand_like(moved, (it,))[0], it[rows], 0) for it in grads]


def _zeros(leaf: Any, need: Any) -> Tensor | None:
    return torch.zeros_like(leaf) if leaf is not None and need else None


def _write(whole: Any, part: Any) -> Any:
    """The tensor with its first rows replaced; None (no gradient) leaves it as it is."""
    if part is None or whole is None:
        return whole
    if len(part) == len(whole):
        return part
    whole[: len(part)] = part
    return whole
