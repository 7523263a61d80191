"""The loop: a start, then attempts until every sample has reached t1 or failed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import Status
from .attempt import Attempt, AttemptInputs, AttemptResult, LoopState
from .backends import Backend
from .independence import Positions
from .record import Observer, Recorder, StepRecord
from .step import first_step
from .system import RightHandSide, State, finite_samples, map_tensors, take_rows
from .tolerance import Tolerance


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
    # It runs once per solve: copying its inputs into a CUDA graph would cost more than its launches.
    recorded: ClassVar[bool] = False

    @property
    def system(self) -> RightHandSide | None:
        return self.attempt.system if self.dt is None else None

    @property
    def signature(self) -> Hashable:
        return self.dt, self.attempt.system.dtype, self.attempt.signature

    def __call__(self, inputs: StartInputs) -> LoopStart:
        t0, t1, slope, z, theta, tolerance = inputs
        attempt, away = self.attempt, t0 != t1
        finite = torch.stack([finite_samples(leaf) for leaf in slope]).all(0)
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
    first_steps: Tensor | None = None,
) -> LoopStart:
    """Every sample at its start, with a first step to try."""
    if dt is None and first_steps is not None:
        found = Start(attempt, 0.0)(StartInputs(t0, t1, slope, (), ()))
        state = found.state._replace(z=z, h=first_steps)
        return found._replace(state=state, counts=attempt.count(state, t1) if attempt.counted else None)
    if dt is None:
        return backend.run(Start(attempt, dt), StartInputs(t0, t1, slope, z, tuple(theta), tolerance), captures)
    # With a fixed step size the system is not evaluated here, so that one compiled start serves all systems.
    found = backend.run(Start(attempt, dt), StartInputs(t0, t1, slope, (), ()), ())
    return found._replace(state=found.state._replace(z=z))


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


def _living(mask: Tensor, exactly: bool, enough: int) -> Tensor:
    """The positions of the living samples, in order; and of some others unless there are exactly enough of them."""
    if exactly:
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
                living = _living(state.alive, alive == enough and not counter.asynchronous, enough)
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
