"""Zero dimensions or channels beside the data."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ..checks import check_count
from ..errors import InputError
from .base import Dynamics, Shape, Shapes, Theta
from .structure import Structure


class Augmented(Dynamics):
    """The same dynamics on a state with `zeros` more dimensions, or channels, that start at 0 (ANODE).

    `dynamics` is made for the larger state; a controller still sees what the block is given.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Augmented(ncode.dynamics.MLP(2 + 5), zeros=5)
    >>> ncode.NCODE(f)(torch.ones(3, 2)).shape
    torch.Size([3, 7])
    """

    def __init__(self, dynamics: Dynamics, zeros: int):
        super().__init__()
        if not isinstance(dynamics, Dynamics):
            raise InputError(
                f"Augmented wraps a dynamics; given {type(dynamics).__name__}: wrap a function with"
                " ncode.dynamics.Function"
            )
        self.dynamics, self.zeros = dynamics, check_count("zeros", zeros)
        self.shared_control = dynamics.shared_control

    @property
    def control_shapes(self) -> Shapes:
        """Those of the dynamics."""
        return self.dynamics.control_shapes

    @property
    def state_shape(self) -> Shape | None:
        """That of the dynamics, the zeros included."""
        return self.dynamics.state_shape

    @property
    def structure(self) -> Structure:
        """That of the dynamics."""
        return self.dynamics.structure

    def lift(self, x: Tensor) -> Tensor:
        """The data, and zeros behind it."""
        # Padded, and not put beside zeros: the layout in memory, channels last for one, stays what it was.
        behind = [0, 0] * (x.dim() - 2) + [0, self.zeros]
        return self.dynamics.lift(F.pad(x, behind))

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """The dynamics."""
        return self.dynamics(t, x, theta)

    def config(self) -> dict[str, Any]:
        """dynamics, zeros."""
        return {"dynamics": self.dynamics, "zeros": self.zeros}
