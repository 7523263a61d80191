"""The "implicit" formulation of `_convolution.py` as two operators, which compilers and torch.func understand.

`ncode::sample_conv2d` is the convolution, `ncode::sample_conv2d_kernels` its gradient of the kernels. Both are bilinear
and work on each sample alone, so mapping them (torch.func.vmap) is a larger batch. The kernels themselves are in
`_implicit_kernels.py`, which needs Triton, and are imported when a GPU first asks for them.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_library = torch.library.Library("ncode", "FRAGMENT")
_library.define("sample_conv2d(Tensor x, Tensor w) -> Tensor")
_library.define("sample_conv2d_kernels(Tensor y, Tensor x, int k) -> Tensor")


def available(x: Tensor) -> bool:
    """Whether the kernels take this tensor."""
    return x.device.type == "cuda" and x.dtype in DTYPES and _has_triton(x.device.index or 0)


def convolve(x: Tensor, w: Tensor) -> Tensor:
    """y (batch, o, H, W)."""
    return torch.ops.ncode.sample_conv2d(x, w)


def correlate(y: Tensor, x: Tensor, k: int) -> Tensor:
    """The gradient of w (batch, o, c, k, k), from that of y."""
    return torch.ops.ncode.sample_conv2d_kernels(y, x, k)


@functools.cache
def _has_triton(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def _convolve_cuda(x: Tensor, w: Tensor) -> Tensor:
    from ._implicit_kernels import convolve

    return convolve(x, w)


def _correlate_cuda(y: Tensor, x: Tensor, k: int) -> Tensor:
    from ._implicit_kernels import correlate

    return correlate(y, x, k)


def _convolve_shape(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[1], *x.shape[2:])


def _correlate_shape(y: Tensor, x: Tensor, k: int) -> Tensor:
    return x.new_empty(x.shape[0], y.shape[1], x.shape[1], k, k)


def _convolve_mapped(info: Any, dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
    x, w = _joined(x, dims[0], info.batch_size), _joined(w, dims[1], info.batch_size)
    return convolve(x, w).unflatten(0, (info.batch_size, -1)), 0


def _correlate_mapped(info: Any, dims: tuple[int | None, ...], y: Tensor, x: Tensor, k: int) -> tuple[Tensor, int]:
    y, x = _joined(y, dims[0], info.batch_size), _joined(x, dims[1], info.batch_size)
    return correlate(y, x, k).unflatten(0, (info.batch_size, -1)), 0


def _joined(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension as part of the batch."""
    whole = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return whole.flatten(0, 1)


_library.impl("sample_conv2d", _convolve_cuda, "CUDA")
_library.impl("sample_conv2d_kernels", _correlate_cuda, "CUDA")
torch.library.register_fake("ncode::sample_conv2d", _convolve_shape, lib=_library)
torch.library.register_fake("ncode::sample_conv2d_kernels", _correlate_shape, lib=_library)
torch.library.register_vmap("ncode::sample_conv2d", _convolve_mapped, lib=_library)
torch.library.register_vmap("ncode::sample_conv2d_kernels", _correlate_mapped, lib=_library)
