"""`PlasticMemory`: plastic N-CODE as an associative memory."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..block import NCODE
from ..control import Hebbian
from ..dynamics import Recurrent


class MemoryTrajectory(NamedTuple):
    """x(t) through an episode."""

    ts: Tensor  # (T,), from 0 to the end of the query
    xs: Tensor  # (batch, T, n)


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
        self.solver_steps = solver_steps
        plastic, duration = Hebbian(scale), self.presentation_time
        self.block = NCODE(Recurrent(n), plastic, t1=duration, method="rk4", dt=duration / solver_steps)
        with torch.no_grad():
            plastic.theta.diagonal().add_(hold)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """x at the end of the query, for stimuli (batch, P, n) and query (batch, n)."""
        return self.block.episode(torch.cat([stimuli, query[:, None]], 1)).x

    @torch.no_grad()
    def trajectory(self, stimuli: Tensor, query: Tensor, points: int = 11) -> MemoryTrajectory:
        """x(t) through a whole episode at `points` times per presentation, with steps small enough to plot."""
        duration = self.presentation_time
        inside = torch.linspace(0, duration, points, device=query.device)
        ts, xs, theta = [], [], None
        for number, x in enumerate([*stimuli.unbind(1), query]):
            sol = self.block.solve(x, theta=theta, save_at=inside, dt=duration / (points - 1))
            ts.append(number * duration + inside)
            xs.append(sol.xs)
            theta = sol.theta
        return MemoryTrajectory(torch.cat(ts), torch.cat(xs, 1))
