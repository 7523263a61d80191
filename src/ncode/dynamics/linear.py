"""dx/dt = theta x."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..checks import check_count
from .base import Dynamics, Shape, Shapes, Theta
from .product import matvec
from .structure import Product, Structure


class Linear(Dynamics):
    """dx/dt = W x, where W (m, m) is the control.

    With a control that stands still the block solves it exactly, by the matrix exponential.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.Static())
    >>> turn = torch.tensor([[0.0, -torch.pi], [torch.pi, 0.0]]).expand(1, 2, 2)
    >>> block.solve(torch.tensor([[1.0, 0.0]]), theta={"weight": turn}).x.round(decimals=4) + 0.0
    tensor([[-1.,  0.]])
    """

    shared_control = True

    def __init__(self, m: int):
        super().__init__()
        self.m = check_count("m", m)

    @property
    def control_shapes(self) -> Shapes:
        """The matrix."""
        return {"weight": (self.m, self.m)}

    @property
    def state_shape(self) -> Shape:
        """(m,)."""
        return (self.m,)

    @property
    def structure(self) -> Structure:
        """A product."""
        return Product("weight")

    def lift(self, x: Tensor) -> Tensor:
        """The state is what the block is given."""
        return x

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """W x."""
        return matvec(theta["weight"], x)

    def config(self) -> dict[str, Any]:
        """m."""
        return {"m": self.m}
