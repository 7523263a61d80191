"""An accepted step once more, with autograd: its values (`replay_step`), and the gradient through it (`StepPullback`).

Step sizes count as constants, apart from the scale of the interval: a step from tau (t1 - t0) after t0, of length
delta (t1 - t0), keeps its tau and delta. So gradients with respect to t0 and t1 are exact too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..problem import Problem, SampleInputs
from ..record import StepRecord, Window
from ..step import StepResult, evaluate_dense
from ..system import State, System, expand_like
from ..unknown import refuse_unknown
from .function import ForwardContext, deviates

Gradients = tuple[Tensor | None, ...]


def replay_step(
    problem: Problem,
    record: StepRecord,
    z: State,
    inputs: SampleInputs,
    window: Window | None,
    *,
    dense: bool = False,
    first: State | None = None,
) -> tuple[StepResult, State]:
    """The step, and the values at the saved times that it passes (within `window`, each (rows, columns, ...))."""
    t, h, (theta, span, ts) = record.t, record.h, inputs
    system = problem.system
    times = (span, ts, *(theta[-system.time_constants :] if system.bounded else ()))
    differentiates_times = any(time is not None and time.requires_grad for time in times)
    entered, _ = system.enter(theta, t, t + h)
    if differentiates_times:
        t, h = system.moved_step(theta, span, t, h)
    step = problem.options.make_step(system, dense=dense or window is not None)
    stepped = step(t, h, z, entered, first)
    if window is None or stepped.dense is None:
        return stepped, ()
    sigma = window.sigma
    if differentiates_times and ts is not None:
        columns = ts[:, window.low : window.high]
        distance = torch.where(window.inside, columns - t[:, None], 0.0)
        sigma = distance / torch.where(window.inside, h[:, None], 1.0)
    return stepped, evaluate_dense(z, stepped.dense, sigma)


class GradientSums(NamedTuple):
    """Sums over steps of the gradients of inputs and captures, None where there is none (yet)."""

    inputs: SampleInputs
    captures: Gradients


class PullbackInputs(NamedTuple):
    """What the pullback of a step is a function of."""

    t: Tensor
    h: Tensor
    z: State
    inputs: SampleInputs
    adjoint: State  # gradient with respect to the state after the step
    inside: Tensor | None  # which saved times the step passes, and where
    sigma: Tensor | None
    saved: Gradients  # gradients of the values at those times
    dense: Gradients  # gradients of the coefficients of dense output
    sums: GradientSums
    expected: State | None  # the slopes at the start of the step, where they are to be compared


class PullbackResult(NamedTuple):
    """What the pullback of a step returns."""

    adjoint: State  # gradient with respect to the state before the step
    sums: GradientSums
    deviates: Tensor | None  # whether the slopes are not the expected ones


@dataclass(frozen=True, eq=False)
class StepPullback:
    """The pullback of one step, as a pure function of `PullbackInputs`: this is what backends compile."""

    problem: Problem
    needed: SampleInputs  # which inputs need a gradient, as booleans
    captures: tuple[Tensor, ...]
    columns: tuple[int, int] | None  # of the saved times that the step may pass
    context: ForwardContext
    order: Hashable  # the positions of the captures among all outside tensors
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    carries: ClassVar[tuple[str, ...]] = ("adjoint", "sums")
    recorded: ClassVar[bool] = True

    @property
    def system(self) -> System:
        return self.problem.system

    @property
    def signature(self) -> Hashable:
        step = self.problem.options.make_step(self.system)
        return step.signature, self.needed, self.columns, self.order, self.context.modes

    def __call__(self, given: PullbackInputs) -> PullbackResult:
        z = tuple(leaf.detach().requires_grad_() for leaf in given.z)
        theta = tuple(
            leaf.detach().requires_grad_(need) for leaf, need in zip(given.inputs.theta, self.needed.theta, strict=True)
        )
        times = [
            None if time is None else time.detach().requires_grad_(bool(need))
            for time, need in zip(given.inputs[1:], self.needed[1:], strict=True)
        ]
        inputs = SampleInputs(theta, *times)
        window = None
        if self.columns is not None and given.inside is not None and given.sigma is not None:
            window = Window(*self.columns, given.inside, given.sigma)
        with torch.enable_grad(), self.context:
            record = StepRecord(None, given.t, given.t, given.h, ())
            dense = any(grad is not None for grad in given.dense)
            stepped, passed = replay_step(self.problem, record, z, inputs, window, dense=dense)
        pairs = [
            *zip(stepped.z, given.adjoint, strict=True),
            *zip(passed, given.saved, strict=False),
            *zip(stepped.dense or (), given.dense, strict=False),
        ]
        linked = [(output, grad) for output, grad in pairs if grad is not None and output.requires_grad]
        wanted = [it for it in (*theta, *times) if it is not None and it.requires_grad]
        outputs, cotangents = zip(*linked, strict=True) if linked else ((), ())
        if not self.problem.options.backend.fuses:  # a traced function has one graph, that of the first step
            refuse_unknown(outputs, (*z, *wanted, *self.captures))
        found = iter(torch.autograd.grad(outputs, [*z, *wanted, *self.captures], cotangents, allow_unused=True))
        grads = [next(found) for _ in z]
        adjoint = tuple(
            old if grad is None else torch.where(mask, grad, old)
            for grad, old, mask in zip(grads, given.adjoint, expand_like(given.h != 0, z), strict=True)
        )
        flags = [it is not None and it.requires_grad for it in (*theta, *times)]
        old = (*given.sums.inputs.theta, *given.sums.inputs[1:])
        sums = [_add(total, next(found)) if flag else None for total, flag in zip(old, flags, strict=True)]
        summed = SampleInputs(tuple(sums[: len(theta)]), *sums[len(theta) :])
        captures = tuple(_add(total, grad) for total, grad in zip(given.sums.captures, found, strict=True))
        differ = None
        if given.expected is not None:
            differ = deviates(tuple(k.detach() for k in stepped.start), given.expected)
        return PullbackResult(adjoint, GradientSums(summed, captures), differ)


def _add(total: Tensor | None, grad: Tensor | None) -> Tensor | None:
    """The new sum, None where there is nothing to add."""
    return grad if grad is None or total is None else total + grad
