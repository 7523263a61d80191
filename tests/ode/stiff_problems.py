"""Stiff problems that other solvers are measured on, as batches."""

import torch
from torch import Tensor

from .systems import DOUBLE

ROBERTSON_RATES = torch.tensor([[0.04, 3e7, 1e4]], dtype=DOUBLE)


def robertson(t: Tensor, x: Tensor, rates: Tensor) -> Tensor:
    a, b, c = x.unbind(1)
    slow, fast, back = rates[:, 0] * a, rates[:, 1] * b * b, rates[:, 2] * b * c
    return torch.stack([back - slow, slow - back - fast, fast], 1)


def hires(t: Tensor, x: Tensor, theta: None) -> Tensor:
    """High irradiance responses of photomorphogenesis (Schaefer, 1975)."""
    a, b, c, d, e, f, g, h = x.unbind(1)
    bound = 280 * f * h
    return torch.stack(
        [
            -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
            1.71 * a - 8.75 * b,
            -10.03 * c + 0.43 * d + 0.035 * e,
            8.32 * b + 1.71 * c - 1.12 * d,
            -1.745 * e + 0.43 * f + 0.43 * g,
            -bound + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
            bound - 1.81 * g,
            -bound + 1.81 * g,
        ],
        1,
    )


def van_der_pol(t: Tensor, x: Tensor, mu: Tensor) -> Tensor:
    y, v = x.unbind(1)
    return torch.stack([v, mu[:, 0] * (1 - y * y) * v - y], 1)


def oregonator(t: Tensor, x: Tensor, theta: None) -> Tensor:
    a, b, c = x.unbind(1)
    return torch.stack([77.27 * (b + a * (1 - 8.375e-6 * a - b)), (c - (1 + a) * b) / 77.27, 0.161 * (a - c)], 1)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=DOUBLE)


# The dynamics, x0, t1, theta, and an absolute tolerance that suits the smallest values.
PROBLEMS = {
    "robertson": (robertson, row(1.0, 0.0, 0.0), 1e5, ROBERTSON_RATES, 1e-12),
    "hires": (hires, row(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057), 321.8122, None, 1e-11),
    "van der pol": (van_der_pol, row(2.0, 0.0), 2000.0, row(1000.0), 1e-9),
    "oregonator": (oregonator, row(1.0, 2.0, 3.0), 30.0, None, 1e-9),
}
