"""Plastic N-CODE as a memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..block import NCODE
from ..control import Hebbian
from ..dynamics import Recurrent

SHOWN = 0.5  # seconds a presentation lasts, in the paper


class Course(NamedTuple):
    """An episode as it went."""

    ts: Tensor  # (T,), from 0 to the end of the query
    xs: Tensor  # (batch, T, n)


class PlasticMemory(nn.Module):
    """Closed-loop N-CODE (equation 7 of the paper): dx/dt = tanh(theta x), dtheta/dt = mu * x x^T.

    How it is driven: x starts anew from each pattern and runs free for 0.5 s, and theta, from theta_0, is carried on;
    then x starts from the query, runs for 0.5 s, and is the answer. mu and theta_0, n x n each, are learned.

    mu starts as random numbers around zero, so that at first it stores nothing. theta_0 starts at `hold` times the
    identity, give or take: a neuron keeps the sign it has. Without it, patterns that are stored already pull at the
    one that is shown, and blur what is stored next.

    Args:
        n: Bits of a pattern.
        scale: Size of the random part of mu and theta_0 at first.
        hold: The diagonal of theta_0 at first.
        solver_steps: Steps of RK4 a presentation.

    >>> import torch
    >>> PlasticMemory(10)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n: int, scale: float = 1e-3, hold: float = 2.0, solver_steps: int = 1):
        super().__init__()
        self.solver_steps = solver_steps
        plastic = Hebbian(scale)
        self.block = NCODE(Recurrent(n), plastic, t1=SHOWN, method="rk4", dt=SHOWN / solver_steps)
        with torch.no_grad():
            plastic.theta.diagonal().add_(hold)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """x at the end of the query."""
        return self.block.episode(torch.cat([stimuli, query[:, None]], 1)).x

    def nfe(self, presentations: int) -> int:
        """Evaluations of f an episode."""
        return 4 * self.solver_steps * (presentations + 1)

    @torch.no_grad()
    def watch(self, stimuli: Tensor, query: Tensor, points: int = 11) -> Course:
        """x(t) through a whole episode, by steps small enough to be looked at."""
        inside = torch.linspace(0, SHOWN, points, device=query.device)
        ts, xs, theta = [], [], None
        for number, x in enumerate([*stimuli.unbind(1), query]):
            sol = self.block.solve(x, theta=theta, save_at=inside, dt=SHOWN / (points - 1))
            ts.append(number * SHOWN + inside)
            xs.append(sol.xs)
            theta = sol.theta
        return Course(torch.cat(ts), torch.cat(xs, 1))
