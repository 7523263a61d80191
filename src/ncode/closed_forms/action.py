"""exp(A) x without exp(A), for matrices A with a few non-zeros a row: the "action" formulation of `exponential.py`.

[0, 1] is cut into n parts, and each takes Taylor's polynomial of degree K by Horner's rule,

    y_K = x,    y_{k-1} = x + (rho / k) B y_k,    T_K(rho B) x = y_0,        B = A / n,

with rho = 1 for a whole part and 0 <= rho < 1 for the way to a saved time within one. Backward computes the y_k again
and runs the transposed recursion: with u the gradient of y_0,

    g_0 = u,    z_k = (rho / k) g_{k-1},    g_k = B^T z_k,
    gradient of x = sum_k g_k,    of B = sum_k z_k y_k^T on the pattern,    of rho = u . B y_0

(the last up to a term as small as the error of the polynomial). So only one state a part is kept.

Vectors lie as (m, T, batch): then a row of the pattern names contiguous memory, and picking rows is a copy. Batch first
was measured to be ten times slower on CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ode.once import once
from .squaring import growth, sufficient_degree

_REACH = {torch.float32: 6.0, torch.float64: 2.0}  # cancellation costs up to e^(2 reach) roundings
_ONCE = 'a second derivative of a linear flow was asked for, and only formulation="matrix" has one'
_AT_ONCE = 16  # saved times that are taken together: backward holds K vectors for each


def growth_of_rows(values: Tensor, columns: Tensor) -> Tensor:
    """alpha (batch,), from the row sums of |A|^p, which bound those of |A^p|."""
    by_column, absolute = columns.t().reshape(-1), _lay(values).abs()
    sums = torch.ones_like(absolute[0])
    norms = []
    for _ in range(4):
        sums = _multiply(absolute, by_column, sums)
        norms.append(sums[:, 0].amax(0))
    return growth(norms)


def plan(alpha: float, dtype: torch.dtype, saved: int = 0) -> tuple[int, int]:
    """How many parts, and of which degree: the fewest products, one for each degree, part and saved time."""
    least = max(math.ceil(alpha / _REACH[dtype]), 1)
    choices = [(parts, sufficient_degree(alpha / parts, dtype)) for parts in (least << i for i in range(6))]
    return min(choices, key=lambda choice: (choice[0] + saved) * choice[1])


def act(
    values: Tensor, columns: Tensor, x: Tensor, sigma: Tensor | None, parts: int, degree: int
) -> tuple[Tensor, Tensor | None]:
    """exp(A) x (batch, m), and exp(sigma A) x (batch, T, m) for sigma (batch, T), where A has rows `values`."""
    laid, by_column = _lay(values / parts), columns.t().reshape(-1)
    states = [x.t()[:, None].contiguous()]
    for _ in range(parts):
        states.append(_Part.apply(states[-1], laid, None, by_column, degree))
    end = states[-1][:, 0].t()
    if sigma is None:
        return end, None

    whole = (sigma.detach() * parts).floor().clamp(0, parts - 1)
    rest = (sigma * parts - whole).t()
    index = whole.t().long()[:, None].expand(-1, len(states[0]), -1)
    starts = torch.stack(states[:-1])[:, :, 0].gather(0, index).transpose(0, 1)
    reached = [
        _Part.apply(start.contiguous(), laid, some.contiguous(), by_column, degree)
        for start, some in zip(starts.split(_AT_ONCE, 1), rest.split(_AT_ONCE, 0), strict=True)
    ]
    return end, torch.cat(reached, 1).permute(2, 1, 0)


class _Part(torch.autograd.Function):
    """T_K(rho B) x for x (m, T, batch), B of rows (k, m, 1, batch) and rho (T, batch) or None for 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, rho: Tensor | None, columns: Tensor, degree: int) -> Tensor:
        y = deque(_horner(x, rows, rho, columns, degree), maxlen=1).pop()
        ctx.save_for_backward(x, rows, rho, columns, y)
        ctx.degree = degree
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.no_grad():
            got = _pull(grads[0], ctx.saved_tensors, ctx.degree, ctx.needs_input_grad)
        return *once(_ONCE, (*ctx.saved_tensors[:3], *grads), got), None, None


def _pull(
    u: Tensor, saved: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor], degree: int, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, rows and rho, from that of y_0."""
    x, rows, rho, columns, y0 = saved
    ys = list(_horner(x, rows, rho, columns, degree))
    rows_grad = torch.zeros_like(rows).repeat(1, 1, x.shape[1], 1) if wanted[1] else None
    x_grad, g = u.clone(), u
    for k in range(1, degree + 1):
        z = g / k if rho is None else g * (rho / k)
        if rows_grad is not None:
            rows_grad.addcmul_(z, _picked(ys[degree - k], columns, len(rows)))
        g = torch.zeros_like(g).index_add_(0, columns, (rows * z).flatten(0, 1))
        x_grad += g
    rho_grad = (u * _multiply(rows, columns, y0)).sum(0) if wanted[2] else None
    return x_grad, None if rows_grad is None else rows_grad.sum(2, keepdim=True), rho_grad


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
    # One term after another, since k is small: a product of (k, m, T, batch) and its sum were slower.
    first, *others = zip(rows, _picked(y, columns, len(rows)), strict=True)
    total = first[0] * first[1] if onto is None else torch.addcmul(onto, *first, value=weight)
    for row, picked in others:
        total.addcmul_(row, picked, value=weight)
    return total


def _picked(y: Tensor, columns: Tensor, k: int) -> Tensor:
    """What each non-zero multiplies, (k, m, T, batch)."""
    return y.index_select(0, columns).unflatten(0, (k, -1))


def _lay(values: Tensor) -> Tensor:
    """Rows (batch, m, k) as (k, m, 1, batch)."""
    return values.permute(2, 1, 0)[:, :, None].contiguous()
