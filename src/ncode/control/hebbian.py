"""Hebbian plasticity: a coupling grows where both of its ends are active."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._modules import Shapes, Theta, format_shapes
from ..checks import check_number
from ..errors import InputError
from .base import Controller, Motion, OuterProduct


class Hebbian(Controller):
    """dtheta/dt = mu * x x^T - decay * theta: a coupling that grows where both ends are active.

    mu (n, n) and theta_0 (n, n) are learned and start as random numbers of size `scale`. The control is one square
    matrix over the state, as that of `Recurrent` or `Linear`.

    Args:
        scale: The initial size of mu and of theta_0.
        decay: None, a number for a constant rate, or "learned" for a rate that is learned (positive, initially 1e-2).

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(10), ncode.Hebbian(), t1=0.5)
    >>> first = block.solve(torch.ones(1, 10))  # changes theta, from which the next solve continues
    >>> block.solve(torch.ones(1, 10), theta=first.theta).theta["weight"].shape
    torch.Size([1, 10, 10])
    """

    def __init__(self, scale: float = 0.01, decay: float | str | None = None):
        super().__init__()
        self.scale = check_number("scale", scale, low=0.0)
        if isinstance(decay, str) and decay != "learned":
            raise InputError(f'decay must be None, a number or "learned"; given {decay!r}')
        self.decay = decay if decay is None or isinstance(decay, str) else check_number("decay", decay, low=0.0)
        self.equation = "dtheta/dt = mu * x x^T" + ("" if decay is None else " - decay * theta")
        self.register_parameter("mu", None)
        self.register_parameter("theta", None)
        self.register_parameter("log_decay", None)

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        """Make mu and theta_0."""
        sizes = list(shapes.values())
        if len(sizes) != 1 or len(sizes[0]) != 2 or sizes[0][0] != sizes[0][1] or sizes[0][0] is None:
            raise InputError(
                "Hebbian drives one square matrix, (n, n) for a state of n elements; the dynamics take"
                f" {format_shapes(shapes)}. Set the other controls by Parts"
            )
        n = sizes[0][0]
        self.mu = nn.Parameter(self.scale * torch.randn(n, n))
        self.theta = nn.Parameter(self.scale * torch.randn(n, n))
        if self.decay == "learned":
            self.log_decay = nn.Parameter(torch.tensor(0.01).log())

    def initial_theta(self, context: Tensor) -> Tensor:
        """Return theta_0, the same for all samples."""
        return self.theta

    def speed(self, t: Tensor, x: Tensor, theta: dict[str, Tensor]) -> Tensor:
        """Return mu * x x^T - decay * theta."""
        growth, rate = self.mu * (x[:, :, None] * x[:, None, :]), self.rate
        (current,) = theta.values()
        return growth if rate is None else growth - rate * current

    @property
    def rate(self) -> Tensor | None:
        """The decay rate as a tensor."""
        if self.log_decay is not None:
            return self.log_decay.exp()
        return None if self.decay is None else torch.as_tensor(self.decay, dtype=self.mu.dtype, device=self.mu.device)

    @property
    def motion(self) -> Motion:
        """A sum of outer products of the state."""
        return OuterProduct(next(iter(self.shapes), ""), self.mu, self.theta, self.rate)
