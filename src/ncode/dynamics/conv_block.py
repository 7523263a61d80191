"""A convolution block, 1x1 then 3x3 then 1x1, whose kernels may be the control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import check_choice, check_count
from ._block import conv_block, fused
from ._convolution import FORMULATIONS, sample_conv2d
from .activations import ACTIVATIONS
from .base import Shape, Shapes, Theta, VectorField
from .weights import Weights

KERNELS = ("1x1 in", "3x3", "1x1 out")
MULTIPLE = 8  # of channels, for tensor cores in 16 bits


class ConvBlock(VectorField):
    """dx/dt = conv 1x1, activation, conv 3x3, activation, conv 1x1, with some of the kernels as the control.

    The block of the paper's image experiments, on x (batch, channels, height, width).

    Args:
        channels: Channels of x, those that `Augmented` adds included.
        filters: Channels in between.
        controlled: Which tensors are the control: names of "1x1 in", "3x3", "1x1 out" and of their biases, "3x3 bias"
            for one. The others are learned as usual. The three kernels, unless told; () for none, a plain NODE.
        activation: The non-linearity between layers.
        time: Whether each layer sees t, as one more channel.
        context: Channels of a control called "context" that the first layer sees beside x, as large as x: x(0) itself
            with `DataControl`.
        out: Channels of the result, where they are not those of x, for an acceleration in `SecondOrder`.
        convolution: How kernels that are a sample's own are applied: "auto" takes what is fastest on the device, for
            relu on NVIDIA GPUs kernels that compute the whole block; "grouped" is torch's own conv2d, "unfolded" a
            product of matrices, "implicit" a kernel for NVIDIA GPUs. All give the same up to rounding.

    >>> import ncode
    >>> dict(ncode.dynamics.ConvBlock(13, filters=50, controlled=("3x3",)).control_shapes)
    {'3x3': (50, 50, 3, 3)}
    """

    shared_control = True

    def __init__(
        self,
        channels: int,
        filters: int = 50,
        controlled: Sequence[str] | None = KERNELS,
        activation: str = "relu",
        *,
        time: bool = False,
        context: int = 0,
        out: int | None = None,
        convolution: str = "auto",
    ):
        super().__init__()
        self.channels, self.filters = check_count("channels", channels), check_count("filters", filters)
        self.out = check_count("out", channels if out is None else out)
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.convolution = check_choice("convolution", convolution, FORMULATIONS)
        self.time, self.context = bool(time), check_count("context", context, low=0)
        sizes = {
            "1x1 in": (filters, channels + self.context + self.time, 1, 1),
            "3x3": (filters, filters + self.time, 3, 3),
            "1x1 out": (self.out, filters + self.time, 1, 1),
        }
        shapes: dict[str, Shape] = {}
        for name, shape in sizes.items():
            shapes |= {name: shape, f"{name} bias": shape[:1]}
        self.weights = Weights("ConvBlock", shapes, controlled)

    @property
    def control_shapes(self) -> Shapes:
        """The controlled tensors, and the context where there is one."""
        context: dict[str, Shape] = {"context": (self.context, None, None)} if self.context else {}
        return {**self.weights.control_shapes, **context}

    @property
    def state_shape(self) -> Shape:
        """(channels, any, any)."""
        return (self.channels, None, None)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """The three convolutions of x."""
        rho, weights = ACTIVATIONS[self.activation], self.weights(theta)
        kernels, biases = ([weights[name + end] for name in KERNELS] for end in ("", " bias"))
        y = torch.cat([x, theta["context"].expand(x.shape[0], -1, -1, -1)], 1) if self.context else x
        seen = t if self.time else None
        if self.activation == "relu" and self.convolution == "auto" and fused(y, kernels, biases, seen):
            return conv_block(y, kernels, biases, seen)
        if y.is_cuda and all(w.dim() == 4 for w in kernels) and all(b.dim() == 1 for b in biases):
            return shared_block(y, kernels, biases, rho, seen)
        for layer, (w, b) in enumerate(zip(kernels, biases, strict=True)):
            y = rho(y) if layer else y
            if self.time:
                w, ticks = split_time(w)
                y = passing(t, convolve(y, w, b, self.convolution), ticks, self.convolution)
            else:
                y = convolve(y, w, b, self.convolution)
        return y

    def config(self) -> dict[str, Any]:
        """All arguments."""
        return {
            "channels": self.channels,
            "filters": self.filters,
            "controlled": self.weights.controlled,
            "activation": self.activation,
            "time": self.time,
            "context": self.context,
            "out": self.out,
            "convolution": self.convolution,
        }


def shared_block(
    y: Tensor,
    kernels: Sequence[Tensor],
    biases: Sequence[Tensor],
    rho: Callable[[Tensor], Tensor],
    t: Tensor | None = None,
) -> Tensor:
    """The block with kernels that all samples share, in the way that GPUs convolve fastest.

    Channels lie last in memory, and their numbers are filled up to multiples of 8, by kernels of zeros: what comes out
    is the same. What lies in between is many times as large as y.
    """
    out = len(kernels[-1])
    y = F.pad(y, (0, 0, 0, 0, 0, -y.shape[1] % MULTIPLE)).contiguous(memory_format=torch.channels_last)
    for layer, (w, b) in enumerate(zip(kernels, biases, strict=True)):
        w, ticks = (w, None) if t is None else split_time(w)
        y = F.conv2d(rho(y) if layer else y, filled(w, 0, 1), filled(b, 0), padding=w.shape[-1] // 2)
        if t is not None and ticks is not None:
            y = passing(t, y, filled(ticks, 0), "grouped")
    return y[:, :out].contiguous()


def filled(w: Tensor, *dims: int) -> Tensor:
    """Zeros behind w along these dimensions, up to the next multiple of 8.

    >>> filled(torch.ones(13, 125, 3, 3), 0, 1).shape
    torch.Size([16, 128, 3, 3])
    """
    ends = [-size % MULTIPLE if dim in dims else 0 for dim, size in enumerate(w.shape)]
    return F.pad(w, [part for end in reversed(ends) for part in (0, end)])


def split_time(w: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel's part for the channels, and that for time, the last of its inputs."""
    channels, ticks = w.split((w.shape[-3] - 1, 1), dim=-3)
    return channels, ticks


