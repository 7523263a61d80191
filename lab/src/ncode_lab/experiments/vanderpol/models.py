"""Lienard's equation with a constant or a dynamic control."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ncode import Solution
from ncode.block import NCODE
from ncode.control import ClosedLoop, Static
from ncode.dynamics import Dynamics

Model = Literal["constant", "dynamic"]
MODELS: tuple[Model, ...] = get_args(Model)

START = 2.0  # where each oscillation begins, at rest
RTOL = 1e-3


class Lienard(Dynamics):
    """dx/dt = mu (x - x^3 / 3 - theta), where theta is the control and mu > 0 is learnt.

    `drive` is the oscillator's other half, dtheta/dt = x / mu, for a closed loop.

    >>> field = Lienard(2.0)
    >>> field(torch.zeros(1), torch.ones(1, 1), {"theta": torch.zeros(1, 1)}).detach()
    tensor([[1.3333]])
    """

    shared_control = True

    def __init__(self, mu: float = 1.0):
        super().__init__()
        self.control_shapes, self.state_shape = {"theta": (1,)}, (1,)
        # As a logarithm it stays positive, and a step is relative to its size.
        self.log_mu = nn.Parameter(torch.tensor(math.log(mu)))

    @property
    def mu(self) -> Tensor:
        return self.log_mu.exp()

    def forward(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        """dx/dt."""
        return self.mu * (x - x**3 / 3 - theta["theta"])

    def drive(self, t: Tensor, x: Tensor, theta: Any) -> dict[str, Tensor]:
        """dtheta/dt."""
        return {"theta": x / self.mu}

    def config(self) -> dict[str, Any]:
        return {"mu": float(self.mu.detach())}


class Oscillator(nn.Module):
    """Lienard's equation with a constant or a dynamic control, started at rest."""

    def __init__(self, model: str, mu: float):
        super().__init__()
        self.dynamic, field = model == "dynamic", Lienard(mu)
        controller = ClosedLoop(field.drive, initial="zero") if self.dynamic else Static()
        self.block = NCODE(field, controller, rtol=RTOL, atol=1e-3 * RTOL)

    @property
    def mu(self) -> Tensor:
        """The learnt parameter."""
        field = self.block.dynamics
        assert isinstance(field, Lienard)
        return field.mu

    def forward(self, ts: Tensor) -> Tensor:
        """x at ascending times (T,)."""
        xs = self.solve(ts).xs
        assert xs is not None
        return xs[0, :, 0]

    def solve(self, ts: Tensor, **changes: Any) -> Solution:
        """The solution from 0 to the last of the times."""
        x0 = ts.new_full((1, 1), START)
        theta = {"theta": x0 - x0**3 / 3} if self.dynamic else None
        return self.block.solve(x0, theta=theta, save_at=ts, t1=ts[-1], **changes)
