"""Reference integrators in double precision, written without the library: slow, plain and differentiable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

State = tuple[Tensor, ...]
Slope = Callable[[Tensor, State], State]

# Dormand and Prince (1980).
C = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
A = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


class Unresolved(Exception):
    """The reference cannot solve this problem."""


class Reference(NamedTuple):
    """What a solve should return."""

    x: Tensor
    theta: Any
    cost: Tensor | None
    xs: Tensor | None


def solve(
    f: Any, g: Any, cost: Any, x0: Tensor, t0: Tensor, t1: Tensor, theta: Any, ts: Tensor | None, tolerance: float
) -> Reference:
    """Solve a batch from t0 to t1 (batch,), by way of the times ts (batch, T), to a tight tolerance."""
    slope, z, nest = _join(f, g, cost, x0, theta)
    saved, now = [], t0
    for at in () if ts is None else ts.unbind(1):
        z, now = _integrate(slope, z, now, at, tolerance), at
        saved.append(z[0])
    z = _integrate(slope, z, now, t1, tolerance)
    xs = None if ts is None else torch.stack(saved, 1) if saved else x0.new_zeros(len(x0), 0, *x0.shape[1:])
    return Reference(z[0], nest(z), z[-1] if cost is not None else None, xs)


def _join(f: Any, g: Any, cost: Any, x0: Tensor, theta: Any) -> tuple[Slope, State, Callable[[State], Any]]:
    """x, the driven control and the cost as one state."""
    leaves, spec = pytree.tree_flatten(theta)
    driven = leaves if g is not None else []

    def nest(z: State) -> Any:
        return pytree.tree_unflatten(list(z[1 : 1 + len(driven)]), spec) if g is not None else theta

    def slope(t: Tensor, z: State) -> State:
        now = nest(z)
        parts = [f(t, z[0], now)]
        parts += pytree.tree_leaves(g(t, z[0], now)) if g is not None else []
        return (*parts, cost(t, z[0], now)) if cost is not None else tuple(parts)

    start = (x0, *driven, x0.new_zeros(len(x0))) if cost is not None else (x0, *driven)
    return slope, start, nest


def _integrate(slope: Slope, z: State, t0: Tensor, t1: Tensor, tolerance: float) -> State:
    """From t0 to t1. Time is s in [0, 1] for all samples, t = t0 + s (t1 - t0), so that all take the same steps."""
    span = t1 - t0
    if z[0].numel() == 0:
        return z

    def rate(s: float, at: State) -> State:
        return tuple(k * _like(span, k) for k in slope(t0 + s * span, at))

    s, h, first = 0.0, 0.01, rate(0.0, z)
    for _ in range(4000):
        h = min(h, 1.0 - s)
        ks = [first]
        for c, row in zip(C[1:], A[1:], strict=True):
            new = _advance(z, ks, row, h)
            ks.append(rate(s + c * h, new))
        error = _error(z, new, ks, h, tolerance)
        if error <= 1.0:
            s, z, first = s + h, new, ks[-1]
            if s >= 1.0 - 1e-14:
                return z
        h *= min(5.0, max(0.2, 0.9 * max(error, 1e-10) ** -0.2)) if math.isfinite(error) else 0.1
        if h < 1e-12:
            break
    raise Unresolved


def _advance(z: State, ks: Sequence[State], weights: Sequence[float], h: Any) -> State:
    return tuple(leaf + h * sum(w * k[i] for w, k in zip(weights, ks, strict=True) if w) for i, leaf in enumerate(z))


def _error(z: State, new: State, ks: Sequence[State], h: float, tolerance: float) -> float:
    worst = 0.0
    with torch.no_grad():
        for i, (before, after) in enumerate(zip(z, new, strict=True)):
            error = h * sum(w * k[i] for w, k in zip(E, ks, strict=True) if w)
            scale = tolerance * (1 + torch.maximum(before.abs(), after.abs()))
            each = float((error / scale).abs().max()) if before.numel() else 0.0
            if math.isnan(each):
                return math.inf
            worst = max(worst, each)
    return worst


def _like(values: Tensor, leaf: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (leaf.dim() - 1))


def fixed(
    tableau: Any,
    dt: float,
    f: Any,
    g: Any,
    cost: Any,
    x0: Tensor,
    t0: Tensor,
    t1: Tensor,
    theta: Any,
    ts: Tensor | None,
) -> Reference:
    """Steps of size dt, the last one to t1, of a method given by its coefficients; ts by its interpolant.

    For gradients of times, all steps grow with the interval.
    """
    slope, z, nest = _join(f, g, cost, x0, theta)
    span = t1 - t0
    length, sign = span.detach().abs(), span.detach().sign()
    stretch = torch.where(length == 0, 1.0, span / torch.where(length == 0, 1.0, span.detach()))
    counts = torch.ceil(length / dt * (1 - 1e-12) - 1e-9).clamp_min(1)
    saved = None if ts is None else z[0][:, None] + torch.zeros_like(ts).reshape(*ts.shape, *[1] * (x0.dim() - 1))
    for n in range(int(counts.max()) if len(counts) else 0):
        begin = sign * n * dt * stretch * (n < counts)
        h = torch.where(n < counts - 1, sign * dt * stretch, torch.where(n < counts, span - begin, 0.0))
        ks = [slope(t0 + begin, z)]
        for c, row in zip(tableau.c[1:], tableau.a[1:], strict=True):
            ks.append(slope(t0 + begin + c * h, _scaled(z, ks, row, h)))
        new = _scaled(z, ks, tableau.b, h)
        if saved is not None and ts is not None and ts.shape[1]:
            ks.append(slope(t0 + begin + h, new))
            for c, row in zip(tableau.extra_c, tableau.extra_a, strict=True):
                ks.append(slope(t0 + begin + c * h, _scaled(z, ks[: len(row)], row, h)))
            since = ts - t0[:, None] - begin[:, None]
            inside = (since * sign[:, None] > 0) | (n == 0)
            mask = (inside & (n < counts)[:, None]).reshape(*inside.shape, *[1] * (x0.dim() - 1))
            moved = [_interpolated(tableau, z[0], ks, h, column) for column in since.unbind(1)]
            saved = torch.where(mask, torch.stack(moved, 1), saved)
        z = new
    return Reference(z[0], nest(z), z[-1] if cost is not None else None, saved)


def _interpolated(tableau: Any, x: Tensor, ks: Sequence[State], h: Tensor, since: Tensor) -> Tensor:
    """x at a time since the beginning of a step; a step of length 0 is a straight line."""
    sigma = since / torch.where(h == 0, 1.0, h)
    weights = [sum(w * sigma ** (q + 1) for q, w in enumerate(row)) for row in tableau.dense]
    curve = x + _like(h, x) * sum(_like(w, x) * k[0] for w, k in zip(weights, ks, strict=False))
    return torch.where(_like(h == 0, x), x + _like(since, x) * ks[0][0], curve)


def _scaled(z: State, ks: Sequence[State], weights: Sequence[float], h: Tensor) -> State:
    return tuple(
        leaf + _like(h, leaf) * sum(w * k[i] for w, k in zip(weights, ks, strict=False)) for i, leaf in enumerate(z)
    )
