"""A convolution block whose control costs no more than vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..block import register
from ..checks import check_count
from ..dynamics import Shapes, Theta, VectorField
from ..dynamics.base import Shape


class WeighedConv(VectorField):
    """dx/dt = V * relu(a (W * relu(norm(x)) + U_b D_b x) + b): two 3x3 convolutions, whose paths the control weighs.

    A sample's own kernels of full size need memory for each sample. Here the map from x to dx/dt is a sum over the
    hidden channels, a bank of pairs of kernels which all samples share, and the control says how much each pair counts
    (the gain a), from where on (the bias b), and adds a 1x1 convolution of low rank that is the sample's own. Gain and
    bias are linear in time. The norm, over the channels of a pixel, keeps the speed bounded however large x becomes.

    Args:
        channels: Channels of x.
        hidden: Hidden channels; those of x, unless told.
        rank: Of the sample's own convolution; 0 for none.

    >>> import torch, ncode
    >>> f = WeighedConv(16, hidden=32, rank=4)
    >>> dict(f.control_shapes)
    {'gain': (2, 32), 'bias': (2, 32), 'down': (4, 16), 'up': (32, 4)}
    >>> ncode.NCODE(f, ncode.Static(), method="midpoint", dt=0.5)(torch.zeros(2, 16, 8, 8)).shape
    torch.Size([2, 16, 8, 8])
    """

    def __init__(self, channels: int, hidden: int | None = None, rank: int = 8):
        super().__init__()
        self.channels = check_count("channels", channels)
        self.hidden = check_count("hidden", channels if hidden is None else hidden)
        self.rank = check_count("rank", rank, low=0)
        self.norm = nn.LayerNorm(self.channels)
        self.first = nn.Conv2d(self.channels, self.hidden, 3, padding=1, bias=False)
        self.last = nn.Conv2d(self.hidden, self.channels, 3, padding=1, bias=False)

    @property
    def control_shapes(self) -> Shapes:
        """Gain and bias at t = 0 and their slopes in time; the factors of the sample's own convolution."""
        shapes: dict[str, Shape] = {"gain": (2, self.hidden), "bias": (2, self.hidden)}
        own: dict[str, Shape] = {"down": (self.rank, self.channels), "up": (self.hidden, self.rank)}
        return {**shapes, **own} if self.rank else shapes

    @property
    def state_shape(self) -> Shape:
        """(channels, any, any)."""
        return (self.channels, None, None)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """Both convolutions, with the paths between them weighed."""
        x = F.relu(_narrow(self.norm(x.permute(0, 2, 3, 1))))  # channels last: the norm is one kernel there
        y = self.first(x.permute(0, 3, 1, 2))
        if self.rank:
            own = torch.bmm(torch.bmm(x.flatten(1, 2), theta["down"].mT), theta["up"].mT)
            y = y + own.unflatten(1, x.shape[1:3]).permute(0, 3, 1, 2)
        gain, bias = (_at(t, theta[name]).to(y.dtype) for name in ("gain", "bias"))
        return self.last(F.relu(torch.addcmul(bias, 1 + gain, y)))

    def config(self) -> dict[str, Any]:
        """channels, hidden, rank."""
        return {"channels": self.channels, "hidden": self.hidden, "rank": self.rank}


def _narrow(x: Tensor) -> Tensor:
    """Under autocast, in the precision that convolutions take: a norm returns more, and all that follows would pay."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _at(t: Tensor, line: Tensor) -> Tensor:
    """A line in time (batch, 2, n) at t, to be spread over pixels."""
    return torch.addcmul(line[:, 0], t[:, None].to(line.dtype), line[:, 1])[:, :, None, None]


register(WeighedConv, name="ncode.WeighedConv")
