"""The functions that a solver is given for a block: the velocity of the state, the control, and its speed.

What the solver carries as theta are the tensors that are driven, or, where none is, those that stay as they are. Where
there are both, those that stay are kept here. They are modules, so that the solver finds all parameters within, and
compare by what they join, so that a solver that compiles finds what it has compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..control import Controller, State
from ..control.base import Theta
from ..dynamics import Dynamics
from ..dynamics.base import Shapes


class Wire(nn.Module):
    """What the three functions have in common. Abstract."""

    def __init__(self, dynamics: Dynamics, controller: Controller, state: State):
        super().__init__()
        self.dynamics, self.controller = dynamics, controller
        self.moving = bool(state.driven)
        self.kept: Theta = state.fixed if state.driven else {}

    def state(self, theta: Theta | None) -> State:
        """The controller's state that the solver's theta stands for."""
        return State(self.kept, theta or {}) if self.moving else State(theta or {}, {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wire) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        kept = id(self.kept) if self.kept else 0
        return type(self), id(self.dynamics), id(self.controller), self.moving, kept


class Velocity(Wire):
    """dx/dt."""

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        control = self.controller.control(t, self.state(theta))
        if not self.dynamics.shared_control:
            control = spread(control, self.dynamics.control_shapes, len(x))
        return cast(self.dynamics(t, x, control), x)


class Control(Wire):
    """The control by name, a sample's own each."""

    def forward(self, t: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        control = self.controller.control(t, self.state(theta))
        return spread(control, self.dynamics.control_shapes, len(t))


class Speed(Wire):
    """dtheta/dt by name; what is not named stands still."""

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        speed = self.controller.speed(t, x, self.state(theta))
        return {name: cast(value, x) for name, value in speed.items()}


class Feedback(Wire):
    """dtheta/dt of what is driven."""

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> dict[str, Tensor]:
        speed = self.controller.speed(t, x, self.state(theta))
        return {name: cast(speed[name], x) for name in theta}


class Once(nn.Module):
    """A velocity that is asked for twice in one evaluation, by the solver and by a cost, and computed once."""

    def __init__(self, velocity: Velocity):
        super().__init__()
        self.velocity = velocity
        self.asked: tuple[Any, ...] = ()
        self.answer: Tensor | None = None

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        asked = (t, x, theta, torch.is_grad_enabled())
        same = len(self.asked) == 4 and all(a is b for a, b in zip(asked, self.asked, strict=True))
        if self.answer is None or not same:
            self.asked, self.answer = asked, self.velocity(t, x, theta)
        return self.answer


def cast(value: Tensor, x: Tensor) -> Tensor:
    """Under autocast, networks return less precision than the state is integrated in."""
    return value.to(x.dtype) if torch.is_autocast_enabled(x.device.type) else value


def spread(control: Mapping[str, Tensor], shapes: Shapes, batch: int) -> dict[str, Tensor]:
    """A control with a batch dimension, as a view where all samples share it."""
    return {
        name: value.expand(batch, *value.shape) if value.dim() == len(shapes[name]) else value
        for name, value in control.items()
    }
