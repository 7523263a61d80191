"""The action of taylor.py as two Triton kernels, one forward and one backward, for flows with sparse rows on a GPU.

Each sample is one program, which chooses its own number of parts and degree from its own matrix: there is no
synchronisation with the GPU, and no sample depends on another.

In a program each lane holds one element of the state. A row of the matrix multiplies elements of other lanes: a vector
is written to memory, all lanes pass a barrier, and each reads the elements of its row. Two slots are written
alternately: a lane that writes to a slot has passed the barrier after which all others had read it.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..ode.gradients.first_order import forbid_double_backward
from .taylor import ACTION_REACH, NO_SECOND_DERIVATIVE, sufficient_degree

# Without Triton the kernels are never launched, but the module can be imported.
_found = find_spec("triton") is not None
tl: Any = import_module("triton.language") if _found else None
jit: Any = import_module("triton").jit if _found else (lambda kernel: kernel)

MAX_PARTS = 4096  # more parts indicate a mistake
DEGREES = 64  # number of degrees, from 5 on, that a program may choose from
KEPT = 16  # states that forward keeps for backward; those between them are recomputed


def flow(theta: Tensor, columns: Tensor, x0: Tensor, span: float) -> Tensor:
    """exp(theta span) x0 for rows theta (batch, m, k) and x0 (batch, m).

    A sample whose matrix is not finite, or so large that its flow would need thousands of parts, is nan.
    """
    a = theta.double() * span
    return _Flow.apply(a, x0.double(), columns, x0.dtype).to(x0.dtype)


class Pattern(NamedTuple):
    """A sparsity pattern sorted by column."""

    places: Tensor  # (m k,), int64: indices into the flattened non-zeros (m, k), sorted by column
    starts: Tensor  # (m + 1,), int64: where each column begins in `places`


def pattern_of(columns: Tensor) -> Pattern:
    """The pattern (m, k) sorted by column, cached as long as the tensor exists and is not changed.

    >>> pattern_of(torch.tensor([[0, 1], [0, 2], [1, 2]]))
    Pattern(places=tensor([0, 2, 1, 4, 3, 5]), starts=tensor([0, 2, 4, 6]))
    """
    version, kept = _patterns.get(columns, (None, None))
    if kept is None or version != columns._version:
        ordered = columns.flatten().sort(stable=True)
        edges = torch.arange(len(columns) + 1, device=columns.device)
        kept = Pattern(ordered.indices, torch.searchsorted(ordered.values, edges))
        _patterns[columns] = (columns._version, kept)
    return kept


_patterns: Any = WeakTensorKeyDictionary()


def thresholds(dtype: torch.dtype) -> list[float]:
    """For each degree from 5 on, the largest alpha for which it is sufficient; the last one is inf.

    >>> found = thresholds(torch.float32)
    >>> sufficient_degree(found[3], torch.float32), sufficient_degree(1.001 * found[3], torch.float32)
    (8, 9)
    """
    found = []
    for degree in range(5, 5 + DEGREES - 1):
        low, high = 0.0, 64.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if sufficient_degree(middle, dtype) <= degree else (low, middle)
        found.append(low)
    return [*found, float("inf")]


@functools.cache
def _table(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(thresholds(dtype), dtype=torch.float32, device=device)


class _Flow(torch.autograd.Function):
    """exp(A) x for rows A (batch, m, k) and x (batch, m), float64, as precise as `dtype` needs."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
        a, x, columns = a.contiguous(), x.contiguous(), columns.contiguous()
        (batch, m, k), block, table = a.shape, _block(a.shape[1]), _table(dtype, x.device)
        plan = torch.empty(batch, 2, dtype=torch.int32, device=x.device)  # each sample's number of parts and degree
        y, states, slots = torch.empty_like(x), x.new_empty(batch, KEPT, m), x.new_empty(batch, 2, block)
        arguments = (a, columns, x, y, states, slots, plan, table, ACTION_REACH[dtype], MAX_PARTS, len(table))
        _launch(_forward, batch, block, *arguments, M=m, K=k, BLOCK=block, KEPT=KEPT)
        ctx.save_for_backward(a, columns, states, plan)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, columns, states, plan = ctx.saved_tensors
        grad, (batch, m, k), block, degrees = grads[0].contiguous(), a.shape, _block(a.shape[1]), 5 + DEGREES
        with torch.no_grad():
            got = torch.zeros_like(a), torch.empty_like(grad)
            space = (grad.new_empty(batch, count, block) for count in (degrees, degrees, 2))
            arguments = (a, columns, *pattern_of(columns), states, plan, grad, *got, *space)
            sizes = {"M": m, "K": k, "BLOCK": block, "KEPT": states.shape[1], "DEGREES": degrees}
            _launch(_backward, batch, block, *arguments, **sizes)
        return *forbid_double_backward(NO_SECOND_DERIVATIVE, (a, *grads), got), None, None


