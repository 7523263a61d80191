"""Linear dynamics whose matrix is block-diagonal, or antisymmetric: dx/dt = W x."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from .._modules import Theta
from ..errors import InputError, allocating, check_count
from .base import Dynamics, Product, Structure, dense_rows


class _Blocks(Dynamics):
    """dx/dt = W x, where W (m, m) has square blocks on its diagonal, which `blocks` makes of the control."""

    shared_control = True
    m: int

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        return _multiply(self.blocks(theta["weight"]), x)

    def jacobian(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """W for each sample, for methods that solve stiff problems."""
        return self.dense(theta["weight"]).expand(len(x), self.m, self.m)

    @property
    def structure(self) -> Structure:
        return Product("weight", blocks=self.blocks)

    @abstractmethod
    def blocks(self, weight: Tensor) -> Tensor:
        """Return the blocks (..., m / block, block, block) for the control."""

    def dense(self, weight: Tensor) -> Tensor:
        """Return the matrices W (..., m, m) for the control."""
        return _dense(self.blocks(weight))


class BlockLinear(_Blocks):
    """dx/dt = W x, where W (m, m) is block-diagonal: m / block square blocks on its diagonal, and zeros elsewhere.

    The control are the rows of the blocks, (m, block). With blocks of 1 it is a diagonal, (m, 1), which scales each
    element of x on its own; one block of m is `Linear`. If the control is constant, or set by a piecewise constant
    input, the block solves it exactly.

    Args:
        m: Elements of x, (batch, m).
        block: Rows of a block; m must be a multiple of it.

    >>> import torch, ncode
    >>> f = ncode.dynamics.BlockLinear(4, block=2)
    >>> f.dense(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]))
    tensor([[1., 2., 0., 0.],
            [3., 4., 0., 0.],
            [0., 0., 5., 6.],
            [0., 0., 7., 8.]])
    """

    def __init__(self, m: int, block: int = 1):
        super().__init__()
        self.m, self.block = _check_sizes(m, block, smallest=1)
        self.control_shapes, self.state_shape = {"weight": (self.m, self.block)}, (self.m,)

    def blocks(self, weight: Tensor) -> Tensor:
        """Return the blocks (..., m / block, block, block) for the control (..., m, block)."""
        return weight.unflatten(-2, (-1, self.block))


class Skew(_Blocks):
    """dx/dt = W x, where W (m, m) is antisymmetric, W^T = -W: x turns about the origin, and its norm stays as it is.

    The flow from one time to another is a rotation, whatever the control does in between. So a state passes any number
    of inputs without growth or decay, and two states keep their distance. If the control is constant, or set by a
    piecewise constant input, the block solves it exactly, and the norm is kept up to rounding; otherwise up to the
    tolerance of the solver.

    The control are the entries of W above the diagonal, row by row, for each block on its diagonal: (m / block,
    block (block - 1) / 2). Rotations by blocks of 2 commute, those by larger blocks do not.

    Args:
        m: Elements of x, (batch, m), at least 2.
        block: Rows of a block; m must be a multiple of it. Default: m, one block.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Skew(3)
    >>> f.dense(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[ 0.,  1.,  2.],
            [-1.,  0.,  3.],
            [-2., -3.,  0.]])
    >>> block = ncode.NCODE(f, ncode.OpenLoop(torch.nn.Linear(3, 8)), t1=100.0)
    >>> block(torch.tensor([[3.0, 0.0, 4.0]])).norm().round(decimals=4)
    tensor(5., grad_fn=<RoundBackward1>)
    """

    _positions: Tensor
    _signs: Tensor

    def __init__(self, m: int, block: int | None = None):
        super().__init__()
        self.m, self.block = _check_sizes(m, m if block is None else block, smallest=2)
        count = self.block * (self.block - 1) // 2
        with allocating(f"the {self.block} x {self.block} positions of the entries of a block"):
            upper = torch.zeros(self.block, self.block, dtype=torch.int64)
            upper[tuple(torch.triu_indices(self.block, self.block, 1))] = torch.arange(count)
            signs = torch.ones(self.block, self.block).triu(1)
        # Constants that follow from the sizes: not saved.
        self.register_buffer("_positions", (upper + upper.T).flatten(), persistent=False)
        self.register_buffer("_signs", (signs - signs.T).flatten(), persistent=False)
        self.control_shapes, self.state_shape = {"weight": (self.m // self.block, count)}, (self.m,)

    def blocks(self, weight: Tensor) -> Tensor:
        """Return the blocks (..., m / block, block, block) for the control (..., m / block, entries of a block)."""
        entries = weight.index_select(-1, self._positions) * self._signs.to(weight.dtype)
        return entries.unflatten(-1, (self.block, self.block))


def _check_sizes(m: int, block: int, smallest: int) -> tuple[int, int]:
    m, block = check_count("m", m, low=smallest), check_count("block", block, low=smallest)
    if m % block:
        raise InputError(f"m must be a multiple of block, the rows of a block: given m = {m} with block = {block}")
    return m, block


def _multiply(blocks: Tensor, x: Tensor) -> Tensor:
    """Return W x (batch, m) for blocks (batch, n, b, b), or (n, b, b) if all samples share them."""
    return (blocks * x.unflatten(1, (blocks.shape[-3], 1, -1))).sum(-1).flatten(1)


def _dense(blocks: Tensor) -> Tensor:
    """Return the block-diagonal matrices (..., n b, n b) of blocks (..., n, b, b)."""
    n, b = blocks.shape[-3], blocks.shape[-1]
    columns = torch.arange(n * b, device=blocks.device).unflatten(0, (n, 1, b)).expand(n, b, b).flatten(0, 1)
    return dense_rows(blocks.flatten(-3, -2), columns)
