"""A field, inputs and methods that the tests of the torchdiffeq interface share."""

import torch
from torch import nn

DOUBLE = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4")
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")
IMPLICIT_ORDERS = {
    **{"implicit_euler": 1, "implicit_midpoint": 2, "trapezoid": 2, "sdirk2": 2, "trbdf2": 2},
    **{"radauIIA3": 3, "gl4": 4, "radauIIA5": 5, "gl6": 6},
}


class Field(nn.Module):
    """A small field that depends on time, on the state and on parameters."""

    def __init__(self, width: int = 2):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(0.7 * torch.randn(width, width, dtype=DOUBLE, generator=generator))
        self.b = nn.Parameter(torch.randn(width, dtype=DOUBLE, generator=generator))

    def forward(self, t, y):
        return torch.tanh(y @ self.w + self.b * torch.cos(t)) - 0.3 * y


class Counted(Field):
    """The same field, which counts its evaluations."""

    count = 0

    def forward(self, t, y):
        self.count += 1
        return super().forward(t, y)


def start(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE, requires_grad=True)


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def gradients(solution, *inputs) -> torch.Tensor:
    """Gradients of a loss that uses every saved value, unevenly."""
    values = flat(solution if isinstance(solution, tuple) else (solution,))
    loss = (values * torch.linspace(0.5, 1.5, len(values), dtype=DOUBLE)).sum() + values.square().sum()
    return flat(torch.autograd.grad(loss, inputs, retain_graph=True))
