"""Plastic controls: a coupling that the activity of the state changes, by Hebb's, Oja's or the delta rule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .._modules import Shapes, Theta, format_shapes
from ..errors import InputError, check_choice, check_flag, check_number
from .base import Controller, Motion, OuterProduct

RULES = {
    "hebb": "x x^T",
    "oja": "x (x - theta^T x)^T",
    "delta": "(x - theta x) x^T",
}


class Plastic(Controller):
    """dtheta/dt = mu * R(x, theta) - decay * theta, where * is elementwise and R is one of three rules.

    - "hebb": R = x x^T grows where both ends are active.
    - "oja": R = x (x - theta^T x)^T is Hebb's rule less what theta^T already makes of x. This is Oja's subspace rule
      (1989), y (u - theta^T y)^T for an input u and an output y, where x is both.
    - "delta": R = (x - theta x) x^T corrects theta x towards x. What is stored already is not stored again, so that
      patterns interfere less.

    These are the rules of Irie, Faccio and Schmidhuber (2022), with x as key and value. The control is one square
    matrix over the state, as that of `Recurrent` or `Linear`. mu (n, n) and theta_0 (n, n) are learned.

    Args:
        rule: "hebb", "oja" or "delta".
        strength: mu is at first strength / n: a state of n elements of size 1 is learned at this rate.
        hold: The diagonal of theta_0 at first.
        scale: Size of the random numbers that are added to mu and theta_0 at first.
        decay: None, a number for a constant rate, or "learned" for a rate that is learned (positive, initially 1e-2).
        shared: Whether all neurons are alike: mu and theta_0 then have one number for the connections between different
            neurons and one for those of a neuron with itself, in place of n^2. `mu` (2,) holds them times n, as
            `theta` (2,) does for different neurons, so that they mean the same for any n. No random numbers are added.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(10), ncode.control.Plastic("delta"), t1=0.5, method="rk4", dt=0.5)
    >>> shown = block.episode(torch.randn(1, 3, 10).sign())
    >>> shown.theta()["weight"].shape
    torch.Size([1, 10, 10])
    """

    def __init__(
        self,
        rule: str = "hebb",
        strength: float = 1.0,
        hold: float = 0.0,
        scale: float = 0.01,
        decay: float | str | None = None,
        shared: bool = False,
    ):
        super().__init__()
        self.rule = check_choice("rule", rule, RULES)
        self.strength = check_number("strength", strength, low=-math.inf)
        self.hold = check_number("hold", hold, low=-math.inf)
        self.scale, self.shared = check_number("scale", scale, low=0.0), check_flag("shared", shared)
        if isinstance(decay, str) and decay != "learned":
            raise InputError(f'decay must be None, a number or "learned"; given {decay!r}')
        self.decay = decay if decay is None or isinstance(decay, str) else check_number("decay", decay, low=0.0)
        self.equation = f"dtheta/dt = mu * {RULES[rule]}" + ("" if decay is None else " - decay * theta")
        self.register_parameter("mu", None)
        self.register_parameter("theta", None)
        self.register_parameter("log_decay", None)

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        sizes = list(shapes.values())
        if len(sizes) != 1 or len(sizes[0]) != 2 or sizes[0][0] != sizes[0][1] or sizes[0][0] is None:
            raise InputError(
                f"{type(self).__name__} drives one square matrix, (n, n) for a state of n elements; the dynamics take"
                f" {format_shapes(shapes)}. Set the other controls by Parts"
            )
        n = sizes[0][0]
        if self.shared:
            self.mu = nn.Parameter(torch.tensor([self.strength, self.strength]))
            self.theta = nn.Parameter(torch.tensor([0.0, self.hold]))
        else:
            self.mu = nn.Parameter(self.scale * torch.randn(n, n) + self.strength / n)
            self.theta = nn.Parameter(self.scale * torch.randn(n, n) + self.hold * torch.eye(n))
        if self.decay == "learned":
            self.log_decay = nn.Parameter(torch.tensor(0.01).log())

    def initial_theta(self, context: Tensor) -> Tensor:
        return self._theta_0

    def speed(self, t: Tensor, x: Tensor, theta: dict[str, Tensor]) -> Tensor:
        (current,) = theta.values()
        growth, rate = self._mu * self._growth(x, current), self.rate
        return growth if rate is None else growth - rate * current

    def _growth(self, x: Tensor, theta: Tensor) -> Tensor:
        left = right = x
        if self.rule == "delta":
            left = x - (theta @ x[:, :, None])[:, :, 0]
        elif self.rule == "oja":
            right = x - (x[:, None] @ theta)[:, 0]
        return left[:, :, None] * right[:, None, :]

    @property
    def rate(self) -> Tensor | None:
        """The decay rate as a tensor."""
        if self.log_decay is not None:
            return self.log_decay.exp()
        return None if self.decay is None else torch.as_tensor(self.decay, dtype=self.mu.dtype, device=self.mu.device)

    @property
    def motion(self) -> Motion:
        name = next(iter(self.shapes), "")
        if self.mu is None:  # not part of a block yet
            return OuterProduct(name, self.mu, self.theta, None, self.rule)
        return OuterProduct(name, self._mu, self._theta_0, self.rate, self.rule)

    @property
    def _mu(self) -> Tensor:
        return self._matrix(self.mu[0], self.mu[1] / self._n) if self.shared else self.mu

    @property
    def _theta_0(self) -> Tensor:
        return self._matrix(self.theta[0], self.theta[1]) if self.shared else self.theta

    @property
    def _n(self) -> int:
        return next(iter(self.shapes.values()))[0] or 0

    def _matrix(self, others: Tensor, own: Tensor) -> Tensor:
        """(n, n), with others / n off the diagonal and `own` on it."""
        identity = torch.eye(self._n, dtype=own.dtype, device=own.device)
        return others / self._n * (1 - identity) + own * identity


class Hebbian(Plastic):
    """dtheta/dt = mu * x x^T - decay * theta: `Plastic` by Hebb's rule, from random numbers.

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
        super().__init__("hebb", strength=0.0, scale=scale, decay=decay)
