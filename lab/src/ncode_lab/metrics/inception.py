"""The network behind FID: Inception-v3 as TensorFlow published it on 2015-12-05.

It differs from the Inception-v3 of today in three places: average pooling does not count the padding, the last block
pools by the maximum, and the resize lays its grid from the corner of the image. Each of them moves the score.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from ncode.checks import check_choice

from .images import check_images

SIDE, WIDTH = 299, 2048
Kernel = int | tuple[int, int]
Chain = list[tuple[int, Kernel]]  # (channels out, kernel) of one convolution after the other

ROW, COLUMN = (1, 7), (7, 1)

PRECISIONS = ("ieee", "tf32")
PRECISION = "ieee"  # of convolutions on CUDA, unless told
LAYOUT = torch.channels_last  # of images and kernels in memory


class Inception(nn.Module):
    """uint8 images (n, 3, height, width) to features (n, 2048), always in float32 and in evaluation mode.

    `load_inception` gives one with the published weights; a new one has random ones. `genuine` says which: scores of
    any other weights are not called FID. `precision` is that of convolutions on CUDA, "ieee" or "tf32", which rounds
    what is multiplied to 10 bits and takes a fraction of the time; whatever a training loop has chosen for itself does
    not count.

    >>> import torch, ncode_lab.metrics
    >>> network = ncode_lab.metrics.Inception()
    >>> network(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([1, 2048])
    >>> network.genuine
    False
    """

    def __init__(self, precision: str = PRECISION) -> None:
        super().__init__()
        self.genuine = False
        self.precision = check_choice("precision", precision, PRECISIONS)
        self.Conv2d_1a_3x3 = _Unit(3, 32, 3, stride=2, padding=0)
        self.Conv2d_2a_3x3 = _Unit(32, 32, 3, padding=0)
        self.Conv2d_2b_3x3 = _Unit(32, 64, 3)
        self.Conv2d_3b_1x1 = _Unit(64, 80, 1)
        self.Conv2d_4a_3x3 = _Unit(80, 192, 3, padding=0)
        self.Mixed_5b = _Mixed(192, _first(), pool=32)
        self.Mixed_5c = _Mixed(256, _first(), pool=64)
        self.Mixed_5d = _Mixed(288, _first(), pool=64)
        self.Mixed_6a = _Mixed(288, {"branch3x3": [(384, 3)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3)]}, halve=True)
        self.Mixed_6b = _Mixed(768, _second(128), pool=192)
        self.Mixed_6c = _Mixed(768, _second(160), pool=192)
        self.Mixed_6d = _Mixed(768, _second(160), pool=192)
        self.Mixed_6e = _Mixed(768, _second(192), pool=192)
        seven = [(192, 1), (192, ROW), (192, COLUMN), (192, 3)]
        self.Mixed_7a = _Mixed(768, {"branch3x3": [(192, 1), (320, 3)], "branch7x7x3": seven}, halve=True)
        self.Mixed_7b = _Mixed(1280, _third(), pool=192, fork=True)
        self.Mixed_7c = _Mixed(2048, _third(), pool=192, fork=True, pool_by_maximum=True)
        # In single precision, whatever a run has made the default.
        self.requires_grad_(False).eval().float()

    def forward(self, images: Tensor) -> Tensor:
        """The features before the last layer, averaged over places."""
        x = resize(check_images(images).float())
        with _precision(x.device, self.precision):
            x = ((x - 128) / 128).contiguous(memory_format=LAYOUT)
            x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
            x = functional.max_pool2d(x, 3, 2)
            x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
            x = functional.max_pool2d(x, 3, 2)
            for name, block in self.named_children():
                if name.startswith("Mixed"):
                    x = block(x)
        return x.mean((2, 3))

    def train(self, mode: bool = True) -> Inception:
        """Stays in evaluation mode: batch norms that learn would make it another network."""
        return super().train(False)


def resize(images: Tensor, side: int = SIDE) -> Tensor:
    """Bilinear, to side x side, on the grid of the original: place i takes its value at i * size / side.

    >>> import torch
    >>> resize(torch.tensor([[[[0.0, 4.0], [8.0, 12.0]]]]), 4)[0, 0, 0]
    tensor([0., 2., 4., 4.])
    """
    for dim in (2, 3):
        size = images.shape[dim]
        # In float32, as the original: its rounding decides which pixels meet at a place.
        place = torch.arange(side, device=images.device, dtype=torch.float32) * (size / side)
        low = place.floor().long().clamp(max=size - 1)
        part = (place - low).to(images.dtype).view(-1, *[1] * (3 - dim))
        lower, upper = images.index_select(dim, low), images.index_select(dim, (low + 1).clamp(max=size - 1))
        images = lower + (upper - lower) * part
    return images


def _first() -> dict[str, Chain]:
    return {"branch1x1": [(64, 1)], "branch5x5": [(48, 1), (64, 5)], "branch3x3dbl": [(64, 1), (96, 3), (96, 3)]}


def _second(inner: int) -> dict[str, Chain]:
    return {
        "branch1x1": [(192, 1)],
        "branch7x7": [(inner, 1), (inner, ROW), (192, COLUMN)],
        "branch7x7dbl": [(inner, 1), (inner, COLUMN), (inner, ROW), (inner, COLUMN), (192, ROW)],
    }


def _third() -> dict[str, Chain]:
    return {"branch1x1": [(320, 1)], "branch3x3": [(384, 1)], "branch3x3dbl": [(448, 1), (384, 3)]}


class _Unit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, channels: int, out: int, kernel: Kernel, stride: int = 1, padding: int | None = None):
        super().__init__()
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        around = (sides[0] // 2, sides[1] // 2) if padding is None else (padding, padding)
        self.conv = nn.Conv2d(channels, out, sides, stride, around, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        conv, bn = self.conv, self.bn
        # The norm is a factor and an offset: made part of the kernel, it costs no pass over the image.
        assert bn.running_mean is not None and bn.running_var is not None
        scale = bn.weight / (bn.running_var + bn.eps).sqrt()
        offset = bn.bias - bn.running_mean * scale
        kernel = conv.weight * scale.view(-1, 1, 1, 1)
        return functional.relu_(functional.conv2d(x, kernel, offset, conv.stride, conv.padding))


class _Mixed(nn.Module):
    """Branches beside each other; the last one pools.

    With `halve` each branch ends with a stride of 2. With `fork` those of more than one kernel end in a row and a
    column beside each other.
    """

    def __init__(
        self,
        channels: int,
        branches: dict[str, Chain],
        pool: int | None = None,
        *,
        halve: bool = False,
        fork: bool = False,
        pool_by_maximum: bool = False,
    ):
        super().__init__()
        self.halve, self.pool_by_maximum = halve, pool_by_maximum
        self.chains: list[list[str]] = []
        self.forks: dict[str, tuple[str, str]] = {}  # by the first name of a chain
        for name, chain in branches.items():
            self._add(name, channels, chain, fork and name != "branch1x1")
        if pool is not None:
            self.branch_pool = _Unit(channels, pool, 1)

    def _add(self, name: str, channels: int, chain: Chain, fork: bool) -> None:
        names = [name] if len(chain) == 1 and not fork else [f"{name}_{i}" for i in range(1, len(chain) + 1)]
        for unit, (out, kernel) in zip(names, chain, strict=True):
            last = self.halve and unit == names[-1]
            setattr(self, unit, _Unit(channels, out, kernel, 2, 0) if last else _Unit(channels, out, kernel))
            channels = out
        self.chains.append(names)
        if fork:
            row, column = (f"{name}_{len(chain) + 1}{letter}" for letter in "ab")
            self.forks[names[0]] = (row, column)
            setattr(self, row, _Unit(channels, channels, (1, 3)))
            setattr(self, column, _Unit(channels, channels, (3, 1)))

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for names in self.chains:
            part = x
            for name in names:
                part = getattr(self, name)(part)
            ends = self.forks.get(names[0], ())
            parts += [getattr(self, end)(part) for end in ends] or [part]
        return torch.cat([*parts, self._pooled(x)], 1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.halve:
            return functional.max_pool2d(x, 3, 2)
        if self.pool_by_maximum:
            return self.branch_pool(functional.max_pool2d(x, 3, 1, 1))
        return self.branch_pool(functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False))


@contextlib.contextmanager
def _precision(device: torch.device, precision: str) -> Iterator[None]:
    """A score must not depend on the precision that a training loop has chosen for itself."""
    convolutions = getattr(torch.backends.cudnn, "conv", None)  # younger than the oldest torch we run with
    with torch.autocast(device.type, enabled=False):
        if device.type != "cuda" or convolutions is None:
            yield
            return
        before = convolutions.fp32_precision
        convolutions.fp32_precision = precision
        try:
            yield
        finally:
            convolutions.fp32_precision = before
