"""The loop: attempts, accepted or rejected per sample, until every sample has reached t1 or failed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from .._torch_private import is_traced
from ..errors import Status
from .backends import Backend
from .independence import Positions
from .record import Observer, Recorder, StepRecord
from .step import Step, StepLimits, StepResult, StepSizeRule, first_step
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
    fixed: bool
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
        factor = self.rule.factor(order, positive, state.previous, state.earlier)
        factor = torch.where(good, factor, factor.clamp_max(self.rule.safety))
        return factor.masked_fill(~(ratio < math.inf), self.rule.smallest)


class StartInputs(NamedTuple):
    """What the start of a loop is a function of; z and theta are empty with a fixed step size."""

    t0: Tensor
    t1: Tensor
    slope: State
    z: State
    theta: Sequence[Tensor]
    tolerance: Tolerance | None = None


class LoopStart(NamedTuple):
    """The first state of a loop, the evaluations that it took, and its counts (see `Attempt.count`)."""

    state: LoopState
    nfe: Tensor
    counts: Tensor | None


@dataclass(frozen=True, eq=False)
class Start:
    """The start of a loop, as a pure function of `StartInputs`: a first step to try, and which samples can start."""

    attempt: Attempt
    dt: float | None
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    carries: ClassVar[tuple[str, ...]] = ()
    recorded: ClassVar[bool] = (
        False  # it runs once per solve: copying its inputs into a CUDA graph would cost more than its launches
    )

    @property
    def system(self) -> RightHandSide | None:
        return self.attempt.system if self.dt is None else None

    @property
    def signature(self) -> Hashable:
        return self.dt, self.attempt.system.dtype, self.attempt.signature

    def __call__(self, inputs: StartInputs) -> LoopStart:
        t0, t1, slope, z, theta, tolerance = inputs
        attempt, away = self.attempt, t0 != t1
        finite = torch.stack([_finite(leaf) for leaf in slope]).all(0)
        alive = away & finite
        if self.dt is None:
            assert tolerance is not None
            order, mask = attempt.step.tableau.error_order + 1, alive if attempt.shared_step else None
            h = first_step(attempt.system, tolerance, order, t0, t1, z, theta, slope, mask)
            h = attempt.limits.clamp(h)
        else:
            h = self.dt * torch.sign(t1 - t0)
        status = torch.where(away & ~finite, Status.NOT_FINITE, Status.OK).to(torch.int32)
        ones, zeros = torch.ones_like(t0, dtype=attempt.system.dtype), torch.zeros_like(status)
        state = LoopState(
            t=t0,
            h=h,
            z=z,
            slope=slope if attempt.step.needs_end else None,
            previous=ones,
            earlier=ones,
            alive=alive,
            status=status,
            accepted=zeros,
            rejected=zeros,
            spent=zeros if attempt.step.counts_evaluations or attempt.system.bounded else None,
        )
        # One evaluation for the slope at t0, and one to choose the first step.
        nfe = away.int() * (2 if self.dt is None else 1)
        return LoopStart(state, nfe, attempt.count(state, t1) if attempt.counted else None)


def start_loop(
    backend: Backend,
    attempt: Attempt,
    dt: float | None,
    t0: Tensor,
    t1: Tensor,
    z: State,
    theta: Sequence[Tensor],
    slope: State,
    captures: Sequence[Tensor] = (),
    tolerance: Tolerance | None = None,
) -> LoopStart:
    """Every sample at its start, with a first step to try."""
    if dt is None:
        return backend.run(Start(attempt, dt), StartInputs(t0, t1, slope, z, tuple(theta), tolerance), captures)
    # With a fixed step size the system is not evaluated here, so that one compiled start serves all systems.
    found = backend.run(Start(attempt, dt), StartInputs(t0, t1, slope, (), ()), ())
    return found._replace(state=found.state._replace(z=z))


def _finite(leaf: Tensor) -> Tensor:
    return leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()


def _zero_or_nan(leaf: Tensor) -> Tensor:
    """Per sample 0, or nan if a component is not finite; (batch,)."""
    return (leaf * 0).abs().flatten(1).sum(1) if leaf.dim() > 1 else (leaf * 0).abs()


class Counts(NamedTuple):
    """What the loop knows of its samples."""

    alive: int
    far: int  # alive, and not finished by the next attempt
    failed: int | None = None

    @classmethod
    def read(cls, numbers: int | list[int]) -> Counts:
        """From the number of living samples, or from the numbers of `Attempt.count`."""
        return cls(numbers, numbers) if isinstance(numbers, int) else cls(*numbers)


class AliveCounter:
    """Tells how many samples are alive without letting the GPU run idle.

    On CPU the count is exact. On CUDA it is the one of the attempt before: the count travels to pinned memory while the
    next attempt is already queued. Only where the attempt under way should be the last one does the loop wait for its
    count, so that no further attempt is queued in vain.
    """

    def __init__(self, device: torch.device, batch: int):
        self.asynchronous = device.type == "cuda"
        self.pending: list[Callable[[], Counts]] = []
        self.known = Counts(batch, batch)

    def update(self, alive: Tensor, counts: Tensor | None = None) -> Counts:
        """What is known after these counts were sent."""
        if not self.asynchronous:
            self.known = Counts.read(int(alive.sum()) if counts is None else counts.tolist())
            return self.known
        self.pending.append(self.send(alive.sum() if counts is None else counts))
        while len(self.pending) > 1 or (self.pending and self.known.far == 0):
            self.known = self.pending.pop(0)()
        return self.known

    def send(self, counts: Tensor) -> Callable[[], Counts]:
        """Copy counts to the host; the returned function waits for them."""
        pinned = torch.empty(counts.shape, dtype=counts.dtype, pin_memory=True, device="cpu")
        pinned.copy_(counts, non_blocking=True)
        event = torch.cuda.Event()
        event.record()

        def receive() -> Counts:
            event.synchronize()
            return Counts.read(pinned.tolist())

        return receive


class Watch(Protocol):
    """An object that may shorten the interval of some samples after each attempt."""

    def review(
        self, attempt: Attempt, before: LoopState, inputs: AttemptInputs, result: AttemptResult, rows: Tensor | None
    ) -> tuple[AttemptResult, Tensor]:
        """The result as it should count, and the samples' t1; `before` is the state before the attempt."""
        ...


