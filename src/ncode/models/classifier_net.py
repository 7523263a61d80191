"""A convolutional network of blocks with down-sampling between them, its vector field, and trunks of gamma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..block import NCODE
from ..checks import check_choice, check_count, check_fraction
from ..control import Controller, OpenLoop, Static
from ..costs import CostLike
from ..dynamics import Dynamics, Theta
from .classifier import ClassifierOutput, ImageClassifier, ImageShape, mask_failed

Gamma = Literal["linear", "perceptron", "conv", "conv-norm", "conv-pool"]
GAMMAS: tuple[Gamma, ...] = get_args(Gamma)


class ClassifierNet(ImageClassifier):
    """A convolution, one block per width with down-sampling between blocks, then a mean over pixels and a read-out.

    Each block sets its control from its own input, or, with `adaptive=False`, all samples share one control: the same
    network with static blocks.

    Args:
        shape: Shape of an image, (channels, height, width).
        classes: Number of classes.
        widths: Channels of each block. Height and width are halved from one block to the next.
        adaptive: Whether the blocks' control is set from the data.
        hidden: Features in gamma.
        rank: Rank of each sample's own convolution: see `WeighedConv`.
        scale: Size of the part of the control that depends on the data: see `OpenLoop`.
        method, steps: Method of the solver, and number of equal steps in each block.

    >>> import torch
    >>> model = ClassifierNet((3, 16, 16), widths=(8, 16))
    >>> model(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: ImageShape,
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

    def classify(self, images: Tensor, cost: CostLike | None = None, **changes: Any) -> ClassifierOutput:
        x = self.stem(self.normalise(images).contiguous(memory_format=torch.channels_last))
        solutions = []
        for number, block in enumerate(cast(Sequence[NCODE], self.blocks)):
            x = self.downs[number - 1](x) if number else x
            # Under autocast a convolution returns less precision than a state is integrated in.
            solutions.append(block.solve(x.to(self.mean.dtype), cost=cost, throw=False, **changes))
            x = mask_failed(solutions[-1])
        ok = torch.stack([solution.ok for solution in solutions]).all(0)
        return ClassifierOutput(self.readout(F.relu(self.norm(x)).mean((2, 3))), tuple(solutions), ok)

    def _block(self, shape: ImageShape) -> NCODE:
        controller: Controller = Static()
        if self.adaptive:
            controller = OpenLoop(gamma("conv", shape, self.hidden), scale=self.scale)
        # With few steps, keeping their graph is faster than recomputing them in backward, and fits into memory.
        options: dict[str, Any] = {"method": self.method, "dt": 1.0 / self.steps, "gradient": "autograd"}
        return NCODE(WeighedConv(shape[0], rank=self.rank), controller, **options)


class WeighedConv(Dynamics):
    """dx/dt = V * relu(a (W * relu(norm(x)) + U_b D_b x) + b): two 3x3 convolutions with controlled hidden channels.

    Convolutions whose whole kernels are the control would need memory for the kernels of each sample. Here all samples
    share the kernels, and the control sets the gain a and the bias b of each hidden channel, both linear in time, and
    adds a 1x1 convolution of low rank. The norm, over the channels of a pixel, bounds dx/dt for large x.

    Args:
        channels: Channels of x.
        hidden: Hidden channels. Default: `channels`.
        rank: Rank of each sample's own 1x1 convolution; 0 for none.

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


def gamma(kind: str, shape: ImageShape, hidden: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """A trunk for `OpenLoop` that maps images (C, H, W) to `hidden` features.

    With the heads, which the controller adds, it is the paper's "two-layer perceptron with 10 hidden units".

    Args:
        kind: "linear", as in the paper's appendix: a linear map of all pixels. "perceptron": the same with a tanh,
            another reading of the paper. "conv": two convolutions of stride 2 with 16 and 32 channels, a mean over 2x2
            fields, linear, tanh. "conv-norm": three convolutions with 32, 64 and 128 channels and batch norm, then as
            "conv". "conv-pool": the same with stride 1 and max pooling. The last three are not in the paper; they
            generalise, whereas the first two memorise the training images.
        shape: Shape of an image, (channels, height, width).
        hidden: Number of features.
        dropout: Probability of dropping an input of the last layer in training, drawn once per solve.

    >>> import torch
    >>> gamma("conv", (3, 32, 32))(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """
    check_choice("gamma", kind, GAMMAS)
    hidden = check_count("hidden", hidden)
    check_fraction("dropout", dropout)
    channels, height, width = shape
    layers: list[nn.Module] = []
    features = channels * height * width
    if kind.startswith("conv"):
        layers, features = _trunk_convolutions(kind, channels)
    layers.append(nn.Flatten())
    if dropout:
        layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(features, hidden))
    return nn.Sequential(*layers) if kind == "linear" else nn.Sequential(*layers, nn.Tanh())


def _trunk_convolutions(kind: str, channels: int) -> tuple[list[nn.Module], int]:
    """The layers up to the mean over 2x2 fields, and the number of values that they return."""
    widths, norm, pool = (16, 32) if kind == "conv" else (32, 64, 128), kind != "conv", kind == "conv-pool"
    layers: list[nn.Module] = []
    for before, after in zip((channels, *widths), widths, strict=False):
        layers.append(nn.Conv2d(before, after, 3, stride=1 if pool else 2, padding=1, bias=not norm))
        layers += [nn.BatchNorm2d(after), nn.ReLU()] if norm else [nn.ReLU()]
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if pool else []
    return [*layers, nn.AdaptiveAvgPool2d(2)], 4 * widths[-1]


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def _autocast(x: Tensor) -> Tensor:
    """Convert to autocast's precision: a norm returns float32, and all that follows would be computed in it."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _at(t: Tensor, line: Tensor) -> Tensor:
    """A line in time (batch, 2, n) at t, with dimensions for pixels."""
    return torch.addcmul(line[:, 0], t[:, None].to(line.dtype), line[:, 1])[:, :, None, None]
