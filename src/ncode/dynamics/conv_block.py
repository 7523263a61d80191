"""A convolution block, 1x1 then 3x3 then 1x1, whose kernels may be the control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .._modules import Shape, Theta
from ..errors import check_choice, check_count, check_flag
from ._convolution import FORMULATIONS, sample_conv2d
from ._fused_block import can_fuse, fused_block
from .base import ACTIVATIONS, Dynamics, Weights

KERNELS = ("conv_in", "conv_3x3", "conv_out")
MULTIPLE = 8  # of channels, for tensor cores in 16 bits


class ConvBlock(Dynamics):
    """dx/dt = conv 1x1, activation, conv 3x3, activation, conv 1x1, with some of the kernels as the control.

    The block of the paper's image experiments, on x (batch, channels, height, width).

    Args:
        channels: Channels of x, including those that `Augmented` adds.
        filters: Channels in between.
        controlled: The weights that are the control, out of "conv_in", "conv_3x3", "conv_out" and their biases, such as
            "conv_3x3_bias". The others are parameters. Default: the three kernels; () for none, a plain NODE.
        activation: The non-linearity between layers.
        time: Whether t is an input of each layer, as one more channel.
        context: Channels of a control called "context", of the size of x, an additional input of the first layer: x(0)
            itself with `DataControl`.
        out: Channels of the result. Default: those of x. Another number is for an acceleration in `SecondOrder`.
        convolution: How to convolve with one kernel per sample: "auto" is the fastest on the device, with relu on
            NVIDIA GPUs kernels that compute the whole block; "grouped" is torch's conv2d, "unfolded" a matrix product,
            "implicit" a kernel for NVIDIA GPUs. The results agree up to rounding.

    >>> import ncode
    >>> dict(ncode.dynamics.ConvBlock(13, filters=50, controlled=("conv_3x3",)).control_shapes)
    {'conv_3x3': (50, 50, 3, 3)}
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
        self.time, self.context = check_flag("time", time), check_count("context", context, low=0)
        sizes = (
            (self.filters, self.channels + self.context + self.time, 1, 1),
            (self.filters, self.filters + self.time, 3, 3),
            (self.out, self.filters + self.time, 1, 1),
        )
        shapes: dict[str, Shape] = {}
        for name, shape in zip(KERNELS, sizes, strict=True):
            shapes |= {name: shape, f"{name}_bias": shape[:1]}
        self.weights = Weights("ConvBlock", shapes, controlled)
        self.controlled = tuple(self.weights.control_shapes)
        seen: dict[str, Shape] = {"context": (self.context, None, None)} if self.context else {}
        self.control_shapes = {**self.weights.control_shapes, **seen}
        self.state_shape = (self.channels, None, None)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        weights = self.weights(theta)
        kernels, biases = [weights[name] for name in KERNELS], [weights[f"{name}_bias"] for name in KERNELS]
        y = torch.cat([x, theta["context"].expand(x.shape[0], -1, -1, -1)], 1) if self.context else x
        time = t if self.time else None
        if self.activation == "relu" and self.convolution == "auto" and can_fuse(y, kernels, biases, time):
            return fused_block(y, kernels, biases, time)
        layers, rho = split_layers(kernels, biases, self.time), ACTIVATIONS[self.activation]
        if y.is_cuda and all(w.dim() == 4 for w in kernels) and all(b.dim() == 1 for b in biases):
            return apply_padded(y, layers, rho, t)
        return apply_layers(y, layers, rho, t, self.convolution)


class Layer(NamedTuple):
    """One convolution. Each tensor may have a batch dimension or be shared by all samples."""

    kernel: Tensor  # (..., out, in, k, k)
    bias: Tensor  # (..., out)
    time: Tensor | None  # (..., out, 1, k, k): the kernel of a channel that is t everywhere


def split_layers(kernels: Sequence[Tensor], biases: Sequence[Tensor], time: bool) -> list[Layer]:
    """Return the layers; with `time`, the last input channel of each kernel is that of t."""
    pairs = zip(kernels, biases, strict=True)
    return [Layer(w.narrow(-3, 0, w.shape[-3] - int(time)), b, w.narrow(-3, -1, 1) if time else None) for w, b in pairs]


def apply_layers(
    y: Tensor, layers: Sequence[Layer], rho: Callable[[Tensor], Tensor], t: Tensor, formulation: str = "auto"
) -> Tensor:
    """Return the convolutions of y, with an activation between them."""
    for number, (kernel, bias, time) in enumerate(layers):
        y = convolve(rho(y) if number else y, kernel, bias, formulation)
        if time is not None:
            y = add_time(y, t, time, formulation)
    return y


def apply_padded(y: Tensor, layers: Sequence[Layer], rho: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """Return the same for shared kernels, in the form that GPUs convolve fastest.

    Channels are last in memory, and their numbers are padded to multiples of 8, by kernels of zeros.
    """
    padded = [
        Layer(pad(kernel, 0, 1), pad(bias, 0), None if time is None else pad(time, 0)) for kernel, bias, time in layers
    ]
    y = pad(y, 1).contiguous(memory_format=torch.channels_last)
    return apply_layers(y, padded, rho, t)[:, : len(layers[-1].bias)].contiguous()


def pad(w: Tensor, *dims: int) -> Tensor:
    """Append zeros along these dimensions, up to the next multiple of 8."""
    ends = [-size % MULTIPLE if dim in dims else 0 for dim, size in enumerate(w.shape)]
    return F.pad(w, [part for end in reversed(ends) for part in (0, end)])


def convolve(x: Tensor, w: Tensor, b: Tensor, formulation: str) -> Tensor:
    """Convolve, keeping height and width; kernel and bias may each have a batch dimension or be shared."""
    if w.dim() == 4:
        y = F.conv2d(x, w, b if b.dim() == 1 else None, padding=w.shape[-1] // 2)
        if b.dim() == 1:
            return y
    else:
        y = sample_conv2d(x, w, formulation)
    # Under autocast y has 16 bits: a bias of 32 would make all that follows twice as large.
    b = b.to(y.dtype)
    return y + (b[:, None, None] if b.dim() == 1 else b[:, :, None, None])


def add_time(y: Tensor, t: Tensor, w: Tensor, formulation: str) -> Tensor:
    """Add to y the convolution of a channel that is t everywhere, with its kernel w (..., out, 1, k, k).

    It is t times the convolution of ones. So no channel is written, and their number stays one that suits the hardware.
    """
    if w.shape[-1] == 1:
        ones = w.flatten(-3)[..., None]
    elif w.dim() == 4:
        ones = F.conv2d(w.new_ones(1, 1, *y.shape[2:]), w, padding=w.shape[-1] // 2)
    else:
        ones = sample_conv2d(w.new_ones(w.shape[0], 1, *y.shape[2:]), w, formulation)
    return torch.addcmul(y, t[:, None, None, None].to(y.dtype), ones.to(y.dtype))
