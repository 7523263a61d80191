"""Solves with events, as a chain of solves without: each ends at the first event, or at t1.

A sample that has ended waits with an interval of length 0. Times and states where one solve ends and the next begins
are ordinary tensors of autograd, so that gradients pass through events and resets under every `gradient`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._torch_private import is_transforming
from ..errors import InputError, Status
from .events import Event
from .gradients.function import Outputs, harmless_state
from .independence import Positions
from .last_state import at_fixed_time
from .problem import Problem
from .record import join_tables, mask_like
from .solution import EventRecord, Stats
from .solver import Solved, solve_problem
from .step import evaluate_dense
from .system import Slope, State, System, expand_like, finite_samples, map_tensors, where
from .watch import EventWatch


class ChainStats(Stats):
    """The sum of the costs of several solves."""

    def __init__(self, parts: Sequence[Stats], corrections: Tensor):
        self.parts = tuple(parts)
        self.nfe = sum((part.nfe for part in parts), corrections)
        self.steps = sum((part.steps for part in parts), torch.zeros_like(corrections))
        self.rejected = sum((part.rejected for part in parts), torch.zeros_like(corrections))
        self.backend = parts[0].backend

    @property
    def nfe_backward(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Evaluations in backward, after it has run."""
        made = [part.nfe_backward for part in self.parts if part.nfe_backward is not None]
        return sum(made[1:], made[0]) if made else None


def solve_chain(problem: Problem, events: Sequence[Event]) -> tuple[Solved, tuple[EventRecord, ...]]:
    """Solve with events."""
    if is_transforming():
        raise InputError("events do not work inside torch.func transforms: differentiate by backward()")
    if problem.options.shared_step:
        raise InputError('with events each sample has its own end: use step="sample"')
    chain = _Chain(problem, events)
    while bool(chain.active.any()):
        chain.advance()
    return chain.solved(), chain.records()


@dataclass
class _Occurrence:
    """One event of some samples."""

    mask: Tensor
    time: Tensor
    x: State


