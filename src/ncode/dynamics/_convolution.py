"""Convolutions whose kernels are a sample's own: y_b = conv2d(x_b, w_b), with the height and width of x_b.

For x (batch, c, H, W), w (batch, o, c, k, k), k odd, r = (k - 1) / 2, and zeros outside of the image,

    y[b, o, i, j] = sum over c, p, q of w[b, o, c, p, q] x[b, c, i + p - r, j + q - r].

Its gradients are of the same kind: that of x is the convolution of y's gradient with w, turned by 180 degrees and with
o and c exchanged; that of w[p, q] is the product of y's gradient with x, shifted by (p, q).

A 1x1 convolution is a product of matrices, (o, c) (c, H W), for each sample. For larger kernels there are four ways:

    grouped    the batch becomes the channels of one image and the samples its groups: torch's own conv2d.
    unfolded   the k^2 shifted copies of x are written out, (k^2 c, H W): one product.
    rows       the k copies that are shifted along a row are written out, (k c, (H + 2 r) W): shifts along a column are
               then slices of that memory, and k products accumulate y.
    shifted    x is written out once, with its border of zeros, (c, (H + 2 r) (W + 2 r)): all shifts are slices, and k^2
               products accumulate y. The border makes it W + 2 r columns wide.

All are exact up to rounding, and have derivatives of any order, in forward and in reverse mode. Between them lies a
trade of memory for the size of products; which is fastest was measured with benchmarks/probe_convolution.py (forward
and backward, batch 128, 50 channels, 32 x 32, float32): see `_FASTEST`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..solve.problem import choose
from ..solve.status import InputError

# On a CPU all are bound by arithmetic: grouped needs the least memory, and is four times faster at 16 channels.
_FASTEST = {"cpu": "grouped", "cuda": "unfolded"}


def sample_conv2d(x: Tensor, w: Tensor, formulation: str = "auto") -> Tensor:
    """Convolve each sample with its own kernel, at stride 1, with zeros outside, so that height and width stay.

    Args:
        x: (batch, c, H, W).
        w: (batch, o, c, k, k) with k odd.
        formulation: "grouped", "unfolded", "rows", "shifted", or "auto": the fastest on x's device.

    >>> import torch
    >>> x, w = torch.randn(2, 3, 5, 5), torch.randn(2, 4, 3, 3, 3)
    >>> one_by_one = torch.cat([torch.nn.functional.conv2d(x[b : b + 1], w[b], padding=1) for b in range(2)])
    >>> bool((sample_conv2d(x, w) - one_by_one).abs().max() < 1e-5)
    True
    """
    choose("formulation", formulation, FORMULATIONS)
    _check(x, w)
    if formulation == "auto":
        formulation = "unfolded" if w.shape[-1] == 1 else _FASTEST.get(x.device.type, "grouped")
    if formulation == "grouped":
        return _grouped(x, w)
    if w.shape[-1] == 1:
        return torch.bmm(w.flatten(2), x.flatten(2)).unflatten(2, x.shape[2:])
    if torch.is_autocast_enabled(x.device.type):  # backward runs outside of autocast, so both are cast here
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w = x.to(dtype), w.to(dtype)
    return _Convolution.apply(x, w, _FORMS[formulation])  # pyright: ignore[reportReturnType]


def _grouped(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x.flatten(0, 1)[None], w.flatten(0, 1), padding=w.shape[-1] // 2, groups=len(x))
    return y[0].unflatten(0, (len(x), -1))


class _Form(NamedTuple):
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
        turned = w.transpose(1, 2).flip(3, 4)
        x_grad = _Convolution.apply(grad, turned, ctx.form) if ctx.needs_input_grad[0] else None
        w_grad = ctx.form.correlate(grad, x, w.shape[-1]) if ctx.needs_input_grad[1] else None
        return x_grad, w_grad, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        x, w = ctx.saved_tensors
        dx, dw, _ = tangents
        parts = [ctx.form.convolve(dx, w)] if dx is not None else []
        parts += [ctx.form.convolve(x, dw)] if dw is not None else []
        return sum(parts[1:], parts[0])


def _unfolded(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(w.flatten(2), _windows(x, w.shape[-1])).unflatten(2, x.shape[2:])


def _unfolded_gradient(y: Tensor, x: Tensor, k: int) -> Tensor:
    return torch.bmm(y.flatten(2), _windows(x, k).mT).unflatten(2, (-1, k, k))


def _windows(x: Tensor, k: int) -> Tensor:
    """All shifts, written out: (batch, c k k, H W)."""
    r = k // 2
    windows = F.pad(x, (r, r, r, r)).unfold(2, k, 1).unfold(3, k, 1)  # (batch, c, H, W, k, k), a view
    return windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def _rows(x: Tensor, w: Tensor) -> Tensor:
    kernels = w.permute(3, 0, 1, 2, 4).flatten(3)  # (k, batch, o, c k)
    return _accumulate(kernels, _row_shifts(x, w.shape[-1])).unflatten(2, x.shape[2:])


def _rows_gradient(y: Tensor, x: Tensor, k: int) -> Tensor:
    parts = [torch.bmm(y.flatten(2), part.mT).unflatten(2, (-1, k)) for part in _row_shifts(x, k)]
    return torch.stack(parts, 3)


def _row_shifts(x: Tensor, k: int) -> list[Tensor]:
    """Shifts along rows, written out, and those along columns as slices: k of (batch, c k, H W)."""
    r, (height, width) = k // 2, x.shape[2:]
    windows = F.pad(x, (r, r, r, r)).unfold(3, k, 1)  # (batch, c, H + 2 r, W, k), a view
    joined = windows.permute(0, 1, 4, 2, 3).flatten(3).flatten(1, 2)
    return [joined[:, :, p * width : (p + height) * width] for p in range(k)]


def _shifted(x: Tensor, w: Tensor) -> Tensor:
    kernels = w.permute(3, 4, 0, 1, 2).flatten(0, 1).contiguous()  # (k k, batch, o, c)
    wide = _accumulate(kernels, _shifts(x, w.shape[-1])).unflatten(2, (x.shape[2], -1))
    return wide[..., : x.shape[3]].contiguous()


def _shifted_gradient(y: Tensor, x: Tensor, k: int) -> Tensor:
    wide = F.pad(y, (0, 2 * (k // 2))).flatten(2)
    return torch.stack([torch.bmm(wide, part.mT) for part in _shifts(x, k)], -1).unflatten(-1, (k, k))


def _shifts(x: Tensor, k: int) -> list[Tensor]:
    """All shifts as slices: k k of (batch, c, H (W + 2 r))."""
    r, (height, width) = k // 2, x.shape[2:]
    joined = F.pad(x, (r, r, r, r + 1)).flatten(2)  # one more row, since the last slices run over the end by 2 r
    wide = width + 2 * r
    starts = [p * wide + q for p in range(k) for q in range(k)]
    return [joined[:, :, start : start + height * wide] for start in starts]


def _accumulate(kernels: Tensor, parts: list[Tensor]) -> Tensor:
    """The sum of kernel times part."""
    y = torch.bmm(kernels[0], parts[0])
    for kernel, part in zip(kernels[1:], parts[1:], strict=True):
        y = torch.baddbmm(y, kernel, part)
    return y


_FORMS = {
    "unfolded": _Form(_unfolded, _unfolded_gradient),
    "rows": _Form(_rows, _rows_gradient),
    "shifted": _Form(_shifted, _shifted_gradient),
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
