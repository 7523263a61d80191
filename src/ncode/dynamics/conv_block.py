"""A convolution block, 1x1 then 3x3 then 1x1, whose kernels may be the control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..solve.problem import choose
from ._block import conv_block, fused
from ._convolution import FORMULATIONS, sample_conv2d
from .activations import ACTIVATIONS
from .base import Shape, Shapes, Theta, VectorField
from .checks import count
from .weights import Weights

KERNELS = ("1x1 in", "3x3", "1x1 out")


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
        self.channels, self.filters = count("channels", channels), count("filters", filters)
        self.out = count("out", channels if out is None else out)
        self.activation = choose("activation", activation, ACTIVATIONS)
        self.convolution = choose("convolution", convolution, FORMULATIONS)
        self.time, self.context = bool(time), count("context", context, low=0)
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
        y = torch.cat([x, theta["context"].expand(x.shape[0], -1, -1, -1)], 1) if self.context else x
        if self.activation == "relu" and self.convolution == "auto":
            whole = y, [weights[name] for name in KERNELS], [weights[f"{name} bias"] for name in KERNELS]
            if fused(*whole, t if self.time else None):
                return conv_block(*whole, t if self.time else None)
        # How GPUs convolve with kernels that all samples share. What lies in between is many times as large as x.
        last = y.is_cuda and weights["3x3"].dim() == 4 and self.filters % 8 == 0
        y = y.contiguous(memory_format=torch.channels_last) if last else y
        for layer, name in enumerate(KERNELS):
            y, w, b = (rho(y) if layer else y), weights[name], weights[f"{name} bias"]
            if self.time:
                w, ticks = w.split((w.shape[-3] - 1, 1), dim=-3)
                y = passing(t, convolve(y, w, b, self.convolution), ticks, self.convolution)
            else:
                y = convolve(y, w, b, self.convolution)
        return y.contiguous() if last else y

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
