"""Continuous memories whose weights do not change within an episode: all that they remember is in their state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ncode.block import NCODE
from ncode.control import DataControl
from ncode.dynamics import Function
from ncode.models.memory_plastic import SHOWN


class DataControlledMemory(nn.Module):
    """A data-controlled NODE (Massaroli et al., 2020): dx/dt = tanh(W [x, x_stim]), with W of n x 2n.

    How it is driven: what is shown stands beside x(t) in the field for 0.5 s, patterns and query alike. x starts from 0
    and is carried on from one presentation to the next, or nothing could be remembered; at the end it is the answer.

    Args:
        n: Bits of a pattern.
        scale: Size of W at first.
        solver_steps: Steps of RK4 a presentation.

    >>> import torch
    >>> DataControlledMemory(10)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n: int, scale: float = 1e-3, solver_steps: int = 1):
        super().__init__()
        self.solver_steps = solver_steps
        self.block = _driven(_Beside(n, scale), n, solver_steps)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """x at the end of the query."""
        return _carry(self.block, stimuli, query)

    def nfe(self, presentations: int) -> int:
        """Evaluations of f an episode."""
        return 4 * self.solver_steps * (presentations + 1)


class ODERNNMemory(nn.Module):
    """A continuous RNN with fixed weights and a linear read-out: dh/dt = tanh(W h + x_stim), answer R h, n x n each.

    How it is driven: what is shown is a current into the neurons for 0.5 s, patterns and query alike. h starts from 0
    and is carried on through the episode; the read-out is taken at the end of the query.

    Args:
        n: Bits of a pattern.
        scale: Size of W and R at first.
        solver_steps: Steps of RK4 a presentation.

    >>> import torch
    >>> ODERNNMemory(10)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n: int, scale: float = 1e-3, solver_steps: int = 1):
        super().__init__()
        self.solver_steps = solver_steps
        self.block = _driven(_Current(n, scale), n, solver_steps)
        self.read_out = nn.Parameter(scale * torch.randn(n, n))

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """R h at the end of the query."""
        return _carry(self.block, stimuli, query) @ self.read_out.mT

    def nfe(self, presentations: int) -> int:
        """Evaluations of f an episode."""
        return 4 * self.solver_steps * (presentations + 1)


class _Beside(nn.Module):
    def __init__(self, n: int, scale: float):
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(n, 2 * n))

    def forward(self, t: Tensor, x: Tensor, shown: Tensor) -> Tensor:
        return torch.tanh(torch.cat([x, shown], 1) @ self.weight.mT)


class _Current(nn.Module):
    def __init__(self, n: int, scale: float):
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(n, n))

    def forward(self, t: Tensor, h: Tensor, shown: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(shown, h, self.weight.mT))


def _driven(field: nn.Module, n: int, solver_steps: int) -> NCODE:
    # A graph of the few steps is small, and quicker than taking them again in backward.
    how = {"method": "rk4", "dt": SHOWN / solver_steps, "gradient": "autograd"}
    return NCODE(Function(field, (n,), (n,)), DataControl(), t1=SHOWN, **how)


def _carry(block: NCODE, stimuli: Tensor, query: Tensor) -> Tensor:
    x = torch.zeros_like(query)
    for shown in (*stimuli.unbind(1), query):
        x = block(x, context=shown)
    return x