def convolve(x: Tensor, w: Tensor, b: Tensor, formulation: str) -> Tensor:
    """Convolution that keeps height and width; kernel and bias may each be shared or a sample's own."""
    if w.dim() == 4:
        y = F.conv2d(x, w, b if b.dim() == 1 else None, padding=w.shape[-1] // 2)
        if b.dim() == 1:
            return y
    else:
        y = sample_conv2d(x, w, formulation)
    # Under autocast y has 16 bits: a bias of 32 would make all that follows twice as large.
    b = b.to(y.dtype)
    return y + (b[:, None, None] if b.dim() == 1 else b[:, :, None, None])


def passing(t: Tensor, y: Tensor, w: Tensor, formulation: str) -> Tensor:
    """What a further channel that is t everywhere adds to y, for its part w of a kernel, (..., filters, 1, k, k).

    It is t times the same convolution of ones: no channel is written beside the others, and their number stays what
    the hardware likes.
    """
    if w.shape[-1] == 1:
        ones = w.flatten(-3)[..., None]
    elif w.dim() == 4:
        ones = F.conv2d(w.new_ones(1, 1, *y.shape[2:]), w, padding=w.shape[-1] // 2)
    else:
        ones = sample_conv2d(w.new_ones(len(w), 1, *y.shape[2:]), w, formulation)
    return torch.addcmul(y, t[:, None, None, None].to(y.dtype), ones.to(y.dtype))
