"""Dynamics whose control is a matrix: dx/dt = W x and dx/dt = rho(W x)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Theta
from ..errors import InputError, allocating, check_choice, check_count, check_flag, check_number
from .base import ACTIVATIONS, Dynamics, Product, Structure, dense_rows, matvec


class Linear(Dynamics):
    """dx/dt = W x, where W (m, m) is the control.

    If the control is constant, the block solves it exactly, by the matrix exponential.

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
        self.control_shapes, self.state_shape = {"weight": (self.m, self.m)}, (self.m,)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        return matvec(theta["weight"], x)

    def jacobian(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """W for each sample, for methods that solve stiff problems."""
        return theta["weight"].expand(len(x), self.m, self.m)

    @property
    def structure(self) -> Structure:
        return Product("weight")


class SparseLinear(Dynamics):
    """dx/dt = W x, where each row of W (m, m) has a few non-zeros, at random positions given by the seed.

    The control are their values, (m, nonzeros). The positions, `columns`, differ within a row and are saved with the
    module. If the control is constant, the block solves it exactly.

    >>> import ncode
    >>> f = ncode.dynamics.SparseLinear(128, nonzeros=2)
    >>> dict(f.control_shapes), tuple(f.columns.shape)
    ({'weight': (128, 2)}, (128, 2))
    """

    shared_control = True
    columns: Tensor

    def __init__(self, m: int, nonzeros: int = 2, seed: int = 0):
        super().__init__()
        self.m, self.nonzeros = check_count("m", m), check_count("nonzeros", nonzeros)
        self.seed = check_count("seed", seed, low=0)
        if self.nonzeros > self.m:
            raise InputError(f"nonzeros must be at most m, the length of a row: given {nonzeros} with m = {m}")
        generator = torch.Generator().manual_seed(self.seed)
        with allocating(f"{self.m} x {self.m} random numbers for the positions of non-zeros"):
            columns = torch.rand(self.m, self.m, generator=generator).argsort(1)[:, : self.nonzeros]
        self.register_buffer("columns", columns.sort(1).values)
        self.register_load_state_dict_pre_hook(_check_columns)
        self.control_shapes, self.state_shape = {"weight": (self.m, self.nonzeros)}, (self.m,)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """Return W x, without forming W."""
        return (theta["weight"] * x[:, self.columns]).sum(-1)

    def jacobian(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """W for each sample, for methods that solve stiff problems."""
        return dense_rows(theta["weight"], self.columns).expand(len(x), self.m, self.m)

    @property
    def structure(self) -> Structure:
        return Product("weight", columns=self.columns)

    def dense(self, values: Tensor) -> Tensor:
        """Return the matrices W (..., m, m) with these values (..., m, nonzeros)."""
        return dense_rows(values, self.columns)


def _check_columns(module: SparseLinear, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Refuse positions outside of a row: kernels for GPUs would read other memory there."""
    columns = state_dict.get(f"{prefix}columns")
    if not isinstance(columns, Tensor) or columns.numel() == 0 or columns.is_meta:
        return
    whole = not (columns.is_floating_point() or columns.is_complex() or columns.dtype == torch.bool)
    if not whole or int(columns.min()) < 0 or int(columns.max()) >= module.m:
        raise InputError(f"columns must hold whole numbers from 0 to {module.m - 1}, positions in a row of the matrix")


class Recurrent(Dynamics):
    """dx/dt = rho(gain W x) - leak x: n neurons, each coupled to all, where the coupling W (n, n) is the control.

    The memory task of the paper uses it with `Hebbian` plasticity. There rho is odd, since patterns are +1 and -1.

    Args:
        n: Number of neurons.
        activation: rho, by name.
        gain: Factor of the input of rho.
        leak: Rate at which x decays.
        learned: Whether gain and leak are learned, from these values on; `rates` (2,) then holds them.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(5), ncode.Hebbian(), t1=0.5)
    >>> block(torch.ones(3, 5)).shape
    torch.Size([3, 5])
    """

    shared_control = True

    def __init__(self, n: int, activation: str = "tanh", gain: float = 1.0, leak: float = 0.0, learned: bool = False):
        super().__init__()
        self.gain = check_number("gain", gain, low=-math.inf)
        self.leak, self.learned = check_number("leak", leak, low=0.0), check_flag("learned", learned)
        self.rates = nn.Parameter(torch.tensor([self.gain, self.leak])) if self.learned else None
        self.n, self.activation = check_count("n", n), check_choice("activation", activation, ACTIVATIONS)
        self.control_shapes, self.state_shape = {"weight": (self.n, self.n)}, (self.n,)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        rho, (gain, leak), product = ACTIVATIONS[self.activation], self._rates, matvec(theta["weight"], x)
        slope = rho(product if gain is None else gain * product)
        return slope if leak is None else slope - leak * x

    @property
    def _rates(self) -> tuple[float | Tensor | None, float | Tensor | None]:
        """gain and leak, or None where they are 1 and 0 for good."""
        if self.rates is not None:
            return self.rates[0], self.rates[1]
        return None if self.gain == 1 else self.gain, self.leak or None

    @property
    def structure(self) -> Structure:
        return Product("weight", self.activation, None, *self._rates)
