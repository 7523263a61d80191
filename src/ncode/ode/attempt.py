"""One attempt of a batch: a step per sample, accepted or rejected, and the size of the next."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_traced
from ..errors import Status
from .step import Step, StepLimits, StepResult, StepSizeRule, check_factor, first_step
from .system import RightHandSide, State, map_tensors, take_rows, tensors_of, where
from .tolerance import Tolerance, batch_rms


class LoopState(NamedTuple):
    """The state of each sample in the loop: every tensor is (batch, ...)."""

    t: Tensor  # counted from t0, as every time in the loop
    h: Tensor  # the step to try next, signed
    z: State
    slope: State | None  # at (t, z), where the method reuses it
    previous: Tensor  # error ratios of the last two accepted steps
    earlier: Tensor
    alive: Tensor
    status: Tensor
    accepted: Tensor
    rejected: Tensor
    spent: Tensor | None = None  # evaluations in all steps, where their number per step is not fixed

    def select(self, rows: Tensor) -> LoopState:
        """The state of some samples."""
        return map_tensors(lambda leaf: take_rows(leaf, rows), self)

    @property
    def result(self) -> tuple[Any, ...]:
        """What is of interest after the loop."""
        return self.t, self.h, self.z, self.status, self.accepted, self.rejected, self.spent

    def copy(self) -> LoopState:
        """A state whose result can be written to."""
        t, h, z, status, accepted, rejected, spent = map_tensors(torch.clone, self.result)
        return self._replace(t=t, h=h, z=z, status=status, accepted=accepted, rejected=rejected, spent=spent)

    def write(self, rows: Tensor, part: LoopState) -> None:
        """Write the result of some samples back, in place."""
        for leaf, new in zip(tensors_of(self.result), tensors_of(part.result), strict=True):
            leaf.index_copy_(0, rows, new)


class AttemptInputs(NamedTuple):
    """What an attempt is a function of."""

    state: LoopState
    t1: Tensor
    theta: Sequence[Tensor]
    tolerance: Tolerance | None = None  # None with a fixed step size


class AttemptResult(NamedTuple):
    """What an attempt returns: the new state, and a record of the step."""

    state: LoopState
    t: Tensor
    t_next: Tensor
    h: Tensor  # the step taken; 0 for a sample that did not move
    z: State  # before the step
    number: Tensor  # steps taken before
    dense: State | None
    slopes: tuple[State, ...]
    counts: Tensor | None  # see `Attempt.count`


@dataclass(frozen=True, eq=False)
class Attempt:
    """One attempt of a batch, as a pure function of `AttemptInputs`.

    A sample that is rejected, or no longer alive, takes h = 0 and stays where it is. One that reaches a jump of the
    dynamics starts anew: with the slope on the other side, and a step size chosen there as at t0.
    """

    step: Step
    rule: StepSizeRule
    fixed: bool  # whether dt is given: no error is measured, and every finite step is accepted
    shared_step: bool  # one step size for the batch
    counted: bool = False  # whether the result counts living samples
    limits: StepLimits = field(default_factory=StepLimits)
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    carries: ClassVar[tuple[str, ...]] = ("state",)
    recorded: ClassVar[bool] = True

    @property
    def system(self) -> RightHandSide:
        return self.step.system

    @property
    def signature(self) -> Hashable:
        options = self.rule, self.fixed, self.shared_step, self.counted, self.limits
        return self.step.signature, options

    def __call__(self, inputs: AttemptInputs) -> AttemptResult:
        state, t1, theta, _ = inputs
        t, z = state.t, state.z
        theta, stop = self.system.enter(theta, t, t1)
        left = stop - t
        last = self._last(state, stop, left)
        h = torch.where(state.alive, torch.where(last, left, state.h), 0.0)

        stepped = self.step(t, h, z, theta, state.slope)
        with torch.no_grad():
            good, taken, decided = self._decide(inputs, stop, last, h, stepped)
        slope = state.slope
        if slope is not None and stepped.end is not None:
            slope = where(good, stepped.end, slope)
        after = decided._replace(z=where(good, stepped.z, z), slope=slope)
        if self.system.bounded:
            after = self._pass_jumps(after, good & last & (stop != t1), inputs)
        counts = self.count(after, t1) if self.counted else None
        record = t, after.t, taken, z, state.accepted
        return AttemptResult(after, *record, stepped.dense, stepped.slopes, counts)

    def _decide(
        self, inputs: AttemptInputs, stop: Tensor, last: Tensor, h: Tensor, stepped: StepResult
    ) -> tuple[Tensor, Tensor, LoopState]:
        """Which samples accept their step, the steps taken, and the next state but for z and the slope."""
        state, t1, _, tolerance = inputs
        alive = state.alive
        own = self._error_ratio(state.z, stepped, tolerance)
        ratio = batch_rms(own, alive) if self.shared_step else own
        good = alive & (ratio <= 1.0)  # false for nan
        rejected = alive ^ good
        h_next = state.h if self.fixed else self.limits.clamp(h * self._factor(ratio, state, good))
        # With a shared step, a sample fails only for an error of its own.
        failed = rejected & ~(own <= 1.0) if self.shared_step else rejected
        if not self.fixed:
            failed = failed & self._too_small(h, h_next, t1)
        arrived = good & last
        done = arrived & (stop == t1) if self.system.bounded else arrived
        taken = torch.where(good, h, 0.0)
        history, spent = self.rule.uses_history, state.spent
        if spent is not None and stepped.spent is not None:
            spent = spent + alive * stepped.spent
        after = state._replace(
            t=torch.where(arrived, stop, state.t + taken),
            h=h_next,
            previous=torch.where(good, ratio, state.previous) if history else state.previous,
            earlier=torch.where(good, state.previous, state.earlier) if history else state.earlier,
            alive=alive ^ (done | failed),
            status=self._status(state.status, failed, own, h, stepped.failure),
            accepted=state.accepted + good,
            rejected=state.rejected + rejected,
            spent=spent,
        )
        return good, taken, after

    def reject(self, state: LoopState, h: Tensor, t1: Tensor) -> LoopState:
        """The state of samples whose step h met a value that is not finite: a smaller step is next, if there is one."""
        h_next = state.h if self.fixed else self.limits.clamp(h * self.rule.smallest)
        # A step below the rounding of the state leaves the state where it is.
        tiny = h_next.abs() <= 10 * torch.finfo(self.system.dtype).eps * t1.abs()
        failed = state.alive if self.fixed else state.alive & (tiny | self._too_small(h, h_next, t1))
        return state._replace(
            h=h_next,
            alive=state.alive & ~failed,
            status=state.status.masked_fill(failed, Status.NOT_FINITE),
            rejected=state.rejected + 1,
        )

    def _too_small(self, h: Tensor, h_next: Tensor, t1: Tensor) -> Tensor:
        """Which samples cannot try a smaller step than h."""
        tiny = h_next.abs() <= 10 * torch.finfo(t1.dtype).eps * t1.abs()
        return tiny | self._is_smallest(h) if self.limits.low else tiny

    def _is_smallest(self, h: Tensor) -> Tensor:
        return h.abs() <= self.limits.low * (1 + 1e-9)

    def _status(self, status: Tensor, failed: Tensor, own: Tensor, h: Tensor, failure: Tensor | None) -> Tensor:
        """The status with the reasons why samples failed."""
        status = status.masked_fill(failed, Status.STEP_TOO_SMALL)
        if self.limits.low:
            status = status.masked_fill(failed & self._is_smallest(h), Status.MIN_DT)
        status = status.masked_fill(failed & ~(own < math.inf), Status.NOT_FINITE)
        if failure is not None:
            status = torch.where(failed & (failure != Status.OK), failure, status).to(status.dtype)
        return status

    def _pass_jumps(self, state: LoopState, mask: Tensor, inputs: AttemptInputs) -> LoopState:
        """The state with those samples started anew that have reached a jump."""
        if not is_traced() and not bool(mask.any()):
            return state
        system, (_, t1, theta, tolerance) = self.system, inputs
        theta, stop = system.enter(theta, state.t, t1)
        slope = system.bind(theta)(system.clock(theta, state.t), state.z)
        h = state.h
        if tolerance is not None:
            order, shared = self.step.tableau.error_order + 1, mask if self.shared_step else None
            first = first_step(system, tolerance, order, state.t, stop, state.z, theta, slope, shared)
            h = torch.where(mask & first.isfinite(), self.limits.clamp(first), h)
        assert state.spent is not None
        return state._replace(
            h=h,
            slope=None if state.slope is None else where(mask, slope, state.slope),
            previous=torch.where(mask, 1.0, state.previous),
            earlier=torch.where(mask, 1.0, state.earlier),
            spent=state.spent + mask.int() * (1 if tolerance is None else 2),
        )

    def count(self, state: LoopState, t1: Tensor) -> Tensor:
        """(3,): samples alive, those of them that the next attempt cannot finish, and samples that failed."""
        far = state.alive & ~self._last(state, t1, t1 - state.t)
        return torch.stack([state.alive, far, state.status != Status.OK]).sum(1)

    def _last(self, state: LoopState, t1: Tensor, left: Tensor) -> Tensor:
        """Which samples' next step reaches t1."""
        reach = state.h.abs() * (1 + 1e-9 if self.fixed else self.rule.stretch)
        if self.limits.high < math.inf:
            reach = reach.clamp_max(self.limits.high * (1 + 1e-9))
        if self.fixed:  # t is a sum of many steps, and carries the rounding of each
            reach = reach + state.accepted * (torch.finfo(t1.dtype).eps * t1.abs())
        return reach >= left.abs()

    def _error_ratio(self, z: State, stepped: StepResult, tolerance: Tolerance | None) -> Tensor:
        """Error over tolerance per sample, 0 with fixed steps; nan where z or dense output is not finite."""
        if tolerance is not None:
            worst = tolerance.ratio(self.system, z, stepped.z, stepped.errors)
        else:
            worst = torch.stack([_zero_or_nan(leaf) for leaf in stepped.z]).sum(0)
        # Dense output also depends on slopes that neither the state nor the error does, such as the one at the end.
        return worst if stepped.dense is None else sum(map(_zero_or_nan, stepped.dense), worst)

    def _factor(self, ratio: Tensor, state: LoopState, good: Tensor) -> Tensor:
        order = self.step.tableau.error_order + 1
        positive = ratio.clamp_min(1e-10)  # nan stays nan
        factor = check_factor(self.rule, self.rule.factor(order, positive, state.previous, state.earlier), ratio)
        factor = torch.where(good, factor, factor.clamp_max(self.rule.safety))
        return factor.masked_fill(~(ratio < math.inf), self.rule.smallest)


def _zero_or_nan(leaf: Tensor) -> Tensor:
    """Per sample 0, or nan if a component is not finite; (batch,)."""
    return (leaf * 0).abs().flatten(1).sum(1) if leaf.dim() > 1 else (leaf * 0).abs()
