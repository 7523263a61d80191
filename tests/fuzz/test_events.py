"""Events of spirals, whose states and events have closed forms, with random resets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import ncode

from . import promises

DOUBLE = torch.float64
METHODS = ("bosh3", "dopri5", "tsit5", "dopri8", "rodas5p", "kvaerno5", "auto")
SIZE = 256  # of the grid on which the closed form is searched for changes of sign


@dataclass(frozen=True)
class Spiral:
    """dz/dt = (-decay + i turn) z as two real numbers; the event is Re(z) = level, and a reset multiplies z."""

    decay: float
    turn: float
    level: float
    factor: float  # of the reset
    direction: int
    start: complex
    t0: float
    t1: float

    def times(self, most: int = 30) -> list[float]:
        """The events, from reset to reset; refuses cases in which the sign changes too close to an extremum."""
        found: list[float] = []
        t, z = self.t0, self.start
        while len(found) < most:
            time = self._next(t, z, fired=bool(found))
            if time is None:
                return found
            z, t = z * complex(math.e) ** (complex(-self.decay, self.turn) * (time - t)) * self.factor, time
            found.append(time)
        assume(False)
        return found

    def _next(self, t: float, z: complex, fired: bool) -> float | None:
        grid = torch.linspace(t, self.t1, SIZE, dtype=DOUBLE)[1:] if t != self.t1 else torch.empty(0, dtype=DOUBLE)

        def value(at: Tensor) -> Tensor:
            power = torch.complex(-self.decay * (at - t), self.turn * (at - t))
            return (z * power.exp()).real - self.level

        values = value(grid)
        before = value(torch.tensor([t], dtype=DOUBLE)) if not (fired and self.factor == 1) else values[:1]
        assume(bool((values.abs() > 1e-3).sum() >= len(values) - 8) and bool(before.abs() > 1e-3))
        signs = torch.cat([before, values]).sign()
        crossed = (signs[1:] != signs[:-1]) & ((signs[:-1] == -self.direction) | (self.direction == 0))
        if not crossed.any():
            return None
        place = int(crossed.nonzero()[0])
        low, high = float(grid[place - 1]) if place else t, float(grid[place])
        sign = float(signs[place])
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if float(value(torch.tensor(middle, dtype=DOUBLE))) * sign > 0 else (low, middle)
        return 0.5 * (low + high)


few = settings(max_examples=promises.examples(3, share=12))
numbers = st.floats(0.1, 2.0).map(lambda it: round(it, 3))


@st.composite
def spirals(draw: st.DrawFn) -> list[Spiral]:
    """A batch with the same reset, direction and length of the interval."""
    factor, direction = draw(st.sampled_from([1.0, -0.7, 1.5])), draw(st.sampled_from([-1, 0, 1]))
    backward = draw(st.booleans())
    batch = []
    for _ in range(draw(st.integers(1, 3))):
        turn = draw(numbers) * draw(st.sampled_from([-2, 2]))
        length = draw(numbers) * 2 * (-1 if backward else 1)
        t0 = draw(st.sampled_from([0.0, -3.0, 100.0]))
        start = complex(draw(numbers), draw(numbers) - 1)
        level = draw(st.sampled_from([0.0, 0.2, -0.3]))
        batch.append(Spiral(0.2 * draw(numbers), turn, level, factor, direction, start, t0, t0 + length))
    return batch


def field(t, x, theta):
    decay, turn, _ = theta.unbind(1)
    return torch.stack([-decay * x[:, 0] - turn * x[:, 1], turn * x[:, 0] - decay * x[:, 1]], 1)


@few
@given(spirals(), st.sampled_from(METHODS), st.sampled_from(["discrete", "adjoint"]))
def test_events_are_those_of_the_closed_form(batch, method, gradient):
    promises.calls += 1
    expected = [spiral.times() for spiral in batch]
    x0 = torch.tensor([[it.start.real, it.start.imag] for it in batch], dtype=DOUBLE, requires_grad=True)
    theta = torch.tensor([[it.decay, it.turn, it.level] for it in batch], dtype=DOUBLE, requires_grad=True)
    factor = batch[0].factor
    event = ncode.Event(
        lambda t, x, theta: x[:, 0] - theta[:, 2],
        terminal=False,
        direction=batch[0].direction,
        reset=None if factor == 1 else lambda t, x, theta: factor * x,
    )
    t0, t1 = (torch.tensor([getattr(it, name) for it in batch], dtype=DOUBLE) for name in ("t0", "t1"))
    options = {"method": method, "rtol": 1e-8, "atol": 1e-9, "gradient": gradient, "max_dt": 0.4}
    sol = ncode.solve(field, x0, t0, t1, theta=theta, events=event, **options)
    (record,) = sol.events
    assert record.counts.tolist() == [len(times) for times in expected]
    for row, times in enumerate(expected):
        assert record.ts[row, : len(times)].tolist() == pytest.approx(times, abs=1e-6)
    grads = torch.autograd.grad(sol.x.sum() + record.ts.nansum(), [x0, theta])
    assert all(bool(grad.isfinite().all()) for grad in grads)
