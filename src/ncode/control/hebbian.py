"""Plastic synapses: what fires together wires together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_number
from ..errors import InputError
from .base import Controller, Shapes, State, Theta
from .bound import check_bound, describe
from .motion import Motion, Outer


class Hebbian(Controller):
    """dtheta/dt = mu * x x^T - decay * theta: a coupling that grows where both ends are active.

    mu (n, n) and theta at t0 (n, n) are learned, and start as random numbers of size `scale`. The control it drives
    is one square matrix over the state, that of `Recurrent` or `Linear`.

    Args:
        scale: The size of mu and of theta_0 at first.
        decay: None for none, a number for a rate that stays, or "learned" for a rate that is learned (from 1e-2, and
            kept positive).

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(10), ncode.Hebbian(), t1=0.5)
    >>> shown = block.solve(torch.ones(1, 10))  # theta has changed on the way, and can be carried on
    >>> block.solve(torch.ones(1, 10), theta=shown.theta).theta["weight"].shape
    torch.Size([1, 10, 10])
    """

    def __init__(self, scale: float = 0.01, decay: float | str | None = None):
        super().__init__()
        self.scale = check_number("scale", scale, low=0.0)
        if isinstance(decay, str) and decay != "learned":
            raise InputError(f'decay must be None, a number or "learned"; given {decay!r}')
        self.decay = decay if decay is None or isinstance(decay, str) else check_number("decay", decay, low=0.0)
        self.equation = "dtheta/dt = mu * x x^T" + ("" if decay is None else " - decay * theta")
        self.name: str | None = None
        self.register_parameter("mu", None)
        self.register_parameter("theta", None)
        self.register_parameter("log_decay", None)

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """mu and theta_0."""
        if self.name is not None:
            raise InputError("this Hebbian already controls another block: give each block a controller of its own")
        sizes = list(shapes.values())
        if len(sizes) != 1 or len(sizes[0]) != 2 or sizes[0][0] != sizes[0][1] or sizes[0][0] is None:
            raise InputError(
                "Hebbian drives one square matrix, (n, n) for a state of n elements; the dynamics want"
                f" {describe(shapes)}. Drive the rest by Parts"
            )
        (self.name,) = shapes
        n = sizes[0][0]
        self.mu = nn.Parameter(self.scale * torch.randn(n, n))
        self.theta = nn.Parameter(self.scale * torch.randn(n, n))
        if self.decay == "learned":
            self.log_decay = nn.Parameter(torch.tensor(0.01).log())

    def start(self, context: Tensor) -> State:
        """theta_0."""
        check_bound(self, self.name is not None)
        return State({}, {str(self.name): self.theta.expand(context.shape[0], -1, -1)})

    def given(self, theta: Theta) -> State:
        """A coupling to go on from."""
        return State({}, theta)

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """As it was driven."""
        return dict(state.driven)

    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """mu * x x^T - decay * theta."""
        (name, theta), decay = *state.driven.items(), self.rate
        grown = self.mu * (x[:, :, None] * x[:, None, :])
        return {name: grown if decay is None else grown - decay * theta}

    @property
    def rate(self) -> Tensor | None:
        """The rate of decay."""
        if self.log_decay is not None:
            return self.log_decay.exp()
        return None if self.decay is None else torch.as_tensor(self.decay, dtype=self.mu.dtype, device=self.mu.device)

    @property
    def motion(self) -> Motion:
        """Outer products."""
        return Outer(str(self.name), self.mu, self.theta, self.rate)

    def config(self) -> dict[str, Any]:
        """scale, decay."""
        return {"scale": self.scale, "decay": self.decay}
