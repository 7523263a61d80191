"""dx/dt = rho(theta x)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..checks import check_choice, check_count
from .activations import ACTIVATIONS
from .base import Dynamics, Shape, Shapes, Theta
from .product import matvec
from .structure import Product, Structure


class Recurrent(Dynamics):
    """dx/dt = rho(W x): n neurons, each coupled to all, where the coupling W (n, n) is the control.

    The paper's memory task takes it with `Hebbian` plasticity. rho is odd there, since patterns are of +1 and -1.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(5), ncode.Hebbian(), t1=0.5)
    >>> block(torch.ones(3, 5)).shape
    torch.Size([3, 5])
    """

    shared_control = True

    def __init__(self, n: int, activation: str = "tanh"):
        super().__init__()
        self.n, self.activation = check_count("n", n), check_choice("activation", activation, ACTIVATIONS)

    @property
    def control_shapes(self) -> Shapes:
        """The coupling."""
        return {"weight": (self.n, self.n)}

    @property
    def state_shape(self) -> Shape:
        """(n,)."""
        return (self.n,)

    @property
    def structure(self) -> Structure:
        """A product under rho."""
        return Product("weight", rho=self.activation)

    def lift(self, x: Tensor) -> Tensor:
        """The state is what the block is given."""
        return x

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """rho(W x)."""
        return ACTIVATIONS[self.activation](matvec(theta["weight"], x))

    def config(self) -> dict[str, Any]:
        """n, activation."""
        return {"n": self.n, "activation": self.activation}
