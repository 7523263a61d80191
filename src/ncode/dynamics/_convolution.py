"""Convolutions with one kernel per sample: y_b = conv2d(x_b, w_b), with the height and width of x_b.

For x (batch, c, H, W), w (batch, o, c, k, k), k odd, r = (k - 1) / 2, and zeros outside the image,

    y[b, o, i, j] = sum over c, p, q of w[b, o, c, p, q] x[b, c, i + p - r, j + q - r].

Its gradients are of the same kind: that of x is the convolution of y's gradient with w rotated by 180 degrees and with
o and c exchanged; that of w[p, q] is the product of y's gradient with x shifted by (p, q).

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
not available, "grouped" is next if torch may use TF32 for convolutions (its default), and "unfolded" otherwise.

A CPU uses "grouped": for a 3x3 with its backward, batch 8 and 32 x 32, one thread of an AMD EPYC took 39 ms against 52
with 50 channels, and 2.4 against 8.1 with 16. For few samples "unfolded" may be faster (batch 4: 15.5 ms against 20
with 50 channels), at nine times the memory.

The implicit formulation consists of two operators, `ncode::sample_conv2d` and, for its gradient with respect to the
kernels, `ncode::sample_conv2d_kernels`, so that compilers and torch.func understand it.
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

from ..checks import check_choice
from ..errors import InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of the Triton kernels


def sample_conv2d(x: Tensor, w: Tensor, formulation: str = "auto") -> Tensor:
    """Convolve each sample with its own kernel, with stride 1 and zero padding that keeps height and width.

    Args:
        x: (batch, c, H, W).
        w: (batch, o, c, k, k) with k odd.
        formulation: "grouped", "unfolded", "implicit", or "auto": the fastest on x's device.

    >>> import torch
    >>> x, w = torch.randn(2, 3, 5, 5), torch.randn(2, 4, 3, 3, 3)
    >>> one_by_one = torch.cat([torch.nn.functional.conv2d(x[b : b + 1], w[b], padding=1) for b in range(2)])
    >>> bool((sample_conv2d(x, w) - one_by_one).abs().max() < 1e-5)
    True
    """
    check_choice("formulation", formulation, FORMULATIONS)
    _check(x, w)
    if formulation == "auto":
        formulation = "unfolded" if w.shape[-1] == 1 else _fastest(x)
    if formulation == "grouped":
        return _grouped(x, w)
    if w.shape[-1] == 1:
        return torch.bmm(w.flatten(2), x.flatten(2)).unflatten(2, x.shape[2:])
    if torch.is_autocast_enabled(x.device.type):  # backward runs outside autocast, so both are cast here
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w = x.to(dtype), w.to(dtype)
    if formulation == "implicit" and not triton_available(x):
        raise InputError(
            'formulation "implicit" needs Triton, an NVIDIA GPU of compute capability 8.0 or more and float32, float16'
            f' or bfloat16; given {x.dtype} on {x.device}: use "auto"'
        )
    return _Convolution.apply(x, w, _FORMS[formulation])  # pyright: ignore[reportReturnType]


def _check(x: Tensor, w: Tensor) -> None:
    if x.dim() != 4 or w.dim() != 5 or len(x) != len(w) or x.shape[1] != w.shape[2]:
        raise InputError(
            "x must be (batch, c, H, W) and w (batch, o, c, k, k), one kernel per sample;"
            f" given x {tuple(x.shape)} and w {tuple(w.shape)}"
        )
    if w.shape[3] != w.shape[4] or w.shape[3] % 2 == 0:
        raise InputError(f"kernels must be square and of odd size; given {w.shape[3]} x {w.shape[4]}")


def triton_available(x: Tensor) -> bool:
    """Return whether the Triton kernels can be used for this tensor."""
    return x.device.type == "cuda" and x.dtype in DTYPES and _has_triton(x.device.index or 0)


@functools.cache
def _has_triton(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def _fastest(x: Tensor) -> str:
    # An exported program is to run where the operators of this library are unknown.
    if x.device.type != "cuda" or torch.compiler.is_exporting():
        return "grouped"
    if triton_available(x):
        return "implicit"
    return "grouped" if x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "unfolded"


def _grouped(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x.flatten(0, 1)[None], w.flatten(0, 1), padding=w.shape[-1] // 2, groups=len(x))
    return y[0].unflatten(0, (len(x), -1))


@dataclass(frozen=True, eq=False)  # not a tuple, which torch.func would flatten
class _Form:
    """A formulation: the convolution y of x and w, and the gradient of w from that of y, from x and k."""

    convolve: Callable[[Tensor, Tensor], Tensor]
    correlate: Callable[[Tensor, Tensor, int], Tensor]


class _Convolution(torch.autograd.Function):
    """The convolution, bilinear in x and w. Saves x and not its shifted copies."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, form: _Form) -> Tensor:
        return form.convolve(x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, w, ctx.form = inputs
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (x, w) = grads, ctx.saved_tensors
        x_grad = _Convolution.apply(grad, _rotate(w), ctx.form) if ctx.needs_input_grad[0] else None
        w_grad = _Correlation.apply(grad, x, w.shape[-1], ctx.form) if ctx.needs_input_grad[1] else None
        return x_grad, w_grad, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        x, w = ctx.saved_tensors
        dx, dw, _ = tangents
        parts = [] if dx is None else [_Convolution.apply(dx, w, ctx.form)]
        parts += [] if dw is None else [_Convolution.apply(x, dw, ctx.form)]
        return sum(parts[1:], parts[0])


class _Correlation(torch.autograd.Function):
    """The gradient of w, bilinear in y and x. Its own gradients are convolutions again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, x: Tensor, k: int, form: _Form) -> Tensor:
        return form.correlate(y, x, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        y, x, ctx.k, ctx.form = inputs
        ctx.save_for_backward(y, x)
        ctx.save_for_forward(y, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (y, x) = grads, ctx.saved_tensors
        y_grad = _Convolution.apply(x, grad, ctx.form) if ctx.needs_input_grad[0] else None
        x_grad = _Convolution.apply(y, _rotate(grad), ctx.form) if ctx.needs_input_grad[1] else None
        return y_grad, x_grad, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        y, x = ctx.saved_tensors
        dy, dx, *_ = tangents
        parts = [] if dy is None else [_Correlation.apply(dy, x, ctx.k, ctx.form)]
        parts += [] if dx is None else [_Correlation.apply(y, dx, ctx.k, ctx.form)]
        return sum(parts[1:], parts[0])


def _rotate(w: Tensor) -> Tensor:
    """Return the kernel of the gradient of x."""
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


def _implicit(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.ncode.sample_conv2d(x, w)


def _implicit_gradient(y: Tensor, x: Tensor, k: int) -> Tensor:
    return torch.ops.ncode.sample_conv2d_kernels(y, x, k)


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


# Both operators treat each sample alone, so under torch.func.vmap the mapped dimension becomes part of the batch.


def _convolve_vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
    x, w = _to_batch(x, dims[0], info.batch_size), _to_batch(w, dims[1], info.batch_size)
    return _implicit(x, w).unflatten(0, (info.batch_size, -1)), 0


def _correlate_vmap(info: Any, dims: tuple[int | None, ...], y: Tensor, x: Tensor, k: int) -> tuple[Tensor, int]:
    y, x = _to_batch(y, dims[0], info.batch_size), _to_batch(x, dims[1], info.batch_size)
    return _implicit_gradient(y, x, k).unflatten(0, (info.batch_size, -1)), 0


def _to_batch(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    whole = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return whole.flatten(0, 1)


_library = torch.library.Library("ncode", "FRAGMENT")
_library.define("sample_conv2d(Tensor x, Tensor w) -> Tensor")
_library.define("sample_conv2d_kernels(Tensor y, Tensor x, int k) -> Tensor")
_library.impl("sample_conv2d", _convolve_cuda, "CUDA")
_library.impl("sample_conv2d_kernels", _correlate_cuda, "CUDA")
torch.library.register_fake("ncode::sample_conv2d", _convolve_fake, lib=_library)
torch.library.register_fake("ncode::sample_conv2d_kernels", _correlate_fake, lib=_library)
torch.library.register_vmap("ncode::sample_conv2d", _convolve_vmap, lib=_library)
torch.library.register_vmap("ncode::sample_conv2d_kernels", _correlate_vmap, lib=_library)

_FORMS = {
    "unfolded": _Form(_unfolded, _unfolded_gradient),
    "implicit": _Form(_implicit, _implicit_gradient),
}
FORMULATIONS = ("auto", "grouped", *_FORMS)
