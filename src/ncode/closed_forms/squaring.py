"""exp(A) x by exp(A): the "matrix" formulation of `exponential.py`, Taylor's polynomial with scaling and squaring."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_DEGREE = 16
_REACH = {torch.float32: 1.96, torch.float64: 0.778}  # the largest alpha whose sufficient degree is 16


def growth(norms: Sequence[Tensor]) -> Tensor:
    """alpha (batch,), from the norms of A, A^2, A^3 and A^4."""
    first, second, third, fourth = (norm ** (1 / p) for p, norm in enumerate(norms, start=1))
    return torch.minimum(first, torch.minimum(torch.maximum(second, third), torch.maximum(third, fourth)))


def sufficient_degree(alpha: float, dtype: torch.dtype) -> int:
    """The degree K >= 5 that makes alpha^K e^alpha / (K + 1)! (a relative error) small enough for `dtype`."""
    tolerance = 2.0**-53 if dtype == torch.float64 else 1e-9
    degree = 5  # below, alpha does not bound the error
    while alpha**degree * math.exp(alpha) > tolerance * math.factorial(degree + 1):
        degree += 1
    return degree


def powers_of(a: Tensor) -> tuple[Tensor, ...]:
    """A, A^2, A^3 and A^4."""
    square = a @ a
    return a, square, square @ a, square @ square


def growth_of(powers: Sequence[Tensor]) -> Tensor:
    """alpha (batch,), with the largest row sum as the norm."""
    return growth([power.detach().abs().sum(2).amax(1) for power in powers])


def square(
    powers: Sequence[Tensor], x: Tensor, sigma: Tensor | None, alpha: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """exp(A) x (batch, m), and exp(sigma A) x (batch, T, m) for sigma (batch, T)."""
    squarings = max(math.ceil(math.log2(max(alpha, 1e-300) / _REACH[dtype])), 0)
    chain = [_taylor(powers, 0.5**squarings)]
    for _ in range(squarings - 1):
        chain.append(chain[-1] @ chain[-1])
    end = _times(chain[-1], x[:, None])
    if squarings:  # the last squaring is never made: twice on a vector is cheaper
        end = _times(chain[-1], end)
    return end[:, 0], None if sigma is None else _saved(powers[0], chain, 2**squarings, x, sigma)


def _taylor(powers: Sequence[Tensor], scale: float) -> Tensor:
    """T_16(B) for B = scale A, as I + c_0 + B^4 (c_1 + B^4 (c_2 + B^4 c_3)) with c_q = sum_{i = 1..4} B^i / (4 q + i)!.

    The scale enters through coefficients, since it is known only after the powers are.
    """
    a, fourth = powers[0], powers[3]
    count = torch.arange(1, 17, dtype=a.dtype, device=a.device)
    weights = count.cumprod(0).reciprocal().reshape(4, 4) * scale ** count[:4]
    # One small product makes all c_q in one pass over the powers.
    c = (weights @ torch.stack(list(powers)).flatten(1)).unflatten(1, a.shape).unbind()
    total = c[3]
    for lower in (c[2], c[1], c[0]):
        total = torch.baddbmm(lower, total, fourth, alpha=scale**4)
    return total + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def _saved(a: Tensor, chain: Sequence[Tensor], parts: int, x: Tensor, sigma: Tensor) -> Tensor:
    """Whole parts by the binary digits of their number, then the rest of a part by Taylor's series on the vectors."""
    whole = (sigma.detach() * parts).floor().clamp(0, parts - 1)
    rest = ((sigma * parts - whole) / parts)[..., None]
    number = whole.long()
    start = x[:, None].expand(-1, sigma.shape[1], -1)
    for digit, power in enumerate(chain):
        if parts > 1:
            start = torch.where((number >> digit & 1).bool()[..., None], _times(power, start), start)
    y = start
    for k in range(_DEGREE, 0, -1):
        y = torch.addcmul(start, rest / k, _times(a, y))
    return y


def _times(a: Tensor, y: Tensor) -> Tensor:
    """A times each of the vectors y (batch, T, m)."""
    return y @ a.mT