def _block(m: int) -> int:
    """The number of lanes of a program: a power of two."""
    return max(32, 1 << (m - 1).bit_length())


def _launch(kernel: Any, batch: int, block: int, *arguments: Any, **sizes: int) -> None:
    with torch.cuda.device_of(arguments[0]):
        # One stage: loads must not be moved ahead of the stores on which they depend.
        kernel[(batch,)](*arguments, **sizes, num_warps=min(8, block // 32), num_stages=1)


@jit
def _product(a, columns, slot, y, lane, live, K: tl.constexpr, ABSOLUTE: tl.constexpr):
    """A y, or |A| y."""
    tl.store(slot + lane, y, mask=live)
    tl.debug_barrier()
    total = y * 0.0
    for j in tl.static_range(K):
        weight = tl.load(a + lane * K + j, mask=live, other=0.0)
        if ABSOLUTE:
            weight = tl.abs(weight)
        place = tl.load(columns + lane * K + j, mask=live, other=0)
        total += weight * tl.load(slot + place, mask=live, other=0.0)
    return total


@jit
def _part(a, columns, slots, turn, x, scale, degree, lane, live, K: tl.constexpr, BLOCK: tl.constexpr):
    """x after one part: the Taylor polynomial by Horner's rule."""
    y = x
    for i in range(0, degree):
        slot = slots + ((turn + i) % 2) * BLOCK
        y = x + _product(a, columns, slot, y, lane, live, K, False) * (scale / tl.cast(degree - i, tl.float64))
    return y


@jit
def _forward(
    a, columns, x, y, states, slots, plan, table, reach, most,
    TABLE: tl.constexpr, M: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    sample = tl.cast(tl.program_id(0), tl.int64)
    lane = tl.arange(0, BLOCK)
    live = lane < M
    a += sample * (M * K)
    slots += sample * (2 * BLOCK)
    states += sample * (KEPT * M)

    # alpha, from the row sums of the powers of |A|.
    one = tl.cast(tl.where(live, 1.0, 0.0), tl.float64)
    first = _product(a, columns, slots, one, lane, live, K, True)
    second = _product(a, columns, slots + BLOCK, first, lane, live, K, True)
    third = _product(a, columns, slots, second, lane, live, K, True)
    fourth = _product(a, columns, slots + BLOCK, third, lane, live, K, True)
    n1 = tl.cast(tl.max(first, axis=0), tl.float32)
    n2 = tl.exp(tl.log(tl.cast(tl.max(second, axis=0), tl.float32)) / 2.0)
    n3 = tl.exp(tl.log(tl.cast(tl.max(third, axis=0), tl.float32)) / 3.0)
    n4 = tl.exp(tl.log(tl.cast(tl.max(fourth, axis=0), tl.float32)) / 4.0)
    alpha = tl.minimum(n1, tl.minimum(tl.maximum(n2, n3), tl.maximum(n3, n4))) * 1.00001

    # The sum is nan if any row is; a maximum need not be.
    fine = (tl.sum(first, axis=0) < 1e30) & (alpha < reach * most)
    alpha = tl.where(fine, alpha, 0.0)
    parts = tl.cast(alpha / reach, tl.int32) + 1
    scale = 1.0 / tl.cast(parts, tl.float64)
    limits = tl.load(table + tl.arange(0, TABLE))
    degree = 5 + tl.sum(tl.cast(alpha / tl.cast(parts, tl.float32) > limits, tl.int32), axis=0)
    tl.store(plan + 2 * sample, parts)
    tl.store(plan + 2 * sample + 1, degree)

    state = tl.load(x + sample * M + lane, mask=live, other=0.0)
    apart = (parts + KEPT - 1) // KEPT
    for part in range(0, parts):
        tl.store(states + (part // apart) * M + lane, state, mask=live & (part % apart == 0))
        state = _part(a, columns, slots, part * degree, state, scale, degree, lane, live, K, BLOCK)
    tl.store(y + sample * M + lane, tl.where(fine, state, float("nan")), mask=live)


@jit
def _backward(
    a, columns, places, starts, states, plan, grad, a_grad, x_grad, ys, zs, slots,
    M: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr, DEGREES: tl.constexpr,
):  # fmt: skip
    sample = tl.cast(tl.program_id(0), tl.int64)
    lane = tl.arange(0, BLOCK)
    live = lane < M
    a += sample * (M * K)
    a_grad += sample * (M * K)
    slots += sample * (2 * BLOCK)
    states += sample * (KEPT * M)
    ys += sample * (DEGREES * BLOCK)
    zs += sample * (DEGREES * BLOCK)
    parts, degree = tl.load(plan + 2 * sample), tl.load(plan + 2 * sample + 1)
    scale = 1.0 / tl.cast(parts, tl.float64)
    apart = (parts + KEPT - 1) // KEPT
    first = tl.load(starts + lane, mask=live, other=0)
    count = tl.load(starts + lane + 1, mask=live, other=0) - first
    longest = tl.max(count, axis=0)

    u = tl.load(grad + sample * M + lane, mask=live, other=0.0)
    turn = 0
    for back in range(0, parts):
        part = parts - 1 - back
        state = tl.load(states + (part // apart) * M + lane, mask=live, other=0.0)
        for _ in range(0, part % apart):
            state = _part(a, columns, slots, turn, state, scale, degree, lane, live, K, BLOCK)
            turn += degree
        # All lanes have read what the previous part has written.
        tl.debug_barrier()
        y = state
        for i in range(0, degree):
            term = degree - i
            slope = _product(a, columns, ys + term * BLOCK, y, lane, live, K, False)
            y = state + slope * (scale / tl.cast(term, tl.float64))
        g = u
        for k in range(1, degree + 1):
            z = g * (scale / tl.cast(k, tl.float64))
            tl.store(zs + k * BLOCK + lane, z, mask=live)
            tl.debug_barrier()
            g = z * 0.0
            for d in range(0, longest):
                some = live & (d < count)
                place = tl.load(places + first + d, mask=some, other=0)
                weight = tl.load(a + place, mask=some, other=0.0)
                g += weight * tl.load(zs + k * BLOCK + place // K, mask=some, other=0.0)
            u += g
        for j in tl.static_range(K):
            column = tl.load(columns + lane * K + j, mask=live, other=0)
            total = u * 0.0
            for k in range(1, degree + 1):
                z = tl.load(zs + k * BLOCK + lane, mask=live, other=0.0)
                total += z * tl.load(ys + k * BLOCK + column, mask=live, other=0.0)
            total += tl.load(a_grad + lane * K + j, mask=live, other=0.0)
            tl.store(a_grad + lane * K + j, total, mask=live)
    tl.store(x_grad + sample * M + lane, u, mask=live)
