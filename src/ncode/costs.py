"""Regularisers: running costs of a trajectory.

Pass one to `NCODE.solve(x, cost=...)`, or several in a list; the integral over [t0, t1] is `sol.cost`. For
`ncode.solve`, `regulariser.on(System(f), x0)` is the running cost l(t, x, theta).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad

from ._modules import Theta
from .errors import InputError, check_choice, check_count, check_number
from .ode.system import Cost, Dynamics

__all__ = ["ControlNorm", "ControlSpeed", "JacobianNorm", "KineticEnergy", "Regulariser", "System", "total"]


def _theta_by_name(t: Tensor, theta: Any) -> Theta:
    return theta if isinstance(theta, Mapping) else {} if theta is None else {"theta": theta}


@dataclass(frozen=True)
class System:
    """What a regulariser can use: functions of the time, the state and the theta of the solver.

    >>> import torch, ncode
    >>> f = lambda t, x, theta: theta
    >>> cost = ncode.costs.KineticEnergy().on(ncode.costs.System(f), torch.zeros(1, 3))
    >>> ncode.solve(f, torch.zeros(1, 3), 0.0, 1.0, theta=torch.ones(1, 3), cost=cost).cost.round(decimals=4)
    tensor([3.])
    """

    f: Dynamics  # dx/dt
    control: Callable[[Tensor, Any], Theta] = _theta_by_name  # the control by name
    speed: Callable[[Tensor, Tensor, Any], Theta] = lambda t, x, theta: {}  # dtheta/dt by name


class Regulariser(ABC):
    """A running cost for any system. Abstract: a subclass defines `on`.

    >>> import torch, ncode
    >>> class Distance(ncode.costs.Regulariser):  # from the initial value
    ...     def on(self, system, x0):
    ...         return lambda t, x, theta: (x - x0).square().sum(1)
    >>> f = ncode.dynamics.Function(lambda t, x, theta: torch.ones_like(x))
    >>> ncode.NCODE(f).solve(torch.zeros(1, 3), cost=Distance()).cost.detach().round(decimals=4)
    tensor([1.])
    """

    @abstractmethod
    def on(self, system: System, x0: Tensor) -> Cost:
        """Return the running cost l(t, x, theta) -> (batch,) of one solve that starts at x0."""


@dataclass(frozen=True)
class _Weighted(Regulariser):
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_number("weight", self.weight, low=0.0)


@dataclass(frozen=True)
class KineticEnergy(_Weighted):
    """weight * |dx/dt|^2: favours straight and slow trajectories (Finlay et al., 2020).

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: torch.full_like(x, 2.0))
    >>> ncode.NCODE(f).solve(torch.zeros(1, 3), cost=ncode.costs.KineticEnergy(weight=0.5)).cost.detach().round()
    tensor([6.])
    """

    def on(self, system: System, x0: Tensor) -> Cost:
        weight, f = self.weight, system.f
        return lambda t, x, theta: weight * _square(f(t, x, theta))


@dataclass(frozen=True)
class JacobianNorm(_Weighted):
    """weight * |df/dx|^2 (Frobenius), by Hutchinson's estimate E |e^T df/dx|^2 over noise e (Finlay et al., 2020).

    The noise is drawn once per solve, so the cost is a smooth function of time and its gradient is exact.

    Args:
        weight: The weight of the cost.
        samples: Number of noise vectors.
        noise: "rademacher" (+1 or -1) or "gaussian".

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: -x)  # df/dx is minus the identity
    >>> ncode.NCODE(f).solve(torch.ones(1, 3), cost=ncode.costs.JacobianNorm()).cost.detach().round(decimals=4)
    tensor([3.])
    """

    samples: int = 1
    noise: str = "rademacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("noise", self.noise, ("rademacher", "gaussian"))
        check_count("samples", self.samples)

    def on(self, system: System, x0: Tensor) -> Cost:
        # The batch dimension comes first, so that a solver that drops finished samples drops their noise too.
        drawn = torch.randn(x0.shape[0], self.samples, *x0.shape[1:], dtype=x0.dtype, device=x0.device)
        noise = drawn.sign() if self.noise == "rademacher" else drawn
        weight, f = self.weight / self.samples, system.f

        def cost(t: Tensor, x: Tensor, theta: Any) -> Tensor:
            graph = torch.is_grad_enabled()
            with torch.enable_grad():
                at = x if graph and x.requires_grad else x.detach().requires_grad_()
                slope = f(t, at, theta)
                if not slope.requires_grad:  # f depends on nothing that has a gradient
                    return _square(torch.zeros_like(x))
                vjp = partial(grad, slope, at, retain_graph=True, create_graph=graph, materialize_grads=True)
                return weight * torch.stack([_square(*vjp(e)) for e in noise.unbind(1)]).sum(0)

        return cost


@dataclass(frozen=True)
class ControlNorm(_Weighted):
    """weight * |theta|^2, over all tensors of the control.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta, (3,))
    >>> sol = ncode.NCODE(f).solve(torch.zeros(1, 3), theta=torch.ones(1, 3), cost=ncode.costs.ControlNorm())
    >>> sol.cost.detach().round(decimals=4)
    tensor([3.])
    """

    def on(self, system: System, x0: Tensor) -> Cost:
        weight, control = self.weight, system.control
        return lambda t, x, theta: weight * _squares(t, control(t, theta))


@dataclass(frozen=True)
class ControlSpeed(_Weighted):
    """weight * |dtheta/dt|^2, over all tensors of the control; 0 if the control is constant.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: 0 * x, {"u": (3,)})
    >>> loop = ncode.ClosedLoop(lambda t, x, theta: {"u": x})
    >>> sol = ncode.NCODE(f, loop).solve(torch.ones(1, 3), cost=ncode.costs.ControlSpeed())
    >>> sol.cost.detach().round(decimals=4)
    tensor([3.])
    """

    def on(self, system: System, x0: Tensor) -> Cost:
        weight, speed = self.weight, system.speed
        return lambda t, x, theta: weight * _squares(t, speed(t, x, theta))


CostLike = Cost | Regulariser | Sequence[Cost | Regulariser]
"""A running cost l(t, x, theta), a regulariser, or several of them to be added."""


def total(costs: CostLike, system: System, x0: Tensor) -> Cost:
    """Return the sum of running costs, each a function l(t, x, theta) of the control by name, or a regulariser.

    >>> import torch, ncode
    >>> f = lambda t, x, theta: -x
    >>> parts = [ncode.costs.KineticEnergy(), lambda t, x, theta: t]
    >>> cost = ncode.costs.total(parts, ncode.costs.System(f), torch.ones(1, 3))
    >>> cost(torch.tensor([0.5]), torch.ones(1, 3), None)
    tensor([3.5000])
    """
    parts = costs if isinstance(costs, Sequence) else [costs]
    if not parts:
        raise InputError("cost is an empty list: leave it out, or name a cost")
    # Closures hold only functions, numbers and tensors, so that a compiling solver recognises a cost in the next solve.
    return reduce(_plus, (_running(part, system, x0) for part in parts))


def _running(cost: Cost | Regulariser, system: System, x0: Tensor) -> Cost:
    if isinstance(cost, Regulariser):
        return cost.on(system, x0)
    if not callable(cost):
        raise InputError(
            "cost must be a function l(t, x, theta), a regulariser of ncode.costs, or a list of those; given"
            f" {type(cost).__name__}"
        )
    control = system.control
    return lambda t, x, theta: cost(t, x, control(t, theta))


def _plus(one: Cost, other: Cost) -> Cost:
    return lambda t, x, theta: one(t, x, theta) + other(t, x, theta)


def _square(value: Tensor) -> Tensor:
    """|value|^2, (batch,)."""
    squares = (value.conj() * value).real if value.is_complex() else value.square()
    return squares.sum(dim=tuple(range(1, squares.dim()))) if squares.dim() > 1 else squares


def _squares(t: Tensor, values: Theta) -> Tensor:
    return sum((_square(value) for value in values.values()), torch.zeros_like(t))
