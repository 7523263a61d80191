"""exp(A) x by Taylor polynomials, in the two formulations of linear.py.

The matrix formulation computes exp(A) by scaling and squaring.

The action, for matrices with few non-zeros per row, applies the polynomial to the vector: [0, 1] is divided into n
parts, and each takes the Taylor polynomial of degree K by Horner's rule,

    y_K = x,    y_{k-1} = x + (rho / k) B y_k,    T_K(rho B) x = y_0,        B = A / n,

with rho = 1 for a whole part and 0 <= rho < 1 up to a saved time within one. Backward recomputes the y_k and runs the
transposed recursion: with u the gradient of y_0,

    g_0 = u,    z_k = (rho / k) g_{k-1},    g_k = B^T z_k,
    gradient of x = sum_k g_k,    of B = sum_k z_k y_k^T on the pattern,    of rho = u . B y_0

(the last up to a term as small as the error of the polynomial). So only one state per part is kept.

Vectors of the action are stored as (m, T, batch): selecting rows of the pattern then copies contiguous memory. With the
batch first it was ten times slower on a CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ode.gradients.first_order import forbid_double_backward

_DEGREE = 16
_MATRIX_REACH = {torch.float32: 1.96, torch.float64: 0.778}  # the largest alpha whose sufficient degree is 16
ACTION_REACH = {torch.float32: 6.0, torch.float64: 2.0}  # cancellation costs up to e^(2 reach) roundings
NO_SECOND_DERIVATIVE = 'the action of a linear flow has no second derivatives: use formulation="matrix"'
_TIMES_AT_ONCE = 16  # saved times that are computed together: backward holds K vectors for each


def _growth(norms: Sequence[Tensor]) -> Tensor:
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


def growth_of_powers(powers: Sequence[Tensor]) -> Tensor:
    """alpha (batch,), by the largest row sum as the norm."""
    return _growth([power.detach().abs().sum(2).amax(1) for power in powers])


def square_and_multiply(
    powers: Sequence[Tensor], x: Tensor, sigma: Tensor | None, alpha: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """exp(A) x (batch, m), and exp(sigma A) x (batch, T, m) for sigma (batch, T)."""
    squarings = _squarings(alpha, dtype)
    chain = [_taylor(powers, 0.5**squarings)]
    for _ in range(squarings - 1):
        chain.append(chain[-1] @ chain[-1])
    end = x[:, None] @ chain[-1].mT
    if squarings:  # instead of a last squaring: applying the matrix twice to a vector is cheaper
        end = end @ chain[-1].mT
    return end[:, 0], None if sigma is None else _saved(powers[0], chain, 2**squarings, x, sigma)


def exponential(powers: Sequence[Tensor], alpha: float, dtype: torch.dtype) -> Tensor:
    """exp(A) (batch, m, m)."""
    squarings = _squarings(alpha, dtype)
    result = _taylor(powers, 0.5**squarings)
    for _ in range(squarings):
        result = result @ result
    return result


def _squarings(alpha: float, dtype: torch.dtype) -> int:
    return max(math.ceil(math.log2(max(alpha, 1e-300) / _MATRIX_REACH[dtype])), 0)


def _taylor(powers: Sequence[Tensor], scale: float) -> Tensor:
    """T_16(B) for B = scale A, as I + c_0 + B^4 (c_1 + B^4 (c_2 + B^4 c_3)) with c_q = sum_{i = 1..4} B^i / (4 q + i)!.

    The scale enters through the coefficients: it is known only after the powers are computed.
    """
    a, fourth = powers[0], powers[3]
    count = torch.arange(1, 17, dtype=a.dtype, device=a.device)
    weights = count.cumprod(0).reciprocal().reshape(4, 4) * scale ** count[:4]
    # One small product computes all c_q in one pass over the powers.
    c = (weights @ torch.stack(list(powers)).flatten(1)).unflatten(1, a.shape).unbind()
    total = c[3]
    for lower in (c[2], c[1], c[0]):
        total = torch.baddbmm(lower, total, fourth, alpha=scale**4)
    return total + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def _saved(a: Tensor, chain: Sequence[Tensor], parts: int, x: Tensor, sigma: Tensor) -> Tensor:
    """Whole parts by the binary digits of their number, then the rest of a part by the series on the vectors."""
    whole = (sigma.detach() * parts).floor().clamp(0, parts - 1)
    rest = ((sigma * parts - whole) / parts)[..., None]
    number = whole.long()
    start = x[:, None].expand(-1, sigma.shape[1], -1)
    for digit, power in enumerate(chain):
        if parts > 1:
            start = torch.where((number >> digit & 1).bool()[..., None], start @ power.mT, start)
    y = start
    for k in range(_DEGREE, 0, -1):
        y = torch.addcmul(start, rest / k, y @ a.mT)
    return y


def growth_of_rows(values: Tensor, columns: Tensor) -> Tensor:
    """alpha (batch,), from the row sums of |A|^p, which bound those of |A^p|."""
    by_column, absolute = columns.t().reshape(-1), _to_batch_last(values).abs()
    sums = torch.ones_like(absolute[0])
    norms = []
    for _ in range(4):
        sums = _multiply(absolute, by_column, sums)
        norms.append(sums[:, 0].amax(0))
    return _growth(norms)


def plan_action(alpha: float, dtype: torch.dtype, saved: int = 0) -> tuple[int, int]:
    """The number of parts and the degree with the fewest products: one per degree, part and saved time."""
    least = max(math.ceil(alpha / ACTION_REACH[dtype]), 1)
    choices = [(parts, sufficient_degree(alpha / parts, dtype)) for parts in (least << i for i in range(6))]
    return min(choices, key=lambda choice: (choice[0] + saved) * choice[1])


def act(
    values: Tensor, columns: Tensor, x: Tensor, sigma: Tensor | None, parts: int, degree: int
) -> tuple[Tensor, Tensor | None]:
    """exp(A) x (batch, m), and exp(sigma A) x (batch, T, m) for sigma (batch, T), where A has sparse rows `values`."""
    rows, by_column = _to_batch_last(values / parts), columns.t().reshape(-1)
    states = [x.t()[:, None].contiguous()]
    for _ in range(parts):
        states.append(_ActionPart.apply(states[-1], rows, None, by_column, degree))
    end = states[-1][:, 0].t()
    if sigma is None:
        return end, None

    whole = (sigma.detach() * parts).floor().clamp(0, parts - 1)
    rest = (sigma * parts - whole).t()
    index = whole.t().long()[:, None].expand(-1, len(states[0]), -1)
    starts = torch.stack(states[:-1])[:, :, 0].gather(0, index).transpose(0, 1)
    reached = [
        _ActionPart.apply(start.contiguous(), rows, some.contiguous(), by_column, degree)
        for start, some in zip(starts.split(_TIMES_AT_ONCE, 1), rest.split(_TIMES_AT_ONCE, 0), strict=True)
    ]
    return end, torch.cat(reached, 1).permute(2, 1, 0)


class _ActionPart(torch.autograd.Function):
    """T_K(rho B) x for x (m, T, batch), B of rows (k, m, 1, batch) and rho (T, batch) or None for 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, rho: Tensor | None, columns: Tensor, degree: int) -> Tensor:
        y = deque(_horner(x, rows, rho, columns, degree), maxlen=1).pop()
        ctx.save_for_backward(x, rows, rho, columns, y)
        ctx.degree = degree
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, rows, rho, columns, y0), u, degree = ctx.saved_tensors, grads[0], ctx.degree
        with torch.no_grad():
            ys = list(_horner(x, rows, rho, columns, degree))
            rows_grad = torch.zeros_like(rows).repeat(1, 1, x.shape[1], 1) if ctx.needs_input_grad[1] else None
            x_grad, g = u.clone(), u
            for k in range(1, degree + 1):
                z = g / k if rho is None else g * (rho / k)
                if rows_grad is not None:
                    rows_grad.addcmul_(z, _picked(ys[degree - k], columns, len(rows)))
                g = torch.zeros_like(g).index_add_(0, columns, (rows * z).flatten(0, 1))
                x_grad += g
            rho_grad = (u * _multiply(rows, columns, y0)).sum(0) if ctx.needs_input_grad[2] else None
            got = x_grad, None if rows_grad is None else rows_grad.sum(2, keepdim=True), rho_grad
        return *forbid_double_backward(NO_SECOND_DERIVATIVE, (x, rows, rho, u), got), None, None


