"""A solve is watched for events: after each step the signs of the event functions are compared with those before.

The first change is located by root finding on dense output. The step is then taken again, shortened, so that it ends
there: an event is the end of a sample's interval, and the method's own order holds up to it.

With v(t, z) the event function, the end (t, z) of the shortened step and r = dv/dt + dv/dz dz/dt, one Newton step

    t_event = t - v(t, z) / r,     z_event = z - v(t, z) / r dz/dt

removes the error of dense output. Its derivative with constant r and dz/dt is also the derivative of the event's time
and state (implicit function theorem), so that autograd finds the gradients of events by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .attempt import Attempt, AttemptInputs, AttemptResult, LoopState
from .events import Event
from .gradients.first_order import first_order
from .held_values import held_by
from .problem import Problem
from .root_finding import find_root, step_bracket
from .step import evaluate_dense
from .system import (
    EVENT_CHANGES_ARGUMENT,
    EVENT_WITHOUT_DERIVATIVE,
    Slope,
    State,
    map_tensors,
    reads_by_numpy,
    rebuild,
    tensors_of,
    versions_of,
    where,
    writes_to_output,
)

_SECOND_DERIVATIVE = (
    "a second derivative through an event was asked for, and events have first ones only: leave the events out, or take"
    " finite differences of first derivatives"
)


class EventWatch:
    """Watches one solve for the first event of each sample, and ends the sample's interval there."""

    def __init__(self, events: Sequence[Event], problem: Problem, active: Tensor, before: EventWatch | None = None):
        self.active = active  # samples that have not ended before
        batch, device = problem.batch, problem.t0.device
        self.events, self.system = events, problem.system
        self.directions = torch.tensor([event.direction for event in events], device=device)
        self.signs = torch.zeros(batch, len(events), device=device)  # just after the last accepted step
        self.last = torch.zeros(batch, len(events), dtype=problem.system.dtype, device=device)  # values there
        self.fired = torch.zeros(batch, len(events), dtype=torch.bool, device=device)
        self.ends = torch.zeros_like(problem.t0)
        # The length of the solve before, for events that ended it: the scale of the rounding of their times.
        self.since = torch.zeros_like(self.signs) if before is None else before.fired * before.ends.abs()[:, None]
        self.lengths = torch.zeros_like(self.ends)  # of the step in which an event was found
        # Signs behind the last event, 0 where unknown, and for how long values may still have the sign before it.
        unknown = torch.zeros_like(self.signs), torch.zeros(batch, len(events), dtype=torch.float64, device=device)
        self.known, self.unsure = unknown if before is None else before.signs_behind()
        functions = [it for event in events for it in (event.function, event.reset) if it is not None]
        held = [it for function in functions for it in held_by(function) if isinstance(it, Tensor)]
        # A tensor may have one row per sample; `check_separate` finds out whether places matter in other ways.
        known = before is not None and before.holds_samples
        self.holds_samples = known or any(batch in tensor.shape for tensor in held)

    def values(self, t: Tensor, z: State, theta: Sequence[Tensor]) -> Tensor:
        """The event functions at a time of the clock, (batch, events)."""
        return torch.stack([self.value(event, t, z, theta) for event in self.events], 1)

    def value(self, event: Event, t: Tensor, z: State, theta: Sequence[Tensor]) -> Tensor:
        given = (t, *z, *theta)
        before = versions_of(given)
        try:
            value = event.function(t, *self.system.arguments(z, theta))
        except RuntimeError as error:  # autograd forbids some changes
            if writes_to_output(error) or reads_by_numpy(error):
                raise InputError(EVENT_WITHOUT_DERIVATIVE) from error
            if "in-place" not in str(error):
                raise
            raise InputError(EVENT_CHANGES_ARGUMENT) from error
        if versions_of(given) != before:
            raise InputError(EVENT_CHANGES_ARGUMENT)
        if not isinstance(value, Tensor) or value.shape != t.shape or not value.is_floating_point():
            given = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"the function of an Event must return one real number per sample, a tensor of shape {tuple(t.shape)};"
                f" returned {given}"
            )
        return value

    @property
    def time_constants(self) -> int:
        return self.system.time_constants

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor:
        return self.system.clock(theta, t)

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """The values as a function of (time of the clock, z), as a system has its slopes."""
        return lambda t, z: (self.values(t, z, theta),)

    def rates(self, t: Tensor, z: State, theta: Sequence[Tensor], slope: State) -> tuple[Tensor, Tensor, Tensor]:
        """Values, their derivatives along the solution, and sizes to compare rounding with; each (batch, events)."""
        shown, fixed = self.system.shown, [leaf.detach() for leaf in theta]
        at, columns = (t, *z[:shown]), []
        for event in self.events:

            def value(t: Tensor, *x: Tensor, event: Event = event) -> Tensor:
                return self.value(event, t, (*x, *z[shown:]), fixed)

            columns.append(_along(value, at, (torch.ones_like(t), *slope)))
        values, rates, sizes = (torch.stack(column, 1) for column in zip(*columns, strict=True))
        return values, rates, sizes

    def start(self, problem: Problem, slope: State) -> None:
        """Find the signs just after the start; slopes tell where a value is 0, as after a reset."""
        t, z, theta = problem.start
        values, rates, sizes = self.rates(self.system.clock(theta, t), z, theta, slope)
        forward = problem.span.detach().sign()[:, None].to(values.dtype)
        # Of the value, and of the time of an event that has just happened.
        sizes = sizes + rates.abs() * self.since.to(sizes.dtype)
        rounding = 64 * torch.finfo(values.dtype).eps * sizes
        signs = torch.where(values.abs() > rounding, values.sign(), (rates * forward).sign())
        signs = torch.where(self.known != 0, self.known.to(signs), signs)
        self.signs, self.last = signs.masked_fill(values.isnan(), torch.nan), values

    def signs_behind(self) -> tuple[Tensor, Tensor]:
        """The signs behind the events that ended the solve, 0 where a reset moves the sample, and how long to wait.

        The event was found on dense output. Where the Newton step cannot remove its error, since the function jumps or
        has no derivative, the solution meets the event a little later, within the length of a step.
        """
        resets = torch.tensor([event.reset is not None for event in self.events], device=self.fired.device)
        known = self.fired & ~(self.fired & resets).any(1, keepdim=True)
        return torch.where(known, -self.signs, 0.0), torch.where(known, self.lengths[:, None], 0.0)

    def _settled(self, values: Tensor, time: Tensor, index: Any) -> tuple[Tensor, Tensor]:
        """Values with the sign behind the last event, and which of them still have that before it."""
        signs = self.signs[index].to(values)
        late = (values.sign() == -signs) & (time.abs()[:, None] < self.unsure[index])
        return torch.where(late, signs, values), late

    def review(
        self, attempt: Attempt, before: LoopState, inputs: AttemptInputs, result: AttemptResult, rows: Tensor | None
    ) -> tuple[AttemptResult, Tensor]:
        """Look for events in the steps of one attempt; a sample with one is put back, with its t1 at the event."""
        index = slice(None) if rows is None else rows
        theta, stop = self.system.enter(inputs.theta, result.t, inputs.t1)
        result, t1 = self._end_at_events(attempt, before, inputs._replace(theta=theta), result, index)
        if self.system.bounded:
            self._pass_jumps((result.h != 0) & (result.t_next == stop) & (stop != inputs.t1), inputs, result, index)
        return result, t1

    def _pass_jumps(self, mask: Tensor, inputs: AttemptInputs, result: AttemptResult, index: Any) -> None:
        """Take the signs on the other side of a jump: a function that jumps there has no event."""
        if not bool(mask.any()):
            return
        t, z = result.state.t, result.state.z
        theta, _ = self.system.enter(inputs.theta, t, inputs.t1)
        values, _, sizes = self.rates(self.system.clock(theta, t), z, theta, tuple(map(torch.zeros_like, z)))
        clear = mask[:, None] & (values.abs() > 64 * torch.finfo(values.dtype).eps * sizes)
        self.signs[index] = torch.where(clear, values.sign(), self.signs[index])
        self.last[index] = torch.where(clear, values, self.last[index])

    def _end_at_events(
        self, attempt: Attempt, before: LoopState, inputs: AttemptInputs, result: AttemptResult, index: Any
    ) -> tuple[AttemptResult, Tensor]:
        t, h, t1 = result.t, result.h, inputs.t1
        watched = (h != 0) & ~self.fired[index].any(1)
        if not bool(watched.any()):
            return result, t1
        first, together = self._search(inputs.theta, result, index, watched)
        hit, undefined = first.isfinite(), first.isnan()
        if not bool((hit | undefined).any()):
            return result, t1
        end = torch.where(hit, t + torch.where(hit, first, 0.0) * h, t1)
        self.fired[index] |= together & hit[:, None]
        self.ends[index] = torch.where(hit, end, self.ends[index])
        self.lengths[index] = torch.where(hit, h.abs(), self.lengths[index])
        back = before._replace(
            rejected=before.rejected + 1,  # the step is taken again
            spent=result.state.spent,
            alive=before.alive & (end != t),
        )
        retried = attempt.reject(before._replace(spent=result.state.spent), h, t1)
        state = _replaced(_replaced(result.state, back, hit), retried, undefined)
        counts = None if result.counts is None else attempt.count(state, end)
        stays = hit | undefined
        stayed = {"t_next": torch.where(stays, t, result.t_next), "h": torch.where(stays, 0.0, h)}
        return result._replace(state=state, counts=counts, **stayed), end

    def _search(
        self, theta: Sequence[Tensor], result: AttemptResult, index: Any, watched: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Where in their steps samples meet their first event, and which events happen there.

        inf: nowhere; nan: a function is nan before, so that the step is too long to tell.
        """
        half = torch.full_like(result.t, 0.5)
        middle = self.values(*self._dense_at(half, theta, result), theta)
        end = self.values(self.system.clock(theta, result.t + result.h), result.state.z, theta)
        middle, _ = self._settled(middle, result.t + half * result.h, index)
        end, late = self._settled(end, result.t + result.h, index)
        signs, last = self.signs[index], self.last[index]
        in_first, after = self._crossed(signs, middle)
        in_second, after = self._crossed(after, end)
        in_first, in_second = in_first & watched[:, None], in_second & watched[:, None]
        found = in_first | in_second
        places = torch.full_like(found, torch.inf, dtype=result.t.dtype)
        for i in found.any(0).nonzero().flatten().tolist():
            values = last[:, i], middle[:, i], end[:, i]
            places[:, i] = self._locate(self.events[i], theta, result, found[:, i], in_first[:, i], *values)
        first = places.amin(1)  # nan if one is
        lost = (signs + middle).isnan().any(1) & ~(first <= 0.5) | end.isnan().any(1) & (first == torch.inf)
        first = first.masked_fill(watched & lost, torch.nan)
        moved = (watched & (first == torch.inf))[:, None]
        self.signs[index], self.last[index] = torch.where(moved, after, signs), torch.where(moved, end, last)
        self.unsure[index] = torch.where(moved & ~late, 0.0, self.unsure[index])
        return first, places <= (first + 8 * torch.finfo(first.dtype).eps)[:, None]

    def _crossed(self, signs: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Which signs change to those of these values, in the directions of the events, and the signs after."""
        new, unknown = values.sign(), values.isnan()  # whose sign is 0
        same = (new == signs) | (signs == 0) | unknown
        after = torch.where(unknown, signs, torch.where(new != 0, new, torch.where(same, signs, -signs)))
        return ~same & ((self.directions == 0) | (signs == -self.directions)), after

    def _dense_at(self, sigma: Tensor, theta: Sequence[Tensor], result: AttemptResult) -> tuple[Tensor, State]:
        """The time of the clock and the state at a point of each step."""
        assert result.dense is not None
        values = evaluate_dense(result.z[: self.system.shown], result.dense, sigma[:, None])
        return self.system.clock(theta, result.t + sigma * result.h), tuple(leaf[:, 0] for leaf in values)

    def _locate(
        self,
        event: Event,
        theta: Sequence[Tensor],
        result: AttemptResult,
        found: Tensor,
        in_first: Tensor,
        *values: Tensor,
    ) -> Tensor:
        """Where in their steps the samples in `found` meet one event, inf for others; it is in one of the halves.

        The values are those at the start of the step, in its middle and at its end.
        """
        root = torch.full_like(result.t, torch.inf)
        rows = torch.arange(len(root), device=root.device) if self.holds_samples else found.nonzero()[:, 0]
        steps = result._replace(slopes=(), state=None, counts=None)
        theta, steps, in_first, values = map_tensors(
            lambda leaf: leaf.index_select(0, rows), (tuple(theta), steps, in_first, values)
        )

        def value(sigma: Tensor) -> Tensor:
            return self.value(event, *self._dense_at(sigma, theta, steps), theta)

        place = find_root(value, step_bracket(in_first, *values))
        return torch.where(found, root.index_copy(0, rows, place), torch.inf)

    def shorten(self, problem: Problem) -> Problem:
        """The problem that ends at the events, at constant distances from t0: `correct` adds their derivatives."""
        hit, ts = self.fired.any(1), problem.ts
        # Where all samples end at events, no span has a gradient, which would cost time in backward.
        everyone = bool((hit | ~self.active).all())
        span = self.ends if everyone else torch.where(hit, self.ends, problem.span)
        if ts is not None:
            beyond = hit[:, None] & (ts.detach().abs() > self.ends.abs()[:, None])
            ts = torch.where(beyond, torch.nan, ts)
        t1 = torch.where(hit, problem.t0.detach() + self.ends, problem.t1)
        return replace(problem, span=span, t1=t1, ts=ts)

    def correct(self, problem: Problem, z: State, mask: Tensor) -> tuple[Tensor, State]:
        """The Newton step to the event, for samples in the mask: what to add to the time and to the state."""
        system, span = self.system, problem.span
        theta, _ = system.enter(problem.theta, span, torch.zeros_like(span))  # on the side that the sample comes from
        t = system.clock(theta, span)
        fixed = tuple(leaf.detach() for leaf in z)
        with torch.no_grad():
            slope = system.bind(theta)(t, fixed)
        _, rates, _ = self.rates(t, fixed, theta, slope)
        first = self.fired.int().argmax(1, keepdim=True)
        rate = rates.gather(1, first)[:, 0]
        flat = mask & (rate == 0)
        if bool(flat.any()) and any(leaf.requires_grad for leaf in z):
            raise InputError(
                f"an event of sample {int(flat.int().argmax())} does not change along the solution where it happens:"
                " its time has no gradient; use an event function with a derivative, or torch.no_grad()"
            )
        value = self.values(t, z, theta).gather(1, first)[:, 0]
        steep = mask & (rate != 0)  # the others jump, as an indicator does, and stay where they are
        shift = torch.where(steep, -value / torch.where(steep, rate, 1.0), 0.0).double()
        # Dense output is close: a longer way is a sign of an event function that bends sharply.
        small = shift.detach().abs() <= 0.01 * problem.span.detach().abs()
        shift = first_order(_SECOND_DERIVATIVE, torch.where(small, shift, shift - shift.detach()))
        moves = (shift.to(leaf.real.dtype).reshape(-1, *[1] * (leaf.dim() - 1)) for leaf in z)
        return shift, tuple(move * k for move, k in zip(moves, slope, strict=True))


def _along(
    function: Callable[..., Tensor], at: Sequence[Tensor], slopes: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """A function's value, its derivative along the slopes, and the sum of |derivative| |argument|; each (batch,)."""
    value, grads = _value_and_gradients(function, at)
    rate, size = torch.zeros_like(value), value.abs()
    for grad, argument, slope in zip(grads, at, slopes, strict=False):
        if grad is not None:
            rate = rate + (grad.conj() * slope).real.reshape(len(rate), -1).sum(1)
            size = size + (grad.abs() * argument.detach().abs()).reshape(len(rate), -1).sum(1)
    return value, rate, size


def _value_and_gradients(
    function: Callable[..., Tensor], at: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """The values of a function, (batch,), and the gradients of their sum; None where it does not depend."""
    with torch.enable_grad():
        at = [leaf.detach().requires_grad_() for leaf in at]
        value = function(*at)
    if not value.requires_grad:
        return value, [None] * len(at)
    return value.detach(), torch.autograd.grad(value, at, torch.ones_like(value), allow_unused=True)


def _replaced(state: LoopState, other: LoopState, mask: Tensor) -> LoopState:
    """A state with some of its samples taken from another one."""
    pairs = zip(tensors_of(state), tensors_of(other), strict=True)
    return rebuild(state, [where(mask, (new,), (old,))[0] for old, new in pairs])
