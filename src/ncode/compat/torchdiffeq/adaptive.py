"""Adaptive steps, one step size for the whole state: the loop, its step-size control and its dense output.

The step size is chosen as in torchdiffeq, and without a gradient: from the error of a step relative to the tolerance,
e, the next one is h * clamp(safety / e^(1 / order), dfactor, ifactor). Steps go past the times of t; the values there
come from dense output. The loop's own time is the distance from t[0]: it increases in either direction, and a
late start (epoch milliseconds) costs no precision.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import InputError, Status, format_value
from .arguments import NO_CALLBACKS, Callbacks, NoEvent, SolverFailed, Tolerance
from .runge_kutta import Bracket, Field, Method, Step, advance, combine, real_dtype, time_shift, towards
from .states import Norm

EVENT_STEPS = 100_000  # default of max_num_steps where only an event ends the solve
INFINITY = float("inf")


class Landing(NamedTuple):
    """A time at which a step must end; where the field jumps, its slope is evaluated again behind it."""

    t: float  # of the loop
    time: float  # the user's
    jump: bool


@dataclass(frozen=True, eq=False)
class Adaptive:
    """How to solve with adaptive steps."""

    method: Method
    rtol: Tolerance
    atol: Tolerance
    norm: Norm
    callbacks: Callbacks = NO_CALLBACKS
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = INFINITY
    safety: float = 0.9
    ifactor: float = 10.0
    dfactor: float = 0.2
    max_num_steps: int | None = None
    step_t: Tensor | None = None
    jump_t: Tensor | None = None
    dtype: Any = None  # torchdiffeq's precision of time; here it is always double
    precision: torch.dtype | None = None  # of the times that func is told, if not that of the state

    def solve(self, f: Field, y0: Tensor, t: Tensor) -> Tensor:
        """The states at the times of t, (T, ...)."""
        return torch.cat(self._blocks(f, y0, t))

    def final(self, f: Field, y0: Tensor, t: Tensor) -> Tensor:
        """The state at the last time of t."""
        return self._blocks(f, y0, t)[-1][-1]

    def _blocks(self, f: Field, y0: Tensor, t: Tensor) -> list[Tensor]:
        times = t.tolist()
        if len(times) == 1:
            return [y0[None]]
        loop = Loop(self, f, y0, t)
        ends = [loop.distance(time) for time in times]
        rows, i = [y0[None]], 1
        while i < len(ends):
            step = loop.advance_past(ends[i])
            j = bisect_right(ends, step.t1, i)
            rows.append(loop.values(step, t[i:j] if loop.differentiable else times[i:j]))
            i = j
        return rows

    def until_event(self, f: Field, y0: Tensor, t: Tensor, crossed: Callable[[float, Tensor], bool]) -> Bracket:
        """Step until `crossed(t, y)` at the end of a step."""
        loop, limit = Loop(self, f, y0, t), self.max_num_steps or EVENT_STEPS
        try:
            for _ in range(limit):
                step = loop.attempt()
                if step is not None and crossed(loop.time(step.t1), step.y1):
                    return Bracket(loop.time(step.t0), loop.time(step.t1), partial(loop.value, step))
        except SolverFailed as error:
            where = "and event_fn had not changed its sign before"
            raise SolverFailed(error.statuses[0], error.times[0], where) from None
        raise NoEvent(
            f"no event between t = {t[0].item():.6g} and {loop.time(loop.t):.6g}, in {limit} steps: event_fn has not"
            ' changed its sign; check it and the direction of time, or raise options["max_num_steps"]'
        )

    def dense(self, f: Field, y0: Tensor, t: Tensor) -> tuple[Loop, list[Step]]:
        """The loop and its steps from t[0] to t[1]."""
        loop, steps = Loop(self, f, y0, t), []
        end = loop.distance(t[1].item())
        while loop.t < end:
            steps.append(loop.advance_past(loop.t))
        return loop, steps


class Loop:
    """A solve under way: its time, state, slope and next step size."""

    def __init__(self, solver: Adaptive, f: Field, y0: Tensor, t: Tensor):
        self.solver, self.f, self.sign = solver, f, -1.0 if bool(t[0] > t[-1]) else 1.0
        self.real, self.device = solver.precision or real_dtype(y0), y0.device
        self.shift = time_shift(t)
        self.differentiable = self.shift is not None
        self.behind = torch.full((), -self.sign * INFINITY, dtype=self.real, device=self.device)
        self.dense_rows = torch.tensor(solver.method.dense, dtype=torch.float64, device=self.device).mT
        self.begin, self.t, self.y, self.finite = t[0].item(), 0.0, y0, True
        self.landings = self._landings()
        self.slope = f(self._tell(self.begin), y0)
        self.h = self._first_step() if solver.first_step is None else solver.first_step

    def distance(self, time: float) -> float:
        """The loop's time of a time of the user."""
        return self.sign * (time - self.begin)

    def time(self, t: float) -> float:
        """The user's time of a time of the loop."""
        return self.begin + self.sign * t

    def advance_past(self, t: float) -> Step:
        """Step to `t` or past it, and return the last step."""
        for _ in range(self.solver.max_num_steps or 2**31):
            step = self.attempt()
            if step is not None and step.t1 >= t:
                return step
        raise SolverFailed(Status.MAX_STEPS, self.time(self.t))

    def attempt(self) -> Step | None:
        """Try a step, and return it if it is accepted."""
        solver, method, t0, y0 = self.solver, self.solver.method, self.t, self.y
        h = min(max(self.h, solver.min_step), solver.max_step)
        if solver.callbacks.step is not None:
            solver.callbacks.step(self.time(t0), y0, h)
        t1 = t0 + h
        if not t1 > t0:
            raise SolverFailed(Status.STEP_TOO_SMALL if self.finite else Status.NOT_FINITE, self.time(t0))
        landing = self.landings[-1] if self.landings and self.landings[-1].t <= t1 else None
        length: float | Tensor = self.sign * h
        if landing is not None:
            t1, h = landing.t, landing.t - t0
            length = self.sign * h if self.shift is None else self.sign * h - self.shift

        times = self._stage_times(h, t1, landing)
        slopes = [self.slope]
        y1 = advance(self.f, method, y0, length, times, slopes)
        if method.end_slope:
            slopes.append(self.f(times[-1], y1))
        error = self._error(h, y0, y1, slopes)
        accepted = error <= 1 or h <= solver.min_step
        self.h, self.finite = self._next_step(h, error), error < INFINITY
        report = solver.callbacks.accept if accepted else solver.callbacks.reject
        if report is not None:
            report(self.time(t0), y0, h)
        if not accepted:
            return None
        if not self.finite:
            raise SolverFailed(Status.NOT_FINITE, self.time(t0))
        step = Step(t0, t1, y0, y1, length, slopes, self.shift)
        self._continue_after(step, landing)
        return step

    def _continue_after(self, step: Step, landing: Landing | None) -> None:
        self.t, self.y, self.slope = step.t1, step.y1, step.slopes[-1]
        if landing is not None:
            self.landings = [later for later in self.landings if later.t > landing.t]
            self.shift = None  # the step ended at a time that does not move with t[0]
            if landing.jump:
                self.slope = self.f(towards(self._tell(landing.time), self.sign), step.y1)

    def values(self, step: Step, times: Sequence[float] | Tensor) -> Tensor:
        """The states (m, ...) at the user's times of a step, by its dense output."""
        begin, degree = self.sign * step.t0, len(self.dense_rows)
        if self.differentiable:
            times = torch.as_tensor(times, dtype=torch.float64, device=self.device)
            offset = times - self.begin - begin
            sigma = (offset if step.shift is None else offset - step.shift) / step.length
            powers = torch.stack([step.length * sigma ** (q + 1) for q in range(degree)], 1)
        else:
            h = self.sign * (step.t1 - step.t0)
            sigmas = [(time - self.begin - begin) / h for time in times]
            rows = [[h * sigma ** (q + 1) for q in range(degree)] for sigma in sigmas]
            powers = torch.tensor(rows, dtype=torch.float64, device=self.device)
        y, slopes = step.y0, torch.stack(step.slopes).reshape(len(step.slopes), -1)
        out = torch.addmm(y.reshape(1, -1), (powers @ self.dense_rows).to(y.dtype), slopes)
        return out.view(-1, *y.shape)

    def value(self, step: Step, time: float) -> Tensor:
        """The state at one time of a step."""
        return self.values(step, [time])[0]

    def _tell(self, time: float) -> Tensor:
        """A time of the user as func is told it."""
        told = torch.tensor(time, dtype=self.real, device=self.device)
        return told if self.shift is None else told + self.shift.to(self.real)

    def _stage_times(self, h: float, t1: float, landing: Landing | None) -> list[Tensor]:
        """The times of the stages; those at the end of the step are just before it, where the field may jump."""
        method = self.solver.method
        begin, sign = self.begin, self.sign
        values = [begin + sign * (self.t + c * h) for c in method.inner]
        values.append(self.time(t1) if landing is None else landing.time)
        times = list(torch.tensor(values, dtype=self.real, device=self.device).unbind())
        times[-1] = torch.nextafter(times[-1], self.behind)
        if self.shift is not None:
            shift, nodes = self.shift.to(self.real), (*method.inner, 1.0)
            moves = [shift if landing is None else shift * (1 - c) for c in nodes]
            times = [time + move for time, move in zip(times, moves, strict=True)]
        return times + times[-1:] * (method.at_end - 1)

    def _landings(self) -> list[Landing]:
        """Times to land on, the next one last."""
        steps, jumps = ([] if given is None else given.tolist() for given in (self.solver.step_t, self.solver.jump_t))
        if len({*steps, *jumps}) < len(steps) + len(jumps):
            raise InputError("step_t and jump_t must not repeat a time, nor have one in common")
        pairs = [*((t, False) for t in steps), *((t, True) for t in jumps)]
        landings = [Landing(self.distance(t), t, jump) for t, jump in pairs]
        return sorted((landing for landing in landings if landing.t > self.t), reverse=True)

    @torch.no_grad()
    def _error(self, h: float, y0: Tensor, y1: Tensor, slopes: list[Tensor]) -> float:
        """The norm of the step's error relative to the tolerance; infinity for nan."""
        (first, weight), *others = self.solver.method.error
        error = slopes[first] * (h * weight)
        for i, weight in others:
            error.add_(slopes[i], alpha=h * weight)
        return self._norm(error, torch.maximum(y0.abs(), y1.abs()))

    def _norm(self, x: Tensor, size: Tensor) -> float:
        found = self.solver.norm(x / (self.solver.atol + self.solver.rtol * size))
        try:
            value = abs(float(found))
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"the norm must return one number; returned {format_value(found)}") from None
        return value if value == value else INFINITY

    def _next_step(self, h: float, error: float) -> float:
        solver = self.solver
        if error == 0:
            factor = solver.ifactor
        else:
            smallest = 1.0 if error < 1 else solver.dfactor
            factor = min(solver.ifactor, max(solver.safety * error ** (-1 / solver.method.order), smallest))
        return min(max(h * factor, solver.min_step), solver.max_step)

    @torch.no_grad()
    def _first_step(self) -> float:
        """Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I", section II.4."""
        y, slope, size = self.y, self.slope, self.y.abs()
        d0, d1 = self._norm(y, size), self._norm(slope, size)
        if d0 == INFINITY and not bool(y.isfinite().all()):
            raise InputError("y0 is not finite: it contains nan or inf")
        if d1 == INFINITY and not bool(slope.isfinite().all()):
            raise SolverFailed(Status.NOT_FINITE, self.begin)
        h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
        if h0 == 0.0:  # the slope is finite, and its norm is not
            raise SolverFailed(Status.STEP_TOO_SMALL, self.begin)
        ahead = self.f(self._tell(self.time(h0)), combine(y, self.sign * h0, ((0, 1.0),), [slope]))
        d2 = self._norm(ahead - slope, size) / h0
        h1 = max(1e-6, 1e-3 * h0) if max(d1, d2) <= 1e-15 else (0.01 / max(d1, d2)) ** (1 / self.solver.method.order)
        return min(100 * h0, h1)
