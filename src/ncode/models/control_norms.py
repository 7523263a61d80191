"""Normalisations of a control: "crucial for good performance", says the paper, and leaves open which.

Each takes a control (batch, m, k) and gives one of the same shape. Without any, exp(10 theta) overflows before
training has begun.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..checks import check_choice

Norm = Literal["sphere", "l2", "row", "batch", "tanh", "none"]
NORMS: tuple[Norm, ...] = get_args(Norm)


class ControlNorm(nn.Module):
    """A control of bounded size, times a gain.

    Args:
        kind: "l2": the whole control of a sample has norm 1. "sphere": so has what is left of it without the mean over
            the batch; else nearly all of a control may be a direction that all samples share, and its norm binds
            nothing. "row": each row has norm 1, divided by sqrt(m), so that the whole has norm 1 too. "batch": each
            component has mean 0 and deviation 1 over the batch, divided by sqrt(m k). "tanh": each component is between
            -1 and 1, divided by sqrt(m k). "none": as it is.
        m, k: Rows, and non-zeros a row.
        gain: The norm that comes out (for "none": a plain factor).
        learn: Whether the gain is learned.

    >>> norm = ControlNorm("l2", 128, 2, gain=3.0)
    >>> norm(torch.randn(5, 128, 2)).flatten(1).norm(dim=1)
    tensor([3.0000, 3.0000, 3.0000, 3.0000, 3.0000])
    """

    def __init__(self, kind: str, m: int, k: int, gain: float = 1.0, learn: bool = False):
        super().__init__()
        self.kind = check_choice("normalisation", kind, NORMS)
        self.m, self.k = m, k
        self.gain = nn.Parameter(torch.tensor(float(gain)), requires_grad=learn)
        self.batch = nn.BatchNorm1d(m * k, affine=False) if kind == "batch" else nn.Identity()
        self.centre = Centre(m * k) if kind == "sphere" else nn.Identity()

    def forward(self, control: Tensor) -> Tensor:
        """The same, of the size asked for."""
        flat, size = control.flatten(1), float(self.m * self.k)
        match self.kind:
            case "l2":
                flat = nn.functional.normalize(flat, dim=1)
            case "sphere":
                flat = nn.functional.normalize(self.centre(flat), dim=1)
            case "row":
                flat = nn.functional.normalize(control, dim=2).flatten(1) * self.m**-0.5
            case "batch":
                flat = self.batch(flat) * size**-0.5
            case "tanh":
                flat = flat.tanh() * size**-0.5
        return self.gain * flat.reshape(-1, self.m, self.k)

    def extra_repr(self) -> str:
        """Its arguments."""
        return f"{self.kind!r}, m={self.m}, k={self.k}, gain={float(self.gain):g}"


class Centre(nn.Module):
    """What is left without the mean: that of the batch in training, and a running one later or for a single sample.

    >>> Centre(2)(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    mean: Tensor

    def __init__(self, size: int, momentum: float = 0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """Values (batch, size) without their mean."""
        if not self.training or len(x) < 2:
            return x - self.mean
        mean = x.mean(0)
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean), self.momentum)
        return x - mean
