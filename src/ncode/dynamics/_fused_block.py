"""The convolution block, 1x1, relu, 3x3, relu, 1x1, in a few kernels for NVIDIA GPUs, forward and backward.

The result is that of the three convolutions up to rounding, with a fraction of their memory traffic. The kernels are in
`_fused_block_kernels.py`, which needs Triton; compilers see these operators:

    ncode::conv_block_kernels    the 3x3 kernels, laid out for the others. The evaluations of one solve can share them.
    ncode::conv_block            y, and what backward needs of the layers in between
    ncode::conv_block_back       the gradient of the last layer, and the input of the next two
    ncode::conv_block_front      the gradients of x and of the first layer
    ncode::conv_block_taps       the gradient of the 3x3 kernels

Weights have a batch dimension, (batch, ...), of stride 0 if all samples share them; shared 3x3 kernels are (1, ...), so
that their gradients are summed where they are computed. Kernels of the first layer are (batch, c, f), unlike torch's.
A backward that is itself recorded, or mapped, uses the three convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch_private import is_dual, is_transforming
from . import _convolution
from ._convolution import sample_conv2d

MAX_CHANNELS, MAX_FILTERS = 32, 64  # of x and y, and in between: one program holds them all

_library = torch.library.Library("ncode", "FRAGMENT")
_library.define("conv_block_kernels(Tensor w2, ScalarType dtype, bool turned) -> Tensor")
_library.define(
    "conv_block(Tensor x, Tensor w1, Tensor b1, Tensor kernels, Tensor b2, Tensor w3, Tensor b3, Tensor? rim,"
    " bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "conv_block_back(Tensor grad, Tensor w3, Tensor h2, int height, int width, bool time)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "conv_block_front(Tensor slope, Tensor laid, Tensor kernels, Tensor w1, Tensor x) -> (Tensor, Tensor, Tensor)"
)
_library.define("conv_block_taps(Tensor slope, Tensor laid, int filters, bool shared) -> Tensor")


def can_fuse(x: Tensor, kernels: Sequence[Tensor], biases: Sequence[Tensor], t: Tensor | None = None) -> bool:
    """Return whether these kernels are to be used, for the input x of the first layer, and t if it is an input."""
    if not _convolution.triton_available(x) or torch.compiler.is_exporting() or is_transforming():
        return False
    tensors = (x, *kernels, *biases, *(() if t is None else (t,)))
    if any(tensor.dtype != torch.float32 for tensor in tensors[:7]) or 0 in x.shape or any(map(is_dual, tensors)):
        return False
    f, o = kernels[0].shape[-4], kernels[2].shape[-4]
    # With one pixel, channels are contiguous where the kernels expect pixels to be.
    if max(x.shape[1], o) > MAX_CHANNELS or f > MAX_FILTERS or x.shape[2:].numel() == 1:
        return False
    return _storage(x) is not None and is_faster(x, kernels[1])


def is_faster(x: Tensor, w2: Tensor) -> bool:
    """Return whether these kernels are faster: not for one kernel per sample in full single precision.

    Measured on an H200, batch 256, 13 x 32 x 32, forward and backward, in milliseconds against the three convolutions:
    50 filters per sample 0.40 and 0.87 in bfloat16, 0.95 and 1.14 in TF32, 2.37 and 1.48 in full precision; 64 shared
    filters 0.38 and 1.33, 1.31 and 1.64, 2.61 and 3.73.
    """
    return w2.dim() == 4 or torch.backends.cudnn.allow_tf32 or _storage(x) != torch.float32


def fused_block(x: Tensor, kernels: Sequence[Tensor], biases: Sequence[Tensor], t: Tensor | None = None) -> Tensor:
    """Return y (batch, o, H, W), in single precision, for x (batch, c, H, W).

    Kernels are (batch, o, i, k, k) or shared, (o, i, k, k), and biases (batch, o) or (o,). With t (batch,) every kernel
    has one more input channel, which is t everywhere.
    """
    batch, dtype = len(x), _storage(x)
    assert dtype is not None
    w1, w2, w3 = (w if w.dim() == 5 else w[None] for w in kernels)
    b1, b2, b3 = (b.expand(batch, -1) for b in biases)
    rim = None
    if t is not None:
        t = t.to(x.dtype)[:, None]
        (w1, last1), (w2, last2), (w3, last3) = (w.split((w.shape[2] - 1, 1), 2) for w in (w1, w2, w3))
        b1, b3 = b1 + t * last1.flatten(1), b3 + t * last3.flatten(1)
        rim = t[..., None] * last2.flatten(2)
    w1, w3 = w1.flatten(2).transpose(1, 2), w3.flatten(2)
    w1, w3 = (w.contiguous().expand(batch, -1, -1) for w in (w1, w3))
    inputs = (x, w1, b1, w2, b2, w3, b3, rim)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        return _Block.apply(*inputs, dtype)  # pyright: ignore[reportReturnType]
    return _forward(inputs, dtype, keep=False)[1]


def _storage(x: Tensor) -> torch.dtype | None:
    """Return the dtype of the layers in between, that of autocast; None if the kernels do not have it."""
    if not torch.is_autocast_enabled(x.device.type):
        return torch.float32
    dtype = torch.get_autocast_dtype(x.device.type)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def _forward(inputs: Sequence[Any], dtype: torch.dtype, *, keep: bool) -> tuple[Tensor, ...]:
    """Return the 3x3 kernels as they are laid out, and the result of `conv_block`."""
    kernels = torch.ops.ncode.conv_block_kernels(inputs[3], dtype, False)
    return kernels, *torch.ops.ncode.conv_block(*inputs[:3], kernels, *inputs[4:], keep)


class _Block(torch.autograd.Function):
    """The block and its gradients by the kernels."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *inputs, ctx.dtype = given
        kernels, y, *rest = _forward(inputs, ctx.dtype, keep=True)
        ctx.save_for_backward(*inputs, kernels, *rest)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        *inputs, kernels, laid, h2, planes = ctx.saved_tensors
        needs = ctx.needs_input_grad[:-1]
        if torch.is_grad_enabled() or is_transforming():
            return *_recorded(inputs, needs, grads[0], ctx.dtype), None
        x, w1, _, w2, _, w3, _, rim = inputs
        operators, (height, width) = torch.ops.ncode, x.shape[2:]
        found: list[Tensor | None] = [None] * len(inputs)
        single = ctx.dtype == torch.float32
        slope, slopes, *of_last = operators.conv_block_back(grads[0], w3, h2, height, width, rim is not None)
        found[5], found[6], found[4] = of_last[:3]
        found[7] = None if rim is None else of_last[3]
        if any(needs[:3]):
            kernels = operators.conv_block_kernels(w2, ctx.dtype, True) if single else kernels
            found[:3] = operators.conv_block_front(slope, laid, kernels, w1, x)
        if needs[3]:
            layers = (slopes, planes) if single else (slope, laid)
            found[3] = operators.conv_block_taps(*layers, w2.shape[1], len(w2) == 1)
        return *(grad if need else None for grad, need in zip(found, needs, strict=True)), None


