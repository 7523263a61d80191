"""Controlled differential equations."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .._modules import Theta
from ..errors import InputError, check_count, check_function
from ..paths import Path
from .base import Dynamics, matvec


class CDE(Dynamics):
    """dz = f(z) dX: a neural controlled differential equation, driven by a path X (Kidger et al., 2020).

    The control is dX/dt, (channels,). In a block, `InputControl(derivative=True)` sets it. With `ncode.solve` the path
    itself is theta, and its knots are jump_ts, since dX/dt jumps or bends there.

    Args:
        field: f, a function or module of z (batch, hidden) that returns matrices (batch, hidden, channels), possibly
            flattened. A tanh at the end keeps them bounded.
        channels: Number of channels of X.

    >>> import torch, ncode
    >>> field = torch.nn.Sequential(torch.nn.Linear(4, 4 * 3), torch.nn.Tanh())
    >>> cde = ncode.dynamics.CDE(field, channels=3)
    >>> path, z0 = ncode.paths.linear(torch.randn(5, 10, 2), time=True), torch.zeros(5, 4)
    >>> ncode.solve(cde, z0, path.start, path.end, theta=path, jump_ts=path.knots).x.shape
    torch.Size([5, 4])
    >>> block = ncode.NCODE(cde, ncode.InputControl(derivative=True), t1=9.0)
    >>> block(z0, path=path).shape
    torch.Size([5, 4])
    """

    def __init__(self, field: Callable[[Tensor], Tensor], channels: int):
        super().__init__()
        self.field, self.channels = check_function("field", field, ("z",)), check_count("channels", channels)
        self.control_shapes = {"dX": (self.channels,)}

    def forward(self, t: Tensor, x: Tensor, theta: Theta | Path) -> Tensor:
        if isinstance(theta, Path):
            theta.check_moves()
            speed = theta.derivative(t)
        else:
            speed = theta["dX"]
        return matvec(self._matrix(x, speed), speed)

    def _matrix(self, x: Tensor, speed: Tensor) -> Tensor:
        """f(z), (batch, hidden, channels)."""
        if x.dim() != 2 or speed.shape[1] != self.channels:
            raise InputError(
                f"a CDE of {self.channels} channels expects z (batch, hidden) and a path of as many channels; given z"
                f" {tuple(x.shape)} and a path of {speed.shape[1]} channels"
            )
        matrix, shape = self.field(x), (*x.shape, self.channels)
        if not isinstance(matrix, Tensor) or matrix.shape not in (shape, (len(x), x.shape[1] * self.channels)):
            shown = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise InputError(f"the field of a CDE returned {shown}; expected {shape}, matrices of hidden x channels")
        return matrix.reshape(shape)
