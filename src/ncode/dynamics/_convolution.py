"""Convolutions whose kernels are a sample's own: y_b = conv2d(x_b, w_b), with the height and width of x_b.

For x (batch, c, H, W), w (batch, o, c, k, k), k odd, r = (k - 1) / 2, and zeros outside of the image,

    y[b, o, i, j] = sum over c, p, q of w[b, o, c, p, q] x[b, c, i + p - r, j + q - r].

Its gradients are of the same kind: that of x is the convolution of y's gradient with w, turned by 180 degrees and with
o and c exchanged; that of w[p, q] is the product of y's gradient with x, shifted by (p, q).

A 1x1 convolution is a product of matrices, (o, c) (c, H W), for each sample. For larger kernels there are three ways:

    grouped    the batch becomes the channels of one image and the samples its groups: torch's own conv2d.
    unfolded   the k^2 shifted copies of x are written out, (k^2 c, H W): one product. Plain torch, on any device.
    implicit   the same product by Triton, which reads the shifted copies where they are (`_implicit_kernels.py`): for
               NVIDIA GPUs of compute capability 8.0 or more.

All are exact up to rounding, and have derivatives of any order, in forward and in reverse mode. Which is fastest was
measured with benchmarks/probe_convolution.py: an evaluation of 1x1, relu, 3x3, relu, 1x1 and its backward, batch 128,
13 x 32 x 32, 50 filters, on an H200, in milliseconds from Python and as a CUDA graph, and MiB:

                              float32               TF32 convolutions
    grouped                   5.28    2.01    111   1.51    0.76    175
    unfolded                  2.41    1.45    336   2.24    1.20    336
    implicit                  2.73    0.75    134   2.68    0.53    134

So a GPU takes "implicit", which compiled solves run as a graph; from Python it is the host that takes the time.
Where that is not available, "grouped" is next if torch may use TF32 for convolutions (its default), and "unfolded"
otherwise.

A CPU takes "grouped": for a 3x3 with its backward, batch 8 and 32 x 32, one thread of an AMD EPYC took 39 ms against 52
at 50 channels, and 2.4 against 8.1 at 16. With few samples "unfolded" may be faster (batch 4: 15.5 ms against 20 at 50
channels), at nine times the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import check_choice
from ..errors import InputError
from . import _implicit


def sample_conv2d(x: Tensor, w: Tensor, formulation: str = "auto") -> Tensor:
    """Convolve each sample with its own kernel, at stride 1, with zeros outside, so that height and width stay.

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
    if torch.is_autocast_enabled(x.device.type):  # backward runs outside of autocast, so both are cast here
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w = x.to(dtype), w.to(dtype)
    if formulation == "implicit" and not _implicit.available(x):
        raise InputError(
            'formulation "implicit" needs Triton, an NVIDIA GPU of compute capability 8.0 or more and float32, float16'
            f' or bfloat16; given {x.dtype} on {x.device}: use "auto"'
        )
    return _Convolution.apply(x, w, _FORMS[formulation])  # pyright: ignore[reportReturnType]


def _fastest(x: Tensor) -> str:
    """As measured: see above."""
    if x.device.type != "cuda" or torch.compiler.is_exporting():  # others know torch's operators, and not ours
        return "grouped"
    if _implicit.available(x):
        return "implicit"
    return "grouped" if x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "unfolded"


def _grouped(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x.flatten(0, 1)[None], w.flatten(0, 1), padding=w.shape[-1] // 2, groups=len(x))
    return y[0].unflatten(0, (len(x), -1))


@dataclass(frozen=True, eq=False)  # torch.func would take a tuple apart
class _Form:
    """A formulation: the convolution y of x and w, and the gradient of w from that of y, x and k."""

    convolve: Callable[[Tensor, Tensor], Tensor]
    correlate: Callable[[Tensor, Tensor, int], Tensor]


class _Convolution(torch.autograd.Function):
    """Bilinear in x and w. Keeps x and not its copies, and makes the gradient of x without folding copies together."""

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
        x_grad = _Convolution.apply(grad, _turned(w), ctx.form) if ctx.needs_input_grad[0] else None
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
    """The gradient of w, bilinear in y and x: its own gradients are convolutions again."""

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
        x_grad = _Convolution.apply(y, _turned(grad), ctx.form) if ctx.needs_input_grad[1] else None
        return y_grad, x_grad, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        y, x = ctx.saved_tensors
        dy, dx, *_ = tangents
        parts = [] if dy is None else [_Correlation.apply(dy, x, ctx.k, ctx.form)]
        parts += [] if dx is None else [_Correlation.apply(y, dx, ctx.k, ctx.form)]
        return sum(parts[1:], parts[0])


def _turned(w: Tensor) -> Tensor:
    """The kernel that takes gradients back."""
    return w.transpose(1, 2).flip(3, 4)


def _unfolded(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(w.flatten(2), _windows(x, w.shape[-1])).unflatten(2, x.shape[2:])


def _unfolded_gradient(y: Tensor, x: Tensor, k: int) -> Tensor:
    return torch.bmm(y.flatten(2), _windows(x, k).mT).unflatten(2, (-1, k, k))


def _windows(x: Tensor, k: int) -> Tensor:
    """All shifts, written out: (batch, c k k, H W)."""
    r = k // 2
    windows = F.pad(x, (r, r, r, r)).unfold(2, k, 1).unfold(3, k, 1)  # (batch, c, H, W, k, k), a view
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


_FORMS = {
    "unfolded": _Form(_unfolded, _unfolded_gradient),
    "implicit": _Form(_implicit.convolve, _implicit.correlate),
}
FORMULATIONS = ("auto", "grouped", *_FORMS)


def _check(x: Tensor, w: Tensor) -> None:
    """Refuse what does not fit, with a sentence."""
    if x.dim() != 4 or w.dim() != 5 or len(x) != len(w) or x.shape[1] != w.shape[2]:
        raise InputError(
            "x must be (batch, c, H, W) and w (batch, o, c, k, k), a kernel a sample;"
            f" given x {tuple(x.shape)} and w {tuple(w.shape)}"
        )
    if w.shape[3] != w.shape[4] or w.shape[3] % 2 == 0:
        raise InputError(f"kernels must be square and of odd size; given {w.shape[3]} x {w.shape[4]}")
