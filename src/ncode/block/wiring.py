"""Dynamics and controller as the functions that the solver integrates.

What the solver carries as theta are the driven controls or, if none is driven, the fixed ones and the input paths. Next
to driven controls, the functions capture the fixed ones and the paths. All are plain functions that capture only
modules and tensors, so that the solver finds the parameters in them, and a compiling backend recognises them in the
next solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Theta
from ..control import Controller, State
from ..control.base import expand_shared
from ..dynamics import Dynamics
from ..errors import InputError, nearest
from ..ode import Event
from ..ode.system import Dynamics as Velocity
from ..paths import Path

StateOf = Callable[[Any], State]
ControlFunction = Callable[[Tensor, Any], dict[str, Tensor]]
SpeedFunction = Callable[[Tensor, Tensor, Any], dict[str, Tensor]]


def undo_autocast(value: Tensor, x: Tensor) -> Tensor:
    """Under autocast, networks return less precision than that in which the state is integrated."""
    return value.to(x.dtype) if torch.is_autocast_enabled(x.device.type) else value


def carried_theta(state: State) -> tuple[Any, StateOf]:
    """What the solver carries as theta, and a function that returns the controller's state for it."""
    if state.inputs and not state.driven:
        return (state.fixed, state.inputs), lambda theta: State(theta[0], {}, theta[1])
    if not state.driven:
        return state.fixed or None, lambda theta: State(theta or {}, {})
    fixed = inputs = _nothing
    for name, value in state.fixed.items():
        fixed = _with_tensor(fixed, name, value)
    for name, path in state.inputs.items():
        assert path is not None
        inputs = _with_path(inputs, name, *path)
    return state.driven, lambda theta: State(fixed(), theta or {}, inputs())


def velocity_function(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> Velocity:
    def f(t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        control = controller.control(t, state_of(theta))
        if not dynamics.shared_control:
            control = expand_shared(control, dynamics.control_shapes, x.shape[0])
        try:
            return undo_autocast(dynamics(t, x, control), x)
        except KeyError as error:
            refuse_unknown_name(type(dynamics).__name__, error, control)
            raise

    supplied = getattr(dynamics, "jacobian", None)
    if supplied is not None:  # methods for stiff problems use it
        f.jacobian = lambda t, x, theta: supplied(t, x, controller.control(t, state_of(theta)))  # pyright: ignore
    return f


def refuse_unknown_name(owner: str, error: KeyError, control: Theta) -> None:
    """Raise `InputError` if the key that was looked up in vain can be a wrong name of a control."""
    name = error.args[0] if error.args else None
    if not isinstance(name, str) or name in control:
        return
    hint = f"{nearest(name, control)} (there are: {', '.join(control)})"
    if not control:
        hint = f": give the dynamics control_shapes, as in control_shapes={{{name!r}: (2,)}} for two numbers per sample"
    raise InputError(f"{owner} looked up {name!r}, and no control has this name{hint}") from error


def control_function(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> ControlFunction:
    """The control by name, with a batch dimension."""

    def control(t: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        return expand_shared(controller.control(t, state_of(theta)), dynamics.control_shapes, t.shape[0])

    return control


def speed_function(controller: Controller, state_of: StateOf, driven_only: bool = False) -> SpeedFunction:
    """dtheta/dt by name, of the driven controls alone or of all that change; the others are constant."""

    def g(t: Tensor, x: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        try:
            speed = (controller.driven_speed if driven_only else controller.control_speed)(t, x, state_of(theta))
        except KeyError as error:
            refuse_unknown_name("dtheta/dt", error, theta if isinstance(theta, Mapping) else {})
            raise
        names = (theta or {}) if driven_only else speed
        return {name: undo_autocast(speed[name], x) for name in names}

    return g


class CachedVelocity(nn.Module):
    """A velocity that the solver and a cost both evaluate at each point, computed once."""

    def __init__(self, f: Velocity, dynamics: Dynamics, controller: Controller):
        super().__init__()
        self.f, self.dynamics, self.controller = f, dynamics, controller
        self.inputs: tuple[Any, ...] = ()
        self.output: Any = None

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        inputs = (t, x, theta, torch.is_grad_enabled())
        if not self.inputs or any(a is not b for a, b in zip(inputs, self.inputs, strict=True)):
            self.inputs, self.output = inputs, self.f(t, x, theta)
        return self.output


def named_events(events: Sequence[Event], control: ControlFunction) -> list[Event]:
    """Events whose functions receive the control by name; their resets return x alone."""

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(t: Tensor, x: Any, theta: Any) -> Any:
            found = function(t, x, control(t, theta))
            if isinstance(found, tuple):
                raise InputError("the reset of an Event of a block must return x alone: its controller sets theta")
            return found

        return call

    return [
        replace(event, function=named(event.function), reset=None if event.reset is None else named(event.reset))
        for event in events
    ]


def _nothing() -> dict[str, Any]:
    return {}


def _with_tensor(others: Callable[[], dict[str, Any]], name: str, value: Tensor) -> Callable[[], dict[str, Any]]:
    return lambda: {**others(), name: value}


def _with_path(
    others: Callable[[], dict[str, Any]], name: str, edges: Tensor, end: Tensor, coefficients: Tensor
) -> Callable[[], dict[str, Any]]:
    return lambda: {**others(), name: Path(edges, end, coefficients)}
