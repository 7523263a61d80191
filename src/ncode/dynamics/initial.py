"""Where a weight usually starts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Shapes


def usual(shapes: Shapes) -> dict[str, Tensor]:
    """Fresh random tensors, as `torch.nn.Linear` and `torch.nn.Conv2d` would draw them.

    Uniform within 1 / sqrt(fan-in), the fan-in being the number of elements behind the first dimension. A vector that
    follows a tensor with as many rows is its bias and takes its bound. A shape that is left open has no such start and
    is left out.

    >>> start = usual({"weight": (100, 4), "bias": (100,), "image": (3, None, None)})
    >>> sorted(start), bool(start["bias"].abs().max() <= 0.5)
    (['bias', 'weight'], True)
    """
    start: dict[str, Tensor] = {}
    rows, bound = None, 1.0
    for name, shape in shapes.items():
        sizes = [size for size in shape if size is not None]
        if len(sizes) < len(shape):
            continue
        if len(sizes) != 1 or sizes[0] != rows:
            rows = sizes[0] if len(sizes) > 1 else None
            bound = 1.0 / math.sqrt(max(math.prod(sizes[1:] or sizes), 1))
        start[name] = torch.empty(sizes).uniform_(-bound, bound)
    return start
