"""The functions that a solver is given for a block: the velocity of the state, the control, and its speed.

What the solver carries as theta are the tensors that are driven, or, where none is, those that stay as they are. Where
there are both, those that stay are caught here. All are plain functions that catch nothing but modules and tensors, so
that a solver finds the parameters in them, and one that compiles knows them again in the next solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..control import Controller, State
from ..control.base import Theta
from ..dynamics import Dynamics
from ..dynamics.base import Shapes
from ..ode.field import Dynamics as Velocity

StateOf = Callable[[Theta | None], State]
Control = Callable[[Tensor, Any], dict[str, Tensor]]
Speed = Callable[[Tensor, Tensor, Any], dict[str, Tensor]]


def carry(state: State) -> tuple[Theta | None, StateOf]:
    """What the solver carries as theta, and the controller's state that it stands for."""
    if not state.driven:
        return state.fixed or None, _only_fixed
    kept = _nothing
    for name, value in state.fixed.items():
        kept = _and(kept, name, value)
    return state.driven, lambda theta: State(kept(), theta or {})


def velocity(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> Velocity:
    """dx/dt."""

    def f(t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        control = controller.control(t, state_of(theta))
        if not dynamics.shared_control:
            control = spread(control, dynamics.control_shapes, x.shape[0])
        return cast(dynamics(t, x, control), x)

    return f


def control(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> Control:
    """The control by name, a sample's own each."""

    def theta_at(t: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        return spread(controller.control(t, state_of(theta)), dynamics.control_shapes, t.shape[0])

    return theta_at


def speed(controller: Controller, state_of: StateOf) -> Speed:
    """dtheta/dt by name; what is not named stands still."""

    def g(t: Tensor, x: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        return {name: cast(value, x) for name, value in controller.speed(t, x, state_of(theta)).items()}

    return g


def feedback(controller: Controller, state_of: StateOf) -> Speed:
    """dtheta/dt of what is driven."""

    def g(t: Tensor, x: Tensor, theta: Theta) -> dict[str, Tensor]:
        moved = controller.speed(t, x, state_of(theta))
        return {name: cast(moved[name], x) for name in theta}

    return g


class Once(nn.Module):
    """A velocity that is asked for twice in one evaluation, by the solver and by a cost, and computed once."""

    def __init__(self, f: Velocity, dynamics: Dynamics, controller: Controller):
        super().__init__()
        self.f, self.dynamics, self.controller = f, dynamics, controller
        self.asked: tuple[Any, ...] = ()
        self.answer: Tensor | None = None

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        asked = (t, x, theta, torch.is_grad_enabled())
        same = len(self.asked) == 4 and all(a is b for a, b in zip(asked, self.asked, strict=True))
        answer = self.answer if same else None
        if answer is None:
            answer = self.f(t, x, theta)
            self.asked, self.answer = asked, answer
        return answer


def cast(value: Tensor, x: Tensor) -> Tensor:
    """Under autocast, networks return less precision than the state is integrated in."""
    return value.to(x.dtype) if torch.is_autocast_enabled(x.device.type) else value


def spread(control: Mapping[str, Tensor], shapes: Shapes, batch: int) -> dict[str, Tensor]:
    """A control with a batch dimension, as a view where all samples share it."""
    return {
        name: value.expand(batch, *value.shape) if value.dim() == len(shapes[name]) else value
        for name, value in control.items()
    }


def _only_fixed(theta: Theta | None) -> State:
    return State(theta or {}, {})


def _nothing() -> dict[str, Tensor]:
    return {}


def _and(others: Callable[[], dict[str, Tensor]], name: str, value: Tensor) -> Callable[[], dict[str, Tensor]]:
    return lambda: {**others(), name: value}
