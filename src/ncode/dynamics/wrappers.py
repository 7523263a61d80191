"""Dynamics made from others: augmented, of second order, or from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._modules import Shape, Shapes, Theta, check_shape, check_shapes, format_shape, format_shapes
from ..errors import InputError, allocating, check_count, check_function, format_value
from .base import Dynamics, Structure

SINGLE = "theta"


class Augmented(Dynamics):
    """The same dynamics on a state with `zeros` more dimensions, or channels, that start at 0 (ANODE).

    Args:
        dynamics: Dynamics of the larger state. A controller still sees what the block is given.
        zeros: The number of additional dimensions or channels.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Augmented(ncode.dynamics.MLP(2 + 5), zeros=5)
    >>> ncode.NCODE(f)(torch.ones(3, 2)).shape
    torch.Size([3, 7])
    """

    def __init__(self, dynamics: Dynamics, zeros: int):
        super().__init__()
        self.dynamics, self.zeros = _check_dynamics("dynamics", dynamics), check_count("zeros", zeros)
        self.control_shapes, self.state_shape = dynamics.control_shapes, dynamics.state_shape
        self.shared_control = dynamics.shared_control

    def lift(self, x: Tensor) -> Tensor:
        # Padding, unlike concatenation, keeps the memory format, for example channels last.
        padding = [0, 0] * (x.dim() - 2) + [0, self.zeros]
        with allocating(f"{self.zeros} zeros per sample"):
            x = F.pad(x, padding)
        return self.dynamics.lift(x)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        return self.dynamics(t, x, theta)

    @property
    def structure(self) -> Structure:
        return self.dynamics.structure


class SecondOrder(Dynamics):
    """d2x/dt2 = acceleration: the state is position and velocity, concatenated along dimension 1.

    Args:
        acceleration: Dynamics of position and velocity together that return as many elements as the position has:
            `MLP(2 * dim, out=dim)`.
        velocity: The velocity at t0. None: the block is given position and velocity together. "zero": it is given the
            position, and the velocity is 0. A module: the velocity is this function of the position.

    >>> import torch, ncode
    >>> f = ncode.dynamics.SecondOrder(ncode.dynamics.MLP(4, out=2), velocity="zero")
    >>> ncode.NCODE(f)(torch.zeros(3, 2)).shape
    torch.Size([3, 4])
    """

    def __init__(self, acceleration: Dynamics, velocity: nn.Module | str | None = None):
        super().__init__()
        known = isinstance(velocity, nn.Module) or (isinstance(velocity, str) and velocity == "zero")
        if velocity is not None and not known:
            raise InputError(f'velocity must be None, "zero" or a module; given {format_value(velocity)}')
        self.acceleration, self.velocity = _check_dynamics("acceleration", acceleration), velocity
        self.control_shapes, self.state_shape = acceleration.control_shapes, acceleration.state_shape
        self.shared_control = acceleration.shared_control

    def lift(self, x: Tensor) -> Tensor:
        if isinstance(self.velocity, nn.Module):
            return torch.cat([x, self.velocity(x)], 1)
        return x if self.velocity is None else torch.cat([x, torch.zeros_like(x)], 1)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        _, velocity = x.chunk(2, 1)
        return torch.cat([velocity, self.acceleration(t, x, theta)], 1)


class Function(Dynamics):
    """Any function or module f(t, x, theta) as dynamics, with the shapes of the control that it takes.

    Args:
        f: f(t, x, theta) -> dx/dt, with t (batch,) and x (batch, ...).
        control_shapes: The shape of one sample's tensor by name of the control, and theta is a dict; or one shape, and
            theta is a tensor. Default: no control, and theta is an empty dict.
        state_shape: The shape of one sample's x, if it is to be checked.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta * x, (1,))
    >>> ncode.NCODE(f, ncode.OpenLoop(torch.nn.Linear(1, 8)))(torch.ones(3, 1)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self,
        f: Callable[[Tensor, Tensor, Any], Tensor],
        control_shapes: Shapes | tuple[int, ...] | None = None,
        state_shape: Shape | None = None,
    ):
        super().__init__()
        self.f = check_function("f", f, ("t", "x", "theta"), adapt=True)
        given = {} if control_shapes is None else control_shapes
        self.single = not isinstance(given, Mapping)
        self.control_shapes = check_shapes("Function", {SINGLE: given} if self.single else given)
        self.state_shape = None if state_shape is None else check_shape("state_shape", state_shape)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        try:
            return self.f(t, x, theta[SINGLE] if self.single else dict(theta))
        except (TypeError, IndexError) as error:
            if ("'str'" if self.single else "'dict'") in str(error):
                raise InputError(f"f cannot use theta as it is given ({error}): {self._explain_theta()}") from error
            raise

    def _explain_theta(self) -> str:
        """Say what theta is, for an f that expects something else."""
        if self.single:
            shape = format_shape(self.control_shapes[SINGLE])
            return f"with one shape, control_shapes={shape}, it is a tensor; give {{name: shape}} for a dict by name"
        shapes = format_shapes(self.control_shapes)
        return f"it is a dict by name, with {shapes}; use theta[name], or give one shape, control_shapes=(...)"

    def config(self) -> dict[str, Any]:
        shapes = self.control_shapes[SINGLE] if self.single else self.control_shapes
        return {"f": self.f, "control_shapes": shapes, "state_shape": self.state_shape}


def _check_dynamics(name: str, value: Any) -> Dynamics:
    if not isinstance(value, Dynamics):
        raise InputError(
            f"{name} must be a dynamics; given {type(value).__name__}: wrap a function with ncode.dynamics.Function"
        )
    return value