def _horner(x: Tensor, rows: Tensor, rho: Tensor | None, columns: Tensor, degree: int) -> Iterator[Tensor]:
    """y_K, ..., y_0."""
    y = x
    yield y
    for k in range(degree, 0, -1):
        if rho is None:
            y = _multiply(rows, columns, y, onto=x, weight=1 / k)
        else:
            y = torch.addcmul(x, rho, _multiply(rows, columns, y), value=1 / k)
        yield y


def _multiply(rows: Tensor, columns: Tensor, y: Tensor, onto: Tensor | None = None, weight: float = 1.0) -> Tensor:
    """onto + weight * B y."""
    # A loop, since k is small: one product of (k, m, T, batch) and its sum were slower.
    first, *others = zip(rows, _picked(y, columns, len(rows)), strict=True)
    total = first[0] * first[1] if onto is None else torch.addcmul(onto, *first, value=weight)
    for row, picked in others:
        total.addcmul_(row, picked, value=weight)
    return total


def _picked(y: Tensor, columns: Tensor, k: int) -> Tensor:
    """The element that each non-zero multiplies, (k, m, T, batch)."""
    return y.index_select(0, columns).unflatten(0, (k, -1))


def _to_batch_last(values: Tensor) -> Tensor:
    """Rows (batch, m, k) as (k, m, 1, batch)."""
    return values.permute(2, 1, 0)[:, :, None].contiguous()
