"""`PlasticMemory`: plastic N-CODE as an associative memory."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..block import NCODE
from ..control import Hebbian
from ..dynamics import Recurrent
from ..errors import InputError, check_count, check_number, check_tensor


class PlasticMemory(nn.Module):
    """Closed-loop N-CODE (equation 7 of the paper): dx/dt = tanh(theta x), dtheta/dt = mu * x x^T.

    For each stored pattern x starts from the pattern and evolves for 0.5 s, while theta, which starts at theta_0, is
    carried on from pattern to pattern. Then x starts from the query; its value after 0.5 s is the recalled pattern.
    mu and theta_0, both n x n, are learned.

    theta_0 starts near `hold` times the identity: a neuron keeps its sign. Without it, the patterns already stored
    would distort the one that is shown, and so what is stored next.

    Args:
        n: Bits of a pattern.
        scale: Size of the random part of mu and theta_0 at first.
        hold: The diagonal of theta_0 at first.
        solver_steps: Steps of RK4 per presentation.

    >>> PlasticMemory(10)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    presentation_time: ClassVar[float] = 0.5
    """Duration of a presentation in seconds, as in the paper."""

    def __init__(self, n: int, scale: float = 1e-3, hold: float = 2.0, solver_steps: int = 1):
        super().__init__()
        self.solver_steps = check_count("solver_steps", solver_steps)
        plastic, duration = Hebbian(scale), self.presentation_time
        self.block = NCODE(Recurrent(n), plastic, t1=duration, method="rk4", dt=duration / self.solver_steps)
        with torch.no_grad():
            plastic.theta.diagonal().add_(check_number("hold", hold, low=-math.inf))

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """x at the end of the query, for stimuli (batch, P, n) and query (batch, n)."""
        if check_tensor("stimuli", stimuli).dim() != 3 or check_tensor("query", query).shape != stimuli[:, 0].shape:
            raise InputError(
                "stimuli must be (batch, P, n), and query (batch, n); given"
                f" {tuple(stimuli.shape)} and {tuple(query.shape)}"
            )
        return self.block.episode(torch.cat([stimuli, query[:, None]], 1)).x