class GraphMemory(Protocol):
    """Decides for how long the loop runs with autograd."""

    def reserve(self, samples: int) -> bool:
        """Whether the graph of one more attempt may be kept; if not, what was kept is dropped."""
        ...


class LoopResult(NamedTuple):
    """The end of a loop."""

    state: LoopState
    failed: int | None  # number of failed samples, or None if unknown


def _living(mask: Tensor, alive: int, enough: int) -> Tensor:
    """The positions of the living samples, in order; and of some others if there should be more of them."""
    if alive == enough and not mask.is_cuda:
        return mask.nonzero()[:, 0]
    # A stable sort finds them without synchronising.
    return torch.argsort(mask, descending=True, stable=True)[:enough].sort().values


def integrate(
    backend: Backend,
    attempt: Attempt,
    start: LoopStart,
    t1: Tensor,
    theta: Sequence[Tensor],
    captures: Sequence[Tensor] = (),
    recorders: Sequence[Recorder] = (),
    *,
    tolerance: Tolerance | None = None,
    max_steps: int,
    steps: int | None = None,
    positions: Positions | None = None,
    watch: Watch | None = None,
    observer: Observer | None = None,
    graph: GraphMemory | None = None,
) -> LoopResult:
    """Attempt until no sample is alive or max_steps are taken, passing each attempt to the recorders.

    `steps`: the number of attempts where it is known in advance, which saves counting. Once at most three quarters of
    the samples are alive, the others are set aside if `positions` allow it; in total this copies a control at most
    three times. With a `graph` the states are computed with autograd; all decisions are without.
    """
    state, _, counts = start
    counter = AliveCounter(state.t.device, len(state.t))
    whole, rows, count, alive, failed = state, None, 0, len(state.t), None
    while count < max_steps:  # a living sample has taken part in every attempt
        known = counter.update(state.alive, counts) if steps is None else Counts(len(state.t) * (steps > count), 0)
        alive = known.alive
        if alive == 0:
            failed = known.failed if rows is None else None  # nothing is known of those set aside
            break
        size = len(state.t)
        enough = backend.bucket_size(size, alive)
        if (
            positions is not None
            and steps is None
            and 4 * enough <= 3 * size
            and positions.are_free(attempt.system, state.t, state.z, theta, state.slope)
        ):
            with torch.set_grad_enabled(graph is not None):
                if rows is None:
                    whole = state.copy()  # from here on it is written to
                else:
                    whole.write(rows, state)
                living = _living(state.alive, alive, enough)
                rows = living if rows is None else rows[living]
                state, t1 = state.select(living), t1[living]
                select = functools.partial(take_rows, rows=living)
                theta, tolerance = map_tensors(select, (tuple(theta), tolerance))
        if graph is not None and not graph.reserve(len(state.t)):
            graph, (state, whole, theta) = None, map_tensors(Tensor.detach, (state, whole, tuple(theta)))
        inputs = AttemptInputs(state, t1, theta, tolerance)
        if watch is not None and backend.fuses and state.t.is_cuda:
            state = map_tensors(torch.clone, state)  # a CUDA graph writes the new state over the old one
        with torch.set_grad_enabled(graph is not None):
            result = backend.run(attempt, inputs, captures)
            if watch is not None:
                result, t1 = watch.review(attempt, state, inputs, result, rows)
            state, counts = result.state, result.counts
            _, t, t_next, h, z, number, dense, slopes, _ = result
            record = StepRecord(rows, t, t_next, h, z, theta, dense, slopes, number)
            for recorder in recorders:
                recorder.add(record)
        if observer is not None:
            observer.observe(rows, state.t, state.z, result.h != 0)
        count += 1
    if steps is not None or alive > 0:
        state = state._replace(status=torch.where(state.alive, Status.MAX_STEPS, state.status).to(state.status.dtype))
    if rows is None:
        return LoopResult(state, failed)
    with torch.set_grad_enabled(graph is not None):
        whole.write(rows, state)
    return LoopResult(whole, failed)