class _Chain:
    """The time, state and results of each sample after the solves so far."""

    def __init__(self, problem: Problem, events: Sequence[Event]):
        system = replace(problem.system, shifted=True)
        theta = problem.theta if problem.system.shifted else (*problem.theta, problem.t0)
        self.problem = replace(
            problem,
            system=system,
            theta=theta,
            interval=None,
            whole_span=problem.span,
            together=False,
            has_events=True,
        )
        self.events = events
        self.checked: set[int] = set()  # ids of events whose reset is known to keep samples apart
        self.watch: EventWatch | None = None  # of the last solve
        self.control = problem.control
        self.z = self.final = problem.z0
        self.tau = torch.zeros_like(problem.t0)  # time since t0
        self.covered = self.tau  # up to which saved times have their values; rounding may take it beyond tau
        self.active = torch.ones_like(problem.t0, dtype=torch.bool)
        self.codes = torch.zeros(problem.batch, dtype=torch.int32, device=problem.t0.device)
        self.corrections = torch.zeros_like(self.codes)
        self.counts = torch.zeros(problem.batch, len(events), dtype=torch.int32, device=problem.t0.device)
        self.terminated = torch.zeros_like(self.counts, dtype=torch.bool)  # which event ended a sample
        self.occurrences: list[list[_Occurrence]] = [[] for _ in events]
        self.saved: State = ()
        self.controls: State = ()  # at the saved times
        self.dense: list[tuple[Tensor, Tensor, State, State]] = []
        self.stats: list[Stats] = []
        self.steps: list[Tensor] = []

    def advance(self) -> None:
        """Solve to the next event or t1 of each sample."""
        target = torch.where(self.active, self.problem.span, self.tau)
        part = self._part(target)
        watch = self.watch = EventWatch(self.events, part, self.active, self.watch)
        solved = solve_problem(part, watch)
        self.problem = replace(self.problem, checked=True)
        self.stats.append(solved.stats)
        active, ok = self.active, solved.codes == Status.OK
        self.codes = torch.where(active, solved.codes, self.codes)
        z = where(active & ok, solved.outputs.z, self.z)
        tau = torch.where(active, torch.where(ok, target, self.tau + solved.reached), self.tau)
        self._save(part, solved)
        self.covered, ended = tau.detach(), active
        self._keep_last(active & ~ok, part, solved.outputs.z, solved.reached, tau)
        mask = watch.fired.any(1) & active & ok
        if bool(mask.any()):
            tau, z, at_event = self._apply_events(watch, part, mask, tau, z)
            ended = (active & ~mask) | at_event
        fine = self.codes == Status.OK
        self.final = where(ended & fine, z, self.final)
        self.active = active & ~ended & fine
        self.z, self.tau = z, tau

    def _part(self, target: Tensor) -> Problem:
        """The problem of the next solve."""
        whole, tau = self.problem, self.tau
        t0, span, ts = whole.t0 + tau, target - tau, whole.ts
        if ts is not None:
            sign = whole.span.detach().sign()[:, None]
            since, until = ((ts - edge[:, None]).detach() * sign for edge in (self.covered, target))
            after = since >= 0 if not self.stats else since > 0
            ts = torch.where(after & (until <= 0) & self.active[:, None], ts - tau[:, None], torch.nan)
        theta = (*self.control, *whole.theta[len(whole.control) : -1], t0)
        theta = tuple(whole.system.enter(theta, torch.zeros_like(t0), span.detach())[0])
        steps = None
        if self.watch is not None:  # a sample goes on with the step in which its event was found
            steps = torch.minimum(self.watch.lengths, self.watch.ends.abs()) * whole.span.detach().sign()
            steps = whole.options.limits.clamp(steps)
        part = replace(whole, z0=self.z, theta=theta, t0=t0, t1=t0 + span, span=span, ts=ts, first_steps=steps)
        fine = self.codes == Status.OK
        if bool(fine.all()):
            return part
        # A sample that has failed stands still, and its slope, if infinite, would spoil shared gradients.
        return replace(part, z0=where(fine, self.z, harmless_state(part, fine)))

    def _keep_last(self, failed: Tensor, part: Problem, z: State, t: Tensor, tau: Tensor) -> None:
        """Set the results of samples that failed at t, a time since the last event."""
        if not bool(failed.any()):
            return
        if self.problem.keep_last:
            last = at_fixed_time(part, z, t, tau, failed)
        else:
            last = tuple(torch.full_like(leaf, torch.nan) for leaf in z)
        self.final = where(failed, last, self.final)

    def _save(self, part: Problem, solved: Solved) -> None:
        if part.ts is not None:
            here = ~part.ts.detach().isnan()
            self.saved = _filled(self.saved, here, solved.outputs.saved)
            self.controls = _filled(self.controls, here, [leaf[:, None] for leaf in self.control])
        if solved.steps is not None:
            steps = solved.steps + self.tau.detach()[:, None]
            self.steps.append(torch.where(self.active[:, None], steps, torch.nan))
        if solved.times is not None:
            begins, ends = (times + self.tau[:, None] for times in solved.times)
            self.dense.append((begins, ends, solved.outputs.states, solved.outputs.powers))

    def _save_between(self, mask: Tensor, end: Tensor, event: Tensor, z: State, at_event: State) -> None:
        """Fill in what lies between the end of a solve and its event, which the Newton step may have moved later.

        There the state is linear in time, as the Newton step is.
        """
        sign = self.problem.span.detach().sign()
        until, now = end.detach(), event.detach()
        self.covered = torch.where(mask, torch.maximum(until * sign, now * sign) * sign, self.covered)
        if self.steps:
            last = mask[:, None] & (self.steps[-1] == until[:, None])
            self.steps[-1] = torch.where(last, now[:, None], self.steps[-1])
        later = mask & ((now - until) * sign > 0)
        moves = [torch.where(m, b - a, 0) for m, a, b in zip(expand_like(later, z), z, at_event, strict=True)]
        if self.problem.ts is not None:
            self._save_line(later, end, event, z, moves)
        if self.dense:
            self._add_dense_line(torch.where(later, end, event), event, z, moves)

    def _save_line(self, mask: Tensor, begin: Tensor, end: Tensor, z: State, moves: Sequence[Tensor]) -> None:
        """Fill in the saved times on a line of states, from z to z + moves."""
        ts, sign = self.problem.ts, self.problem.span.detach().sign()[:, None]
        assert ts is not None
        at = ts.detach() * sign
        between = mask[:, None] & (at > begin.detach()[:, None] * sign) & (at <= end.detach()[:, None] * sign)
        # Without times elsewhere, before the division: a padded one, nan, would spoil the gradient of the event's time.
        part = torch.where(between, ts - begin[:, None], 0.0) / torch.where(mask, end - begin, 1.0)[:, None]
        line = evaluate_dense(z[: self.problem.system.shown], tuple(move[:, None] for move in moves), part)
        self.saved = _filled(self.saved, between, line)
        self.controls = _filled(self.controls, between, [leaf[:, None] for leaf in self.control])

    def _add_dense_line(self, begin: Tensor, end: Tensor, z: State, moves: Sequence[Tensor]) -> None:
        """Add a step to dense output in which the state is linear, from z to z + moves."""
        _, _, states, powers = self.dense[-1]
        higher = [
            it.new_zeros(len(move), it.shape[2] - 1, *move.shape[1:]) for it, move in zip(powers, moves, strict=False)
        ]
        linear = [torch.cat([move[:, None], rest], 1)[None] for move, rest in zip(moves, higher, strict=False)]
        shown = tuple(leaf[None] for leaf in z[: len(states)])
        self.dense.append((begin[:, None], end[:, None], shown, tuple(linear)))

    def _apply_events(
        self, watch: EventWatch, part: Problem, mask: Tensor, tau: Tensor, z: State
    ) -> tuple[Tensor, State, Tensor]:
        """Record events and apply their resets: the time and state to go on with, and which samples end."""
        part = watch.shorten(part)
        # The functions see all samples; those without an event, without gradients.
        seen = where(mask, z, [leaf.detach() for leaf in where(mask, z, self.problem.z0)])
        shift, moves = watch.correct(part, seen, mask)
        self.corrections = self.corrections + mask.int()
        tau = torch.where(mask, self.tau + watch.ends + shift, tau)
        at_event = where(mask, tuple(a + b for a, b in zip(seen, moves, strict=True)), z)
        self._save_between(mask, self.tau + watch.ends, tau, seen, at_event)
        after, control = at_event, self.control
        ended = torch.zeros_like(mask)
        for i, event in enumerate(self.events):
            here = watch.fired[:, i] & mask
            self.counts[:, i] += here.int()
            self.occurrences[i].append(_Occurrence(here, self.problem.t0 + tau, at_event[: self.problem.system.states]))
            full = here & (self.counts[:, i] >= event.limit)
            if event.terminal:
                ended = ended | full
                self.terminated[:, i] |= full
            else:
                over = here & (self.counts[:, i] > event.limit)
                self.codes = torch.where(over, Status.MAX_EVENTS, self.codes).to(torch.int32)
            if event.reset is not None:
                after = self._reset(event, here & ~ended, tau, after, part)
        usable = torch.stack([finite_samples(leaf) for leaf in (*after, *self.control)]).all(0)
        self.codes = torch.where(mask & ~ended & ~usable, Status.NOT_FINITE, self.codes).to(torch.int32)
        failed = mask & (self.codes != Status.OK)
        # A sample that stays here has the state and control before all resets.
        stays = ended | failed
        self.control = where(stays, control, self.control)
        self._keep_last(failed, part, at_event, watch.ends, tau)
        return tau, where(ended, at_event, after), stays

    def _reset(self, event: Event, mask: Tensor, tau: Tensor, z: State, part: Problem) -> State:
        """The state after a reset, for samples in the mask; a control that feedback does not drive may change too."""
        system = self.problem.system
        t = (self.problem.t0 + tau).to(system.dtype)
        # Another event at the same time may have changed the control already.
        theta = (*self.control, *part.theta[len(self.control) :])
        states = system.states
        old = (*z[:states], *(z[states : system.shown] if system.driven else self.control))
        rule, seen = _ResetRule(event, system, old), _at_one_of(mask, z)
        new = rule.bind(theta)(t, seen)
        if id(event) not in self.checked:
            self.checked.add(id(event))
            positions = Positions((), self.problem.batch, with_events=True)
            positions.refuse_interaction(rule, t, seen, theta, new, t)
        changed = where(mask, new, old)
        if system.driven:
            return (*changed, *z[system.shown :])
        self.control = changed[states:]
        return (*changed[:states], *z[states:])

    def solved(self) -> Solved:
        """All solves as one."""
        states: State = ()
        powers: State = ()
        times = None
        if self.dense:
            begins, ends, states_of, powers_of = zip(*self.dense, strict=True)
            times = torch.cat(begins, 1), torch.cat(ends, 1)
            states = tuple(torch.cat(leaves) for leaves in zip(*states_of, strict=True))
            powers = tuple(torch.cat(leaves) for leaves in zip(*powers_of, strict=True))
        outputs = Outputs(self.final, self.saved, states, powers)
        stats = ChainStats(self.stats, self.corrections)
        steps = join_tables(self.steps) if self.steps else None
        return Solved(
            outputs, stats, self.codes, self.tau.detach(), times, None, steps, self.control or None, self.controls
        )

    def records(self) -> tuple[EventRecord, ...]:
        """What happened, event by event."""
        # With an event of no sample, since a loss must have a backward even if no sample met an event.
        x = self.final[: self.problem.system.states]
        time = sum((leaf.real.double().reshape(len(leaf), -1).sum(1) for leaf in x), self.tau)
        nobody = _Occurrence(torch.zeros_like(self.active), time, x)
        return tuple(
            make_event_record(self.counts[:, i], self.terminated[:, i], occurrences or [nobody], self.problem)
            for i, occurrences in enumerate(self.occurrences)
        )


