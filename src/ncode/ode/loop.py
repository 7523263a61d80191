"""The loop: attempts, accepted or not, a sample each, until every sample has reached its end or failed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Status
from .compiled import Graph, graph_of, identity, rung, take
from .field import State
from .record import Moves, Recorder
from .step import Step, Stepped
from .stepsize import PID, Tolerance, mean_square


class March(NamedTuple):
    """Where each sample stands: every tensor is (batch, ...)."""

    t: Tensor
    h: Tensor  # the step to try next, signed
    z: State
    slope: State | None  # at (t, z), where the method hands it on
    before: Tensor  # error ratios of the last two accepted steps
    earlier: Tensor
    alive: Tensor
    status: Tensor
    accepted: Tensor
    rejected: Tensor

    def select(self, rows: Tensor) -> March:
        """The march of some samples."""
        return self.map(lambda leaf: take(leaf, rows))

    def write(self, rows: Tensor, part: March) -> None:
        """Put the march of some samples back, in place."""
        for leaf, new in zip(self.leaves(), part.leaves(), strict=True):
            leaf.index_copy_(0, rows, new)

    def map(self, fn: Callable[[Tensor], Tensor]) -> March:
        """The same function of every tensor."""
        new = iter([fn(leaf) for leaf in self.leaves()])
        return March(
            t=next(new),
            h=next(new),
            z=tuple(next(new) for _ in self.z),
            slope=None if self.slope is None else tuple(next(new) for _ in self.slope),
            before=next(new),
            earlier=next(new),
            alive=next(new),
            status=next(new),
            accepted=next(new),
            rejected=next(new),
        )

    def leaves(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        out: list[Tensor] = []
        for value in self:
            out.extend([] if value is None else [value] if isinstance(value, Tensor) else value)
        return out


class Attempted(NamedTuple):
    """What an attempt returns."""

    start: March  # as it was given; its times and states are the caller's to keep
    march: March
    t: Tensor  # the time reached, likewise
    h: Tensor  # the step taken
    dense: State | None
    slopes: tuple[State, ...]
    tally: Tensor | None = None  # where the loop can make use of it


@dataclass(frozen=True, eq=False)
class Attempt:
    """One attempt of a batch, as a pure function (march, t1, theta) -> Attempted.

    A sample that is refused, or no longer alive, takes h = 0 and stays where it is.
    """

    step: Step
    pid: PID
    tolerance: Tolerance
    fixed: bool
    together: bool  # one step size for the batch
    tallied: bool = False

    def __call__(self, march: March, t1: Tensor, theta: Sequence[Tensor]) -> Attempted:
        t, z, alive = march.t, march.z, march.alive
        last = self._last(march, t1)
        h = torch.where(alive, torch.where(last, t1 - t, march.h), 0.0)

        stepped = self.step(t, h, z, theta, march.slope)
        ratio = self._judge(z, stepped)
        mean = mean_square(ratio, alive) if self.together else ratio
        good = alive & (mean <= 1.0)  # false for nan
        refused = alive & ~good

        h_next = march.h if self.fixed else h * self._factor(mean, march, good)
        # In step with the batch, a sample only ends for an error of its own.
        stuck = refused & ~(ratio <= 1.0)
        if not self.fixed:
            stuck = stuck & (h_next.abs() <= 10 * torch.finfo(t.dtype).eps * torch.maximum(t.abs(), t1.abs()))
        status = torch.where(
            stuck, torch.where(ratio.isfinite(), Status.STEP_TOO_SMALL, Status.NOT_FINITE), march.status
        )
        done = good & last
        taken = torch.where(good, h, 0.0)
        remembers = bool(self.pid.p or self.pid.d)

        def pick(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(good.reshape(-1, *[1] * (old.dim() - 1)), new, old)

        slope = march.slope
        if slope is not None and stepped.end is not None:
            slope = tuple(map(pick, stepped.end, slope))
        after = March(
            t=torch.where(done, t1, t + taken),
            h=h_next,
            z=tuple(map(pick, stepped.z, z)),
            slope=slope,
            before=torch.where(good, mean, march.before) if remembers else march.before,
            earlier=torch.where(good, march.before, march.earlier) if remembers else march.earlier,
            alive=alive & ~(done | stuck),
            status=status.to(march.status.dtype),
            accepted=march.accepted + good,
            rejected=march.rejected + refused,
        )
        tally = self.tally(after, t1) if self.tallied else None
        return Attempted(march, after, after.t, taken, stepped.dense, stepped.slopes, tally)

    def tally(self, march: March, t1: Tensor) -> Tensor:
        """(3,): how many samples are alive, how many of them the next attempt cannot bring home, how many failed."""
        far = march.alive & ~self._last(march, t1)
        return torch.stack([march.alive, far, march.status != Status.OK]).sum(1)

    def _last(self, march: March, t1: Tensor) -> Tensor:
        """Whose next step reaches the end."""
        t = march.t
        reach = march.h.abs() * (1 + 1e-9 if self.fixed else self.pid.stretch)
        if self.fixed:  # t is a sum of many steps, and carries the rounding of each
            reach = reach + march.accepted * (torch.finfo(t.dtype).eps * torch.maximum(t.abs(), t1.abs()))
        return reach >= (t1 - t).abs()

    def _judge(self, z: State, stepped: Stepped) -> Tensor:
        """Error over tolerance, a sample each; with fixed steps 0, or nan where the new state is not finite."""
        if not self.fixed:
            return self.tolerance.ratio(self.step.field, z, stepped.z, stepped.errors)
        worst = sum((leaf * 0).abs().flatten(1).sum(1) if leaf.dim() > 1 else (leaf * 0).abs() for leaf in stepped.z)
        return torch.as_tensor(worst)

    def _factor(self, ratio: Tensor, march: March, good: Tensor) -> Tensor:
        order = self.step.tableau.error_order + 1
        floored = ratio.clamp_min(1e-10)  # nan stays nan
        factor = self.pid.factor(order, floored, march.before, march.earlier)
        factor = torch.where(good, factor, factor.clamp_max(self.pid.safety))
        return torch.where(ratio.isfinite(), factor, self.pid.smallest).to(march.h.dtype)


class Compiled:
    """An attempt as a compiled graph, one for each size of the batch."""

    def __init__(self, attempt: Attempt, outside: Sequence[Tensor]):
        self.attempt, self.outside = attempt, outside
        self.graphs: dict[int, Graph] = {}

    def __call__(self, march: March, t1: Tensor, theta: Sequence[Tensor]) -> Attempted:
        leaves = march.leaves()
        tensors = [*leaves, t1, *theta]
        graph = self.graphs.get(len(t1))
        if graph is None:
            back = {i: i for i in range(len(leaves))}
            flat, field = self._flat(march), self.attempt.step.field
            graph = self.graphs[len(t1)] = graph_of(self._key(), field, flat, tensors, self.outside, back)
        found = iter(graph(tensors, self.outside))
        after = march.map(lambda _: next(found))
        h, dense = next(found), tuple(next(found) for _ in range(self._shown))
        tally = next(found) if self.attempt.tallied else None
        if not t1.is_cuda:
            return Attempted(march, after, after.t, h, dense or None, (), tally)
        # The march has moved on in its own memory: what it was has been copied, times in one piece.
        (t, t_next), number = next(found).unbind(), next(found)
        start = march._replace(t=t, accepted=number, z=tuple(found))
        return Attempted(start, after, t_next, h, dense or None, (), tally)

    def _flat(self, march: March) -> Callable[..., list[Tensor]]:
        """The attempt as a function of a list of tensors."""

        def flat(*given: Tensor) -> list[Tensor]:
            rest = iter(given)
            part = march.map(lambda _: next(rest))
            start, after, t, h, dense, _, tally = self.attempt(part, next(rest), tuple(rest))
            found = [*after.leaves(), h, *(dense or ()), *([] if tally is None else [tally])]
            if h.is_cuda:
                found += [torch.stack([start.t, t]), start.accepted, *start.z]
            return found

        return flat

    @property
    def _shown(self) -> int:
        return 1 + self.attempt.step.field.driven if self.attempt.step.dense else 0

    def _key(self) -> Hashable:
        it = self.attempt
        return "attempt", identity(it.step), it.pid, it.tolerance, it.fixed, it.together, it.tallied


class Tally(NamedTuple):
    """What the loop knows of the samples in hand."""

    alive: int
    far: int  # alive, and not to be brought home by the next attempt
    failed: int | None = None


class Watch:
    """How many samples are alive, without making the GPU wait.

    On CPU the count is exact. On CUDA it is the one of the attempt before: the count travels to pinned memory while the
    next attempt is already queued, so the GPU always has work. Where the attempt under way should be the last one, the
    loop waits for its count, so that no other is queued in vain.
    """

    def __init__(self, device: torch.device, batch: int):
        self.asynchronous = device.type == "cuda"
        self.travelling: list[Callable[[], Tally]] = []
        self.known = Tally(batch, batch)

    def count(self, alive: Tensor, tally: Tensor | None = None) -> Tally:
        """What is known once these have been sent off."""
        if not self.asynchronous:
            self.known = _tally(int(alive.sum()) if tally is None else tally.tolist())
            return self.known
        self.travelling.append(self.send(alive.sum() if tally is None else tally))
        while len(self.travelling) > 1 or (self.travelling and self.known.far == 0):
            self.known = self.travelling.pop(0)()
        return self.known

    def send(self, counts: Tensor) -> Callable[[], Tally]:
        """Send counts on their way; the answer waits for them to arrive."""
        pinned = torch.empty(counts.shape, dtype=counts.dtype, pin_memory=True)
        pinned.copy_(counts, non_blocking=True)
        event = torch.cuda.Event()
        event.record()

        def arrived() -> Tally:
            event.synchronize()
            return _tally(pinned.tolist())

        return arrived


def _tally(counts: int | list[int]) -> Tally:
    return Tally(counts, counts) if isinstance(counts, int) else Tally(*counts)


class Ended(NamedTuple):
    """The end of a loop."""

    march: March
    failed: int | None  # how many samples did, where the loop has come to know


def integrate(
    attempt: Callable[[March, Tensor, Sequence[Tensor]], Attempted],
    march: March,
    t1: Tensor,
    theta: Sequence[Tensor],
    recorders: Sequence[Recorder] = (),
    *,
    max_steps: int,
    steps: int | None = None,
    compact: bool = True,
    ladder: int | None = None,
    tally: Tensor | None = None,
) -> Ended:
    """Attempt until no sample is alive or max_steps were taken, showing each move to the recorders.

    `steps`, where the number of attempts is known beforehand, saves asking. Once at most three quarters of the samples
    in hand are alive, the others are put aside (`compact`); in all, that copies a control no more than three times.
    With a `ladder` the batch only shrinks by that factor, so that few shapes have to be compiled.
    """
    watch = Watch(march.t.device, len(march.t))
    whole, rows, count, alive, failed = march, None, 0, len(march.t), None
    while count < max_steps:  # a sample that is alive has taken part in all of them
        known = watch.count(march.alive, tally) if steps is None else Tally(len(march.t) * (steps > count), 0)
        alive = known.alive
        if alive == 0:
            failed = known.failed if rows is None else None  # of those put aside nothing is known
            break
        size = len(march.t)
        enough = alive if ladder is None else rung(size, alive)
        if compact and steps is None and 4 * enough <= 3 * size:
            if rows is None:
                whole = march.map(torch.clone)  # the first time: from here on it is written to
            else:
                whole.write(rows, march)
            # A stable sort finds the living without asking the GPU how many there are.
            living = torch.argsort(march.alive, descending=True, stable=True)[:enough].sort().values
            rows = living if rows is None else rows[living]
            march, t1, theta = march.select(living), t1[living], [take(leaf, living) for leaf in theta]
        start, march, t, h, dense, slopes, tally = attempt(march, t1, theta)
        for recorder in recorders:
            recorder.add(Moves(rows, start.t, t, h, start.z, theta, dense, slopes, start.accepted))
        count += 1
    if steps is not None or alive > 0:
        march = march._replace(status=torch.where(march.alive, Status.MAX_STEPS, march.status).to(march.status.dtype))
    if rows is None:
        return Ended(march, failed)
    whole.write(rows, march)
    return Ended(whole, failed)
