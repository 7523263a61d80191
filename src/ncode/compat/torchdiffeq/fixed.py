"""Fixed steps on a grid of times: one step between every two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from .arguments import NO_CALLBACKS, Callbacks, NoEvent, check_times
from .implicit import ImplicitMethod
from .runge_kutta import Bracket, Field, Method, Step, real_dtype, towards

EVENT_STEPS = 20_000  # without an event, as in torchdiffeq
CHUNK = 32  # steps whose times are computed at once


@dataclass(frozen=True, eq=False)
class Fixed:
    """How to solve with fixed steps. Default: from each time of t to the next."""

    method: Method | ImplicitMethod
    callbacks: Callbacks = NO_CALLBACKS
    step_size: float | None = None
    grid_constructor: Callable[[Tensor, Tensor], Any] | None = None  # of (y0, t)
    interp: str = "linear"
    perturb: bool = False
    max_iters: int = 100  # of Newton's method in implicit steps
    precision: torch.dtype | None = None  # of the times that func is told, if not that of the state

    def solve(self, f: Field, y0: Tensor, t: Tensor) -> Tensor:
        """The states at the times of t, (T, ...)."""
        return torch.stack(self._states(f, y0, t))

    def final(self, f: Field, y0: Tensor, t: Tensor) -> Tensor:
        """The state at the last time of t."""
        return self._states(f, y0, t)[-1]

    def _states(self, f: Field, y0: Tensor, t: Tensor) -> list[Tensor]:
        grid, wanted = self._grid(y0, t), t.tolist()
        sign = -1.0 if wanted[0] > wanted[-1] else 1.0
        rows, i = [y0], 1
        for step in self._steps(f, y0, grid):
            end = None
            while i < len(wanted) and sign * wanted[i] <= sign * step.t1:
                if wanted[i] == step.t1:
                    rows.append(step.y1)
                else:
                    if end is None and self.interp == "cubic":
                        end = _end_slope(f, step)
                    rows.append(_between(step, end, t[i] if t.requires_grad else wanted[i]))
                i += 1
        return rows

    def until_event(self, f: Field, y0: Tensor, t: Tensor, crossed: Callable[[float, Tensor], bool]) -> Bracket:
        """Step until `crossed(t, y)` at the end of a step."""
        if self.step_size is None:
            raise InputError('with event_fn, a method with fixed steps needs options={"step_size": ...}')
        h, y = self.step_size * (-1.0 if bool(t[0] > t[-1]) else 1.0), y0
        for done in range(0, EVENT_STEPS, CHUNK):
            grid = torch.arange(done, done + CHUNK + 1, dtype=torch.float64, device=y.device) * h + t[0]
            for step in self._steps(f, y, grid):
                if crossed(step.t1, step.y1):
                    end = _end_slope(f, step) if self.interp == "cubic" else None
                    return Bracket(step.t1 - h, step.t1, partial(_between, step, end))
                y = step.y1
        raise NoEvent(
            f"no event between t = {t[0].item():.6g} and {t[0].item() + EVENT_STEPS * h:.6g}, in {EVENT_STEPS} steps:"
            " event_fn has not changed its sign; check it and the direction of time, or use a larger step_size"
        )

    def _grid(self, y0: Tensor, t: Tensor) -> Tensor:
        if self.step_size is not None:
            span = t[-1] - t[0]
            count = int(torch.ceil(span.detach().abs() / self.step_size + 1))
            steps = torch.arange(count - 1, dtype=t.dtype, device=t.device) * (span.detach().sign() * self.step_size)
            return torch.cat([steps + t[0], t[-1:]]) if len(t) > 1 else t
        if self.grid_constructor is None:
            return t
        grid = self.grid_constructor(y0, t)
        name = 'the result of options["grid_constructor"]'
        grid = check_times(grid, t.device, name)
        if grid[0] != t[0] or grid[-1] != t[-1]:
            expected, given = (f"{times[0].item():.6g} to {times[-1].item():.6g}" for times in (t, grid))
            raise InputError(f"{name} must reach from t[0] to t[-1], {expected}; given {len(grid)} times, {given}")
        return grid

    def _steps(self, f: Field, y: Tensor, grid: Tensor) -> Iterator[Step]:
        """One step between every two times of a grid, which are the user's: t0 is a tensor if it has a gradient."""
        values = grid.tolist()
        sign = -1.0 if values[0] > values[-1] else 1.0
        differentiable = grid.requires_grad and torch.is_grad_enabled()
        lengths = grid.diff().unbind() if differentiable else [b - a for a, b in pairwise(values)]
        begins, ends = grid[:-1], grid[1:]
        columns = []
        for c in self.method.nodes:
            times = begins if c == 0 else ends if c == 1 else begins + c * (ends - begins)
            times = times.to(self.precision or real_dtype(y))
            # As in torchdiffeq, implicit methods always see the end of a step from within.
            if (self.perturb and c in (0.0, 1.0)) or (self.method.implicit and c == 1):
                times = towards(times, sign if c == 0 else -sign)
            columns.append(times.unbind())
        starts = begins.unbind() if differentiable else values
        for i, (length, *times) in enumerate(zip(lengths, *columns, strict=True)):
            if self.callbacks.step is not None:
                self.callbacks.step(values[i], y, abs(values[i + 1] - values[i]))
            y1, slopes = self.method.take_step(f, y, length, times, self.max_iters)
            yield Step(starts[i], values[i + 1], y, y1, length, slopes)
            y = y1


def _end_slope(f: Field, step: Step) -> Tensor:
    y = step.y1
    return f(torch.as_tensor(step.t0 + step.length, dtype=real_dtype(y), device=y.device), y)


def _between(step: Step, end: Tensor | None, time: float | Tensor) -> Tensor:
    """The state within a step: linear, or with the slope at the end a cubic through both ends and both slopes."""
    w, change = (time - step.t0) / step.length, step.y1 - step.y0
    if end is None:
        return step.y0 + _scalar(w, change) * change
    parts = ((3 * w**2 - 2 * w**3, change), (step.length * w * (1 - w) ** 2, step.slopes[0]))
    parts = (*parts, (step.length * w**2 * (w - 1), end))
    return step.y0 + sum(_scalar(weight, part) * part for weight, part in parts)


def _scalar(weight: float | Tensor, y: Tensor) -> float | Tensor:
    return weight.to(real_dtype(y)) if isinstance(weight, Tensor) else weight
