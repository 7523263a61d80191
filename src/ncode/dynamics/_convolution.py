"""Convolutions with one kernel per sample: y_b = conv2d(x_b, w_b), with the height and width of x_b.

A 1x1 convolution is one matrix product per sample, (o, c) (c, H W). Larger kernels have three formulations:

    grouped    the batch becomes the channels of one image and the samples its groups: torch's conv2d.
    unfolded   the k^2 shifted copies of x are written out, (k^2 c, H W): one product. Plain torch, on any device.
    implicit   the same product by Triton, which reads the shifted copies in place (`_convolution_kernels.py`): for
               NVIDIA GPUs of compute capability 8.0 or more.

All are exact up to rounding and have derivatives of any order, in forward and reverse mode. The fastest was measured
with benchmarks/probe_convolution.py: one evaluation of 1x1, relu, 3x3, relu, 1x1 and its backward, batch 128,
13 x 32 x 32, 50 filters, on an H200, in milliseconds from Python and as a CUDA graph, and MiB:

                              float32               TF32 convolutions
    grouped                   5.28    2.01    111   1.51    0.76    175
    unfolded                  2.41    1.45    336   2.24    1.20    336
    implicit                  2.73    0.75    134   2.68    0.53    134

So a GPU uses "implicit", which compiled solves run as a graph; from Python the time is that of the host. Where it is
not available, "grouped" is next if torch may use TF32 for convolutions (its default), and "unfolded" otherwise. A CPU
uses "grouped": "unfolded" is faster there for few samples only, at nine times the memory. A program that is exported
for batches of any size uses "unfolded": the number of groups of a convolution is a constant in ONNX and TorchScript.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._torch_private import is_tracing
from ..errors import InputError, check_choice

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of the Triton kernels


def sample_conv2d(x: Tensor, w: Tensor, formulation: str = "auto") -> Tensor:
    """Convolve each sample with its own kernel, with stride 1 and zero padding that keeps height and width.

    Args:
        x: (batch, c, H, W).
        w: (batch, o, c, k, k) with k odd.
        formulation: "grouped", "unfolded", "implicit", or "auto": the fastest on x's device.

    >>> x, w = torch.randn(2, 3, 5, 5), torch.randn(2, 4, 3, 3, 3)
    >>> one_by_one = torch.cat([F.conv2d(x[b : b + 1], w[b], padding=1) for b in range(2)])
    >>> bool((sample_conv2d(x, w) - one_by_one).abs().max() < 1e-5)
    True
    """
    check_choice("formulation", formulation, FORMULATIONS)
    _check(x, w)
    if formulation == "auto":
        formulation = "unfolded" if w.shape[-1] == 1 else _fastest(x)
    if formulation == "grouped":
        _check_groups(x)
        batch = x.shape[0]  # len(x) would make the batch of an exported program a constant
        y = F.conv2d(x.flatten(0, 1)[None], w.flatten(0, 1), padding=w.shape[-1] // 2, groups=batch)
        return y[0].unflatten(0, (batch, -1))
    if w.shape[-1] == 1:
        return torch.bmm(w.flatten(2), x.flatten(2)).unflatten(2, x.shape[2:])
    if is_tracing():  # TorchScript cannot express an autograd function
        return _unfolded(x, w)
    if torch.is_autocast_enabled(x.device.type):  # backward runs outside autocast, so both are cast here
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w = x.to(dtype), w.to(dtype)
    if formulation == "implicit" and not triton_available(x):
        raise InputError(
            'formulation "implicit" needs Triton, an NVIDIA GPU of compute capability 8.0 or more and float32, float16'
            f' or bfloat16; given {x.dtype} on {x.device}: use "auto"'
        )
    return _Convolution.apply(x, w, None, _FORMS[formulation])  # pyright: ignore[reportReturnType]


def _check(x: Tensor, w: Tensor) -> None:
    if x.dim() != 4 or w.dim() != 5 or x.shape[0] != w.shape[0] or x.shape[1] != w.shape[2]:
        raise InputError(
            "x must be (batch, c, H, W) and w (batch, o, c, k, k), one kernel per sample;"
            f" given x {tuple(x.shape)} and w {tuple(w.shape)}"
        )
    if w.shape[3] != w.shape[4] or w.shape[3] % 2 == 0:
        raise InputError(f"kernels must be square and of odd size; given {w.shape[3]} x {w.shape[4]}")


def _check_groups(x: Tensor) -> None:
    if is_tracing() or (_exports_any_batch(x) and torch.onnx.is_in_onnx_export()):
        raise InputError(
            'in ONNX and TorchScript convolution="grouped" works only for the batch size it was traced with: use "auto"'
        )


def _exports_any_batch(x: Tensor) -> bool:
    return torch.compiler.is_exporting() and isinstance(x.shape[0], torch.SymInt)


def triton_available(x: Tensor) -> bool:
    """Return whether the Triton kernels can be used for this tensor."""
    return x.device.type == "cuda" and x.dtype in DTYPES and _has_triton(x.device.index or 0)


@functools.cache
def _has_triton(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def _fastest(x: Tensor) -> str:
    if _exports_any_batch(x) or is_tracing():
        return "unfolded"
    # An exported program is to run where the operators of this library are unknown.
    if x.device.type != "cuda" or torch.compiler.is_exporting():
        return "grouped"
    if triton_available(x):
        return "implicit"
    return "grouped" if x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "unfolded"


@dataclass(frozen=True, eq=False)  # not a tuple, which torch.func would flatten
class _Form:
    """A formulation: the convolution y of x and w, and the gradient of w from that of y, from x and k."""

    convolve: Callable[[Tensor, Tensor], Tensor]
    correlate: Callable[[Tensor, Tensor, int], Tensor]


class _Convolution(torch.autograd.Function):
    """The convolution of x and w or, given k, the gradient of w (k x k) from that of y, and x.

    Both are bilinear, and the gradients of each are one of the two again: that of x is the convolution with w rotated
    by 180 degrees and its channels exchanged. Saves x and not its shifted copies.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor, k: int | None, form: _Form) -> Tensor:
        return form.convolve(left, right) if k is None else form.correlate(left, right, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        left, right, ctx.k, ctx.form = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (left, right), found = grads, ctx.saved_tensors, [None, None]
        if ctx.needs_input_grad[0]:
            pair = (grad, _rotate(right)) if ctx.k is None else (right, grad)
            found[0] = _Convolution.apply(*pair, None, ctx.form)
        if ctx.needs_input_grad[1]:
            inputs = (grad, left, right.shape[-1]) if ctx.k is None else (left, _rotate(grad), None)
            found[1] = _Convolution.apply(*inputs, ctx.form)
        return *found, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (left, right), (d_left, d_right, *_) = ctx.saved_tensors, tangents
        parts = [] if d_left is None else [_Convolution.apply(d_left, right, ctx.k, ctx.form)]
        parts += [] if d_right is None else [_Convolution.apply(left, d_right, ctx.k, ctx.form)]
        return sum(parts[1:], parts[0])


def _rotate(w: Tensor) -> Tensor:
    return w.transpose(1, 2).flip(3, 4)


def _unfolded(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(w.flatten(2), _windows(x, w.shape[-1])).unflatten(2, x.shape[2:])


def _unfolded_gradient(y: Tensor, x: Tensor, k: int) -> Tensor:
    return torch.bmm(y.flatten(2), _windows(x, k).mT).unflatten(2, (-1, k, k))


def _windows(x: Tensor, k: int) -> Tensor:
    """Return all shifted copies, (batch, c k k, H W)."""
    r = k // 2
    windows = F.pad(x, (r, r, r, r)).unfold(2, k, 1).unfold(3, k, 1)  # (batch, c, H, W, k, k), a view
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


# The implicit formulation consists of two operators, so that compilers and torch.func understand it.


def _convolve_cuda(x: Tensor, w: Tensor) -> Tensor:
    from ._convolution_kernels import convolve

    return convolve(x, w)


def _correlate_cuda(y: Tensor, x: Tensor, k: int) -> Tensor:
    from ._convolution_kernels import correlate

    return correlate(y, x, k)


def _convolve_fake(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[1], *x.shape[2:])


def _correlate_fake(y: Tensor, x: Tensor, k: int) -> Tensor:
    return x.new_empty(x.shape[0], y.shape[1], x.shape[1], k, k)


_library = torch.library.Library("ncode", "FRAGMENT")
_library.define("sample_conv2d(Tensor x, Tensor w) -> Tensor")
_library.define("sample_conv2d_kernels(Tensor y, Tensor x, int k) -> Tensor")


def _register(name: str, kernels: Callable[..., Tensor], fake: Callable[..., Tensor]) -> Callable[..., Tensor]:
    operator = getattr(torch.ops.ncode, name)

    # Each sample is treated alone, so under torch.func.vmap the mapped dimension becomes part of the batch.
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        pairs = zip(inputs[:2], dims, strict=False)
        joined = (a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0) for a, dim in pairs)
        return operator(*(a.flatten(0, 1) for a in joined), *inputs[2:]).unflatten(0, (size, -1)), 0

    _library.impl(name, kernels, "CUDA")
    torch.library.register_fake(f"ncode::{name}", fake, lib=_library)
    torch.library.register_vmap(f"ncode::{name}", vmap, lib=_library)
    return operator


_FORMS = {
    "unfolded": _Form(_unfolded, _unfolded_gradient),
    "implicit": _Form(
        _register("sample_conv2d", _convolve_cuda, _convolve_fake),
        _register("sample_conv2d_kernels", _correlate_cuda, _correlate_fake),
    ),
}
FORMULATIONS = ("auto", "grouped", *_FORMS)