def _recorded(inputs: Sequence[Any], needs: Sequence[bool], grad: Tensor, dtype: torch.dtype) -> list[Tensor | None]:
    """Return the gradients by operations that can be differentiated again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(grad.device.type, dtype, enabled=dtype != torch.float32):
        # Aliases, so that the graph that leads to the inputs is not differentiated here.
        own: list[Any] = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        y = compose(*own).float()
    wanted = [tensor for tensor, need in zip(own, needs, strict=True) if tensor is not None and need]
    got = iter(torch.autograd.grad(y, wanted, grad, create_graph=again, allow_unused=True))
    return [next(got) if need else None for need in needs]


def compose(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor, rim: Tensor | None
) -> Tensor:
    """Return the block by convolutions, with w1 (batch, c, f)."""
    w2 = w2.expand(len(x), -1, -1, -1, -1)
    y = torch.relu(sample_conv2d(x, w1.transpose(1, 2)[..., None, None]) + b1[:, :, None, None])
    y = sample_conv2d(y, w2) + b2[:, :, None, None]
    if rim is not None:
        y = y + sample_conv2d(torch.ones_like(x[:, :1]), rim.unflatten(2, (1, 3, 3)))
    return sample_conv2d(torch.relu(y), w3[..., None, None]) + b3[:, :, None, None]


# What each operator returns, not yet computed. The kernels allocate their results by these functions, too.


def padded_channels(size: int, least: int = 16) -> int:
    """Return a number of channels rounded up to a power of two."""
    return max(1 << (size - 1).bit_length(), least)


def channels_between(f: int, dtype: torch.dtype) -> int:
    """Return C, the number of channels between the layers, at least 128 bytes."""
    return padded_channels(f, 128 // dtype.itemsize)


def empty_kernels(w2: Tensor, dtype: torch.dtype, turned: bool) -> Tensor:
    channels = channels_between(w2.shape[1], dtype)
    return w2.new_empty(w2.shape[0], 9, channels, channels, dtype=dtype)


def empty_forward(*inputs: Any) -> tuple[Tensor, ...]:
    x, w1, _, kernels, _, w3, _, _, keep = inputs
    (batch, _, height, width), channels = x.shape, kernels.shape[-1]
    laid = kernels.new_empty(batch, height + 2, width + 2, channels)
    h2 = kernels.new_empty(batch if keep else 0, height * width, channels)
    planes = x.new_empty(batch if keep and laid.dtype == torch.float32 else 0, w1.shape[2], height + 2, width + 2)
    return x.new_empty(batch, w3.shape[1], height, width), laid, h2, planes


def empty_back(grad: Tensor, w3: Tensor, h2: Tensor, height: int, width: int, time: bool) -> tuple[Tensor, ...]:
    (batch, o, f), channels = w3.shape, h2.shape[-1]
    slope = h2.new_empty(batch, height + 2, width + 2, channels)
    planes = h2.new_empty(batch if h2.dtype == torch.float32 else 0, f, height + 2, width + 2)
    shapes = ((batch, o, f), (batch, o), (batch, f), (batch if time else 0, f, 9))
    return slope, planes, *(grad.new_empty(*shape, dtype=torch.float32) for shape in shapes)


def empty_front(slope: Tensor, laid: Tensor, kernels: Tensor, w1: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(*shape) for shape in (x.shape, w1.shape, w1.shape[::2]))


def _empty_taps(slope: Tensor, laid: Tensor, filters: int, shared: bool) -> Tensor:
    return laid.new_empty(1 if shared else laid.shape[0], filters, filters, 3, 3, dtype=torch.float32)


def _run_kernels(name: str, *arguments: Any) -> Any:
    from . import _fused_block_kernels

    return getattr(_fused_block_kernels, name)(*arguments)


OPERATORS = {
    "conv_block_kernels": ("arrange", empty_kernels),
    "conv_block": ("forward", empty_forward),
    "conv_block_back": ("back", empty_back),
    "conv_block_front": ("front", empty_front),
    "conv_block_taps": ("taps", _empty_taps),
}


def implement(library: torch.library.Library, device: str) -> None:
    """Register the kernels as the implementation of the operators on a device type."""
    for operator, (name, _) in OPERATORS.items():
        library.impl(operator, lambda *arguments, name=name: _run_kernels(name, *arguments), device)


implement(_library, "CUDA")
for _operator, (_, _shape) in OPERATORS.items():
    torch.library.register_fake(f"ncode::{_operator}", _shape, lib=_library)
