"""Second-order dynamics as a first-order system."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .base import Dynamics, Shape, Shapes, Theta
from .structure import Structure


class SecondOrder(Dynamics):
    """d2x/dt2 = acceleration: the state is position and velocity, put together along dimension 1.

    Args:
        acceleration: A dynamics that sees position and velocity together and returns as many elements as the position
            has: `MLP(2 * dim, out=dim)`.
        velocity: Where the velocity at t0 comes from. None: the block is given position and velocity together. "zero":
            it is given the position, and the velocity starts at rest. A module: the velocity is this function of the
            position.

    >>> import torch, ncode
    >>> f = ncode.dynamics.SecondOrder(ncode.dynamics.MLP(4, out=2), velocity="zero")
    >>> ncode.NCODE(f)(torch.zeros(3, 2)).shape
    torch.Size([3, 4])
    """

    def __init__(self, acceleration: Dynamics, velocity: nn.Module | str | None = None):
        super().__init__()
        if not isinstance(acceleration, Dynamics):
            raise InputError(
                f"acceleration must be a dynamics; given {type(acceleration).__name__}: wrap a function with"
                " ncode.dynamics.Function"
            )
        if isinstance(velocity, str) and velocity != "zero":
            raise InputError(f'velocity must be None, "zero" or a module; given {velocity!r}')
        self.acceleration = acceleration
        self.velocity = velocity if isinstance(velocity, nn.Module) else None
        self.at_rest = velocity == "zero"
        self.shared_control = acceleration.shared_control

    @property
    def control_shapes(self) -> Shapes:
        """Those of the acceleration."""
        return self.acceleration.control_shapes

    @property
    def state_shape(self) -> Shape | None:
        """That of the acceleration: position and velocity together."""
        return self.acceleration.state_shape

    @property
    def structure(self) -> Structure:
        """Nothing is told."""
        return None

    def lift(self, x: Tensor) -> Tensor:
        """Position and velocity at t0."""
        if self.velocity is not None:
            return torch.cat([x, self.velocity(x)], 1)
        return torch.cat([x, torch.zeros_like(x)], 1) if self.at_rest else x

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """(velocity, acceleration)."""
        _, velocity = x.chunk(2, 1)
        return torch.cat([velocity, self.acceleration(t, x, theta)], 1)

    def config(self) -> dict[str, Any]:
        """acceleration, velocity."""
        velocity = self.velocity if self.velocity is not None else "zero" if self.at_rest else None
        return {"acceleration": self.acceleration, "velocity": velocity}
