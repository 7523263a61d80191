"""Functions of time that a control may be made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# A basis takes s (batch,), time over span, and the number of terms; it gives values and slopes in s, (batch, terms).
# The first function is the constant 1.
Basis = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def fourier(s: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """1, cos(pi s), sin(pi s), cos(2 pi s), ...: of twice the span's period, so that both ends are free."""
    values, slopes = [torch.ones_like(s)], [torch.zeros_like(s)]
    for term in range(1, terms):
        w = math.pi * ((term + 1) // 2)
        cos, sin = torch.cos(w * s), torch.sin(w * s)
        values.append(cos if term % 2 else sin)
        slopes.append(-w * sin if term % 2 else w * cos)
    return torch.stack(values, 1), torch.stack(slopes, 1)


def polynomial(s: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Legendre's polynomials on [0, 1]: 1, 2 s - 1, ..., each between -1 and 1."""
    u = 2 * s - 1
    values, slopes = [torch.ones_like(s), u], [torch.zeros_like(s), torch.full_like(s, 2.0)]
    for n in range(1, terms - 1):
        values.append(((2 * n + 1) * u * values[n] - n * values[n - 1]) / (n + 1))
        # P'_{n+1} = P'_{n-1} + (2 n + 1) P_n, and du/ds = 2.
        slopes.append(slopes[n - 1] + 2 * (2 * n + 1) * values[n])
    return torch.stack(values[:terms], 1), torch.stack(slopes[:terms], 1)


BASES: dict[str, Basis] = {"fourier": fourier, "polynomial": polynomial}