def _filled(values: State, here: Tensor, new: Sequence[Tensor]) -> State:
    """Values at the saved times, each (batch, T, ...) and nan at first, with new ones at some times."""
    old = values or [torch.full((), torch.nan, dtype=leaf.dtype, device=leaf.device) for leaf in new]
    masks = [here.reshape(*here.shape, *[1] * (leaf.dim() - 2)) for leaf in new]
    return tuple(torch.where(*each) for each in zip(masks, new, old, strict=True))


def _at_one_of(mask: Tensor, z: State) -> State:
    """The state with all samples outside of the mask at the place of the first one in it, without gradients.

    A function may have no finite derivative where samples without an event are, and spoil a gradient that all share.
    """
    first = mask.int().argmax().reshape(1)
    return where(mask, z, [leaf.detach().index_select(0, first).expand_as(leaf) for leaf in z])


class _ResetRule:
    """The reset of an event as a function of (time, z): the new leaves of x and of the control."""

    def __init__(self, event: Event, system: System, old: State):
        self.event, self.system, self.old = event, system, old

    @property
    def time_constants(self) -> int:
        return self.system.time_constants

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor:
        return t

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        return functools.partial(self._leaves, theta)

    def _leaves(self, theta: Sequence[Tensor], t: Tensor, z: State) -> State:
        system = self.system
        # Copies, so that a reset that works in place changes only its own samples.
        x, control = system.arguments(*map_tensors(torch.clone, (z, tuple(theta))))
        assert self.event.reset is not None
        found = self.event.reset(t, x, control)
        paired = isinstance(found, tuple) and len(found) == 2 and system.spec is not None
        new_x, new_control = found if paired else (found, control)
        leaves = [] if system.spec is None else system.flatten(new_control)
        return _checked_reset((*system.flatten_x(new_x, "the reset of an Event"), *leaves), self.old)


