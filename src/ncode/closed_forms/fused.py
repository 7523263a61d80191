"""The action of `action.py` as two launches on a GPU, one forward and one backward, for flows with sparse rows.

In torch an action is dozens of small operations, each of which takes longer to launch than to compute, and choosing
their number means waiting for the GPU. Here a sample is one program, which chooses its own number of parts and degree
from its own matrix, as `exponential.py` describes: nobody waits, and a sample does not depend on its companions at all.
The kernels are in `_fused_kernels.py` and need Triton.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..ode.once import once
from .action import _ONCE, _REACH
from .squaring import sufficient_degree

MOST_ROWS, MOST_NONZEROS = 1024, 32
DEGREES = 64  # degrees from 5 on that a program may choose from
KEPT = 16  # states that forward keeps for backward; longer flows are computed again between them


def available(theta: Tensor, columns: Tensor) -> bool:
    """Whether the kernels take these rows (batch, m, k)."""
    if theta.device.type != "cuda" or theta.dtype not in _REACH or theta.numel() == 0:
        return False
    m, k = columns.shape
    return m <= MOST_ROWS and k <= MOST_NONZEROS and _has_triton(theta.device.index or 0)


def flow(theta: Tensor, columns: Tensor, x0: Tensor, span: float) -> Tensor:
    """exp(theta span) x0 for rows theta (batch, m, k) and x0 (batch, m).

    A sample whose matrix is not finite, or so large that its flow would take thousands of parts, is nan.
    """
    a = theta.double() * span
    return _Flow.apply(a, x0.double(), columns, x0.dtype).to(x0.dtype)


class Pattern(NamedTuple):
    """A pattern column by column: where the non-zeros of each stand among those of all rows, one after another."""

    places: Tensor  # (m k,), int64, into the non-zeros (m, k), sorted by column
    starts: Tensor  # (m + 1,), int64, where those of a column begin


def pattern_of(columns: Tensor) -> Pattern:
    """The pattern (m, k) column by column, kept as long as the tensor lives and is not changed.

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
    """For each degree from 5 on, the largest alpha that it is sufficient for; the last one is inf.

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


@functools.cache
def _has_triton(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


class _Flow(torch.autograd.Function):
    """exp(A) x for rows A (batch, m, k) and x (batch, m), float64, as precise as `dtype` needs."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
        from ._fused_kernels import forward

        a, x, columns = a.contiguous(), x.contiguous(), columns.contiguous()
        # Both are small numbers of programs' own choice: a reach of one part, and the degrees that suffice.
        y, states, plan = forward(a, columns, x, _table(dtype, x.device), _REACH[dtype], KEPT)
        ctx.save_for_backward(a, columns, states, plan)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        from ._fused_kernels import backward

        a, columns, states, plan = ctx.saved_tensors
        with torch.no_grad():
            got = backward(a, columns, pattern_of(columns), states, plan, grads[0].contiguous(), 5 + DEGREES, KEPT)
        return *once(_ONCE, (a, *grads), got), None, None
