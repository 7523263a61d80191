"""dx/dt = theta x with a few non-zeros a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import check_count
from ..errors import InputError
from .base import Dynamics, Shape, Shapes, Theta
from .structure import Product, Structure


class SparseLinear(Dynamics):
    """dx/dt = W x, where each row of W (m, m) has a few non-zeros, at places that the seed fixes.

    The control is their values, (m, nonzeros). The places, `columns`, differ within a row and are saved with the
    module. With a control that stands still the block solves it exactly.

    >>> import ncode
    >>> f = ncode.dynamics.SparseLinear(128, nonzeros=2)
    >>> dict(f.control_shapes), tuple(f.columns.shape)
    ({'weight': (128, 2)}, (128, 2))
    """

    shared_control = True
    columns: Tensor

    def __init__(self, m: int, nonzeros: int = 2, seed: int = 0):
        super().__init__()
        self.m, self.nonzeros, self.seed = (
            check_count("m", m),
            check_count("nonzeros", nonzeros),
            check_count("seed", seed, low=0),
        )
        if nonzeros > m:
            raise InputError(f"nonzeros must be at most m, the length of a row: given {nonzeros} with m = {m}")
        generator = torch.Generator().manual_seed(seed)
        places = torch.rand(m, m, generator=generator).argsort(1)[:, :nonzeros]
        self.register_buffer("columns", places.sort(1).values)

    @property
    def control_shapes(self) -> Shapes:
        """The values."""
        return {"weight": (self.m, self.nonzeros)}

    @property
    def state_shape(self) -> Shape:
        """(m,)."""
        return (self.m,)

    @property
    def structure(self) -> Structure:
        """A product with sparse rows."""
        return Product("weight", columns=self.columns)

    def lift(self, x: Tensor) -> Tensor:
        """The state is what the block is given."""
        return x

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """W x, without forming W."""
        return (theta["weight"] * x[:, self.columns]).sum(-1)

    def dense(self, values: Tensor) -> Tensor:
        """The matrices W (batch, m, m) with these values (batch, m, nonzeros)."""
        full = values.new_zeros(values.shape[0], self.m, self.m)
        return full.scatter(2, self.columns.expand(values.shape[0], -1, -1), values)

    def config(self) -> dict[str, Any]:
        """m, nonzeros, seed."""
        return {"m": self.m, "nonzeros": self.nonzeros, "seed": self.seed}
