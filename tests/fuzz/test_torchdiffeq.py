"""The drop-in for torchdiffeq against torchdiffeq itself: values, gradients and events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ncode import InputError, SolveError
from ncode.compat import torchdiffeq as ours

from .grammar import Expression, Tensors, evaluate, smooth
from .promises import assert_agree, gradients, keeps_its_promises, some

theirs = pytest.importorskip("torchdiffeq")

ADAPTIVE = ("dopri5", "dopri8", "bosh3", "adaptive_heun", "fehlberg2")
FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4")
DOUBLE = torch.float64


@dataclass(frozen=True)
class Call:
    """A call of odeint."""

    shapes: tuple[tuple[int, ...], ...]
    nested: bool
    field: Expression
    seed: int
    times: tuple[float, ...]
    method: str
    adjoint: bool
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-6
    dtype: torch.dtype = DOUBLE

    def run(self, library: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Outputs and gradients by name."""
        generator = torch.Generator().manual_seed(self.seed)
        leaves = [torch.randn(*shape, generator=generator, dtype=DOUBLE).to(self.dtype) for shape in self.shapes]
        y0 = [leaf.requires_grad_() for leaf in leaves]
        tensors = [Tensors.random(shape[0], shape[1:], self.seed).to(self.dtype, trained=True) for shape in self.shapes]
        t = torch.tensor(self.times, dtype=self.dtype)

        def func(now: Tensor, y: Any) -> Any:
            parts = [
                torch.tanh(evaluate(self.field, now.expand(len(part)), part, None, held.get)) - 0.3 * part
                for part, held in zip(y if self.nested else (y,), tensors, strict=True)
            ]
            return tuple(parts) if self.nested else parts[0]

        call = library.odeint_adjoint if self.adjoint else library.odeint
        params = tuple(leaf for held in tensors for leaf in held.leaves)
        more = {"adjoint_params": params} if self.adjoint else {}
        given_y0 = tuple(y0) if self.nested else y0[0]
        with keeps_its_promises(given_y0, t, params):
            got = call(
                func,
                given_y0,
                t,
                method=self.method,
                rtol=self.tolerance,
                atol=0.1 * self.tolerance,
                options=dict(self.options) or None,
                **more,
            )
        outputs = {f"y {i}": leaf for i, leaf in enumerate(got if self.nested else (got,))}
        value = torch.stack([leaf.double().sin().sum() for leaf in outputs.values()]).sum()
        named = {f"y0 {i}": leaf for i, leaf in enumerate(y0)} | {f"tensor {i}": leaf for i, leaf in enumerate(params)}
        return outputs, gradients(value, named)


@st.composite
def calls(draw: st.DrawFn, fixed: bool) -> Call:
    nested = draw(st.booleans())
    shape = st.tuples(st.integers(1, 3), st.integers(1, 3))
    expression = draw(smooth)
    count = draw(st.integers(2, 4))
    moves = draw(st.lists(st.sampled_from([0.25, 0.5, 0.1, 1.0]), min_size=count - 1, max_size=count - 1))
    sign, times = draw(st.sampled_from([1.0, 1.0, -1.0])), [draw(st.sampled_from([0.0, -1.0, 0.3]))]
    for move in moves:
        times.append(times[-1] + sign * move)
    options: dict[str, Any] = {}
    if fixed and draw(st.booleans()):
        options["step_size"] = draw(st.sampled_from([0.1, 0.25, 0.3, 1.0]))
    return Call(
        shapes=tuple(draw(st.lists(shape, min_size=1, max_size=3))) if nested else (draw(shape),),
        nested=nested,
        field=expression,
        seed=draw(st.integers(0, 100)),
        times=tuple(times),
        method=draw(st.sampled_from(FIXED if fixed else ADAPTIVE)),
        adjoint=draw(st.booleans()),
        options=options,
        tolerance=draw(st.sampled_from([1e-5, 1e-7])),
    )


def assert_same(call: Call, tolerance: float, gradient_tolerance: float) -> None:
    """Both libraries agree; ours may refuse what it documents as not available."""
    try:
        values, slopes = call.run(ours)
    except InputError as error:
        assert "not available" in str(error) or "can only be" in str(error), str(error)  # noqa: PT017
        return
    expected_values, expected_slopes = call.run(theirs)
    assert_agree(values, expected_values, tolerance)
    assert_agree(slopes, expected_slopes, gradient_tolerance, "gradient of ")


@some
@given(calls(fixed=True))
def test_fixed_steps_are_those_of_torchdiffeq(call):
    # Its adjoint takes the fixed steps backward, ours too: both approximate the gradient to the method's order.
    assert_same(call, 1e-9, 1e-9 if not call.adjoint else 1e-7)


@some
@given(calls(fixed=False))
def test_adaptive_steps_agree_with_those_of_torchdiffeq(call):
    assert_same(call, 1e3 * call.tolerance, 1e4 * call.tolerance)


@some
@given(
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([0.1, 0.5, -0.25]),
    st.sampled_from(["dopri5", "rk4", "bosh3", "euler"]),
    st.booleans(),
    st.booleans(),
)
def test_events_are_those_of_torchdiffeq(height, speed, method, adjoint, nested):
    """A falling ball meets the floor."""

    def run(library: Any) -> dict[str, Tensor]:
        start = torch.tensor([height, speed], dtype=DOUBLE, requires_grad=True)
        gravity = torch.tensor(9.81, dtype=DOUBLE, requires_grad=True)
        t0 = torch.tensor([0.0], dtype=DOUBLE)
        state = (start[:1], start[1:]) if nested else start

        def func(t: Tensor, y: Any) -> Any:
            position, velocity = y if nested else (y[:1], y[1:])
            slope = (velocity, -gravity.expand(1) - 0.1 * position)
            return slope if nested else torch.cat(slope)

        def floor(t: Tensor, y: Any) -> Tensor:
            return (y[0] if nested else y)[0]

        interface = library.odeint_adjoint if adjoint else library.odeint
        more: dict[str, Any] = {"adjoint_params": (gravity,)} if adjoint else {}
        options = {"step_size": 0.01} if method in ("rk4", "euler") else None
        more |= {"method": method, "options": options, "rtol": 1e-8, "atol": 1e-8}
        with keeps_its_promises(start, gravity, t0):
            when, states = library.odeint_event(func, state, t0, event_fn=floor, odeint_interface=interface, **more)
        value = when + sum(leaf.sum() for leaf in (states if nested else (states,)))
        return {"time": when.detach(), **gradients(value, {"start": start, "gravity": gravity})}

    try:
        mine = run(ours)
    except (InputError, SolveError) as error:
        raise AssertionError(f"refused: {error}") from error
    # torchdiffeq interpolates fixed steps linearly, and bosh3 by a polynomial that fits dopri5.
    assert_agree(mine, run(theirs), 1e-4 if method == "dopri5" else 2e-2)
