"""Our network for images: several blocks with down-sampling between them, and the vector field of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ncode
from ncode.block import NCODE
from ncode.control import OpenLoop, Static
from ncode.dynamics import Dynamics, Theta
from ncode.errors import check_count
from ncode.models import ClassifierOutput, ImageClassifier, gamma

Shape = tuple[int, int, int]


class ClassifierNet(ImageClassifier):
    """A convolution, one block per width with down-sampling between blocks, then a mean over pixels and a read-out.

    Args:
        shape: Shape of an image, (channels, height, width).
        classes: Number of classes.
        widths: Channels of each block. Height and width are halved from one block to the next.
        adaptive: Whether each block sets its control from its own input. Otherwise all samples share one control.
        hidden: Features in gamma.
        rank: Rank of each sample's own convolution: see `WeighedConv`.
        scale: Size of the part of the control that depends on the data: see `OpenLoop`.
        method, steps: Method of the solver, and number of equal steps in each block.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int = 10,
        widths: Sequence[int] = (48, 96, 192),
        *,
        adaptive: bool = True,
        hidden: int = 32,
        rank: int = 8,
        scale: float = 0.3,
        method: str = "midpoint",
        steps: int = 2,
    ):
        super().__init__(shape, classes)
        self.widths = tuple(check_count("widths", width) for width in widths)
        self.adaptive, self.hidden, self.rank, self.scale = adaptive, hidden, rank, scale
        self.method, self.steps = method, check_count("steps", steps)
        channels, height, width = self.shape
        self.stem = nn.Sequential(_conv(channels, self.widths[0]), nn.BatchNorm2d(self.widths[0]))
        blocks, downs = [], []
        for number, now in enumerate(self.widths):
            if number:
                before, height, width = self.widths[number - 1], (height + 1) // 2, (width + 1) // 2
                norms = nn.BatchNorm2d(before), nn.BatchNorm2d(now)
                downs.append(nn.Sequential(norms[0], nn.ReLU(), _conv(before, now, stride=2), norms[1]))
            blocks.append(self._block((now, height, width)))
        self.blocks, self.downs = nn.ModuleList(blocks), nn.ModuleList(downs)
        self.norm = nn.BatchNorm2d(self.widths[-1])
        self.readout = nn.Linear(self.widths[-1], self.classes)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def classify(self, images: Tensor, cost: Any = None, **changes: Any) -> ClassifierOutput:
        x = self.stem(self.normalise(images).contiguous(memory_format=torch.channels_last))
        solutions = []
        for number, block in enumerate(cast(Sequence[NCODE], self.blocks)):
            x = self.downs[number - 1](x) if number else x
            # Under autocast a convolution returns less precision than a state is integrated in.
            solution = block.solve(x.to(self.mean.dtype), cost=cost, throw=False, **changes)
            # 0 for failed samples: nan would reach the gradients of parameters that all samples share.
            x = torch.where(solution.ok[:, None, None, None], solution.x, 0)
            solutions.append(solution)
        ok = torch.stack([solution.ok for solution in solutions]).all(0)
        return ClassifierOutput(self.readout(F.relu(self.norm(x)).mean((2, 3))), tuple(solutions), ok)

    def _block(self, shape: Shape) -> NCODE:
        controller = OpenLoop(gamma("conv", shape, self.hidden), scale=self.scale) if self.adaptive else Static()
        # With few steps, keeping their graph is faster than recomputing them in backward, and fits into memory.
        options: dict[str, Any] = {"method": self.method, "dt": 1.0 / self.steps, "gradient": "autograd"}
        return NCODE(WeighedConv(shape[0], rank=self.rank), controller, **options)


ncode.register(ClassifierNet, name="ncode.ClassifierNet")  # the name in files written before it moved here


class WeighedConv(Dynamics):
    """dx/dt = V * relu(a (W * relu(norm(x)) + U_b D_b x) + b): two 3x3 convolutions with controlled hidden channels.

    Convolutions whose whole kernels are the control would need memory for the kernels of each sample. Here all samples
    share the kernels, and the control sets the gain a and the bias b of each hidden channel, both linear in time, and
    adds a 1x1 convolution of low rank. The norm, over the channels of a pixel, bounds dx/dt for large x.

    Args:
        channels: Channels of x.
        hidden: Hidden channels. Default: `channels`.
        rank: Rank of each sample's own 1x1 convolution; 0 for none.
    """

    def __init__(self, channels: int, hidden: int | None = None, rank: int = 8):
        super().__init__()
        self.channels = check_count("channels", channels)
        self.hidden = check_count("hidden", channels if hidden is None else hidden)
        self.rank = check_count("rank", rank, low=0)
        self.norm = nn.LayerNorm(self.channels)
        self.first, self.last = _conv(self.channels, self.hidden), _conv(self.hidden, self.channels)
        self.state_shape = (self.channels, None, None)
        # Gain and bias at t = 0 and their slopes in time; the factors of the sample's own convolution.
        self.control_shapes = {"gain": (2, self.hidden), "bias": (2, self.hidden)}
        if self.rank:
            self.control_shapes |= {"down": (self.rank, self.channels), "up": (self.hidden, self.rank)}

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        x = F.relu(_autocast(self.norm(x.permute(0, 2, 3, 1))))  # channels last: the norm is one kernel there
        y = self.first(x.permute(0, 3, 1, 2))
        if self.rank:
            own = torch.bmm(torch.bmm(x.flatten(1, 2), theta["down"].mT), theta["up"].mT)
            y = y + own.unflatten(1, x.shape[1:3]).permute(0, 3, 1, 2)
        gain, bias = (_at(t, theta[name]).to(y.dtype) for name in ("gain", "bias"))
        return self.last(F.relu(torch.addcmul(bias, 1 + gain, y)))


ncode.register(WeighedConv, name="ncode.WeighedConv")


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def _autocast(x: Tensor) -> Tensor:
    """Convert to autocast's precision: a norm returns float32, and all that follows would be computed in it."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _at(t: Tensor, line: Tensor) -> Tensor:
    """A line in time (batch, 2, n) at t, with dimensions for pixels."""
    return torch.addcmul(line[:, 0], t[:, None].to(line.dtype), line[:, 1])[:, :, None, None]