def _checked_reset(new: Sequence[Any], old: Sequence[Tensor]) -> State:
    for value, leaf in zip(new, old, strict=True):
        if not isinstance(value, Tensor) or value.shape != leaf.shape or value.dtype != leaf.dtype:
            given = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                "the reset of an Event must return x, or (x, theta), with the shapes and dtypes that they had:"
                f" expected {leaf.dtype} {tuple(leaf.shape)}, returned {given}"
            )
    return tuple(new)


def make_event_record(
    counts: Tensor, ended: Tensor, occurrences: Sequence[_Occurrence], problem: Problem
) -> EventRecord:
    """The n-th occurrence of every sample side by side."""
    most = max(int(counts.max()), 1) if len(counts) else 1
    ts = torch.full((len(counts), most), torch.nan, dtype=torch.float64, device=counts.device)
    xs = [x.new_full((len(counts), most, *x.shape[1:]), torch.nan) for x in problem.z0[: problem.system.states]]
    made = torch.zeros_like(counts)
    columns = torch.arange(most, device=counts.device)
    for it in occurrences:
        place = it.mask[:, None] & (columns == made[:, None])
        ts = torch.where(place, it.time[:, None], ts)
        xs = [torch.where(mask_like(place, x), x[:, None], old) for x, old in zip(it.x, xs, strict=True)]
        made = made + it.mask.int()
    return EventRecord(counts, ts, problem.system.nest_x(xs), ended)
