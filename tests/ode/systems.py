"""Systems that several tests solve, and small tools for looking at a solve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

DOUBLE = torch.float64
ADAPTIVE = ("midpoint", "heun", "bosh3", "dopri5", "tsit5", "dopri8")
GRADIENTS = ("discrete", "adjoint", "autograd")


def double(*values: float) -> Tensor:
    """A column (batch, 1) of these values in double precision."""
    return torch.tensor(values, dtype=DOUBLE)[:, None]


def close(got: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-12, **options: Any) -> None:
    """Assert that tensors, or nests of tensors, are equal up to a tolerance."""
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, **options)


class Counted:
    """A function that remembers how many samples it was given at each call."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.rows: list[int] = []

    def __call__(self, t: Tensor, x: Tensor, theta: Any) -> Any:
        self.rows.append(len(x))
        return self.function(t, x, theta)

    @property
    def calls(self) -> int:
        return len(self.rows)


def decay(t: Tensor, x: Tensor, theta: Any) -> Tensor:
    return -x


def explode(t: Tensor, x: Tensor, theta: Any) -> Tensor:
    """dx/dt = x^2: reaches infinity at t = 1 / x0."""
    return x.square()


def column(t: Tensor, x: Tensor) -> Tensor:
    """t with as many dimensions as x."""
    return t.reshape(-1, *[1] * (x.dim() - 1))


class Everything(nn.Module):
    """A system in which everything that can want a gradient does: see `inputs` and `loss`.

    gamma sets a nested control from x0; the dynamics, the feedback and the cost have parameters of their own; the
    dynamics also use a leaf and a computed tensor that are no parameters.
    """

    def __init__(self, batch: int = 3, size: int = 2, feedback: bool = True):
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def random(*shape: int, scale: float = 0.5) -> Tensor:
            return scale * torch.randn(*shape, dtype=DOUBLE, generator=generator)

        self.gamma = nn.Linear(size, size * size + size, dtype=DOUBLE)
        self.f = nn.Linear(size, size, dtype=DOUBLE)
        self.g = nn.Linear(size, size * size + size, dtype=DOUBLE)
        self.price = nn.Parameter(random(size))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(random(*parameter.shape))
        self.size, self.driven = size, feedback
        self.leaf = random(size).requires_grad_()
        self.root = random(size).requires_grad_()
        self.x0 = random(batch, size, scale=1.0).requires_grad_()
        self.t0 = (0.1 * torch.arange(batch, dtype=DOUBLE)).requires_grad_()
        self.t1 = (1.0 + 0.2 * torch.arange(batch, dtype=DOUBLE)).requires_grad_()
        inside = torch.linspace(0.2, 0.9, 3, dtype=DOUBLE)
        self.save_at = (self.t0 + (self.t1 - self.t0) * inside[:, None]).T.detach().requires_grad_()

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Everything that the loss depends on."""
        named = {name: p for name, p in self.named_parameters() if self.driven or not name.startswith("g.")}
        plain = ("leaf", "root", "x0", "t0", "t1", "save_at")
        return {**named, **{name: getattr(self, name) for name in plain}}

    def control(self) -> dict[str, Any]:
        flat = self.gamma(self.x0)
        matrix, offset = flat.split([self.size * self.size, self.size], 1)
        return {"matrix": matrix.unflatten(1, (self.size, self.size)), "rest": (offset,)}

    def arguments(self) -> dict[str, Any]:
        """What to call solve with."""
        computed = self.root.sin()

        def dynamics(t: Tensor, x: Tensor, theta: Any) -> Tensor:
            drive = (theta["matrix"] @ x[:, :, None])[:, :, 0] + theta["rest"][0] * t.cos()[:, None]
            return torch.tanh(drive + self.f(x)) + computed * self.leaf

        def feedback(t: Tensor, x: Tensor, theta: Any) -> Any:
            flat = torch.tanh(self.g(x)) * t[:, None]
            matrix, offset = flat.split([self.size * self.size, self.size], 1)
            return {"matrix": matrix.unflatten(1, (self.size, self.size)), "rest": (offset - theta["rest"][0],)}

        def cost(t: Tensor, x: Tensor, theta: Any) -> Tensor:
            return (self.price * x.square()).sum(1) + t * theta["rest"][0].square().sum(1)

        return {
            "dynamics": dynamics,
            "x0": self.x0,
            "t0": self.t0,
            "t1": self.t1,
            "theta": self.control(),
            "feedback": feedback if self.driven else None,
            "cost": cost,
            "save_at": self.save_at,
        }

    def loss(self, solution: Any) -> Tensor:
        """Depends on all that a solution returns, each with a weight of its own."""
        parts: Sequence[Tensor] = (
            solution.x.sin().sum(),
            solution.theta["matrix"].square().sum(),
            solution.theta["rest"][0].sum(),
            solution.cost.square().sum(),
            solution.xs.cos().sum(),
            solution.thetas["rest"][0].square().sum(),
        )
        return sum((0.3 + 0.2 * i) * part for i, part in enumerate(parts))  # type: ignore[return-value]


def gradients(loss: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by name, zero where there is none."""
    got = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(inputs, got, strict=True))


def numeric(loss: Callable[[], Tensor], tensor: Tensor, direction: Tensor, step: float = 1e-4) -> Tensor:
    """The derivative of a loss in one direction, by a central difference of fourth order."""

    def at(shift: float) -> Tensor:
        with torch.no_grad():
            tensor.add_(direction, alpha=shift)
            value = loss().detach()
            tensor.sub_(direction, alpha=shift)
        return value

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
