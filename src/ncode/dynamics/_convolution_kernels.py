"""Triton kernels for convolutions with one kernel per sample.

They are matrix products whose second factor, the shifted copies of the image, is read in place and never written out.
Each program computes one block of the result of one sample.

    lay          writes x once with its border of zeros and the channels of a pixel contiguous, X[i, j, c].
    convolve     y[o, i, j] = sum over p, and then over (q, c), of w[o, p, (q, c)] X[i + p, (j, 0) + (q, c)]: the k c
                 numbers that a row of the kernel meets are contiguous in both, and none is outside.
    correlate    w'[o, c, p, q] = sum over pixels of y'[o, pixel] x[c, pixel moved by (p, q)], or 0 outside: pixels are
                 contiguous in both, and with one (p, q) per program only pixels can be outside, for any channel.

So the summed dimension is contiguous everywhere, as tensor cores need it in single precision. Sums are in single
precision. Products of single-precision inputs follow the switch of torch's own convolutions,
`torch.backends.cudnn.allow_tf32`: TF32 if it is on, and otherwise three TF32 products for each ("tf32x3"), which is as
precise as single precision.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# Without Triton the kernels are never called, but the file can be imported.
_found = find_spec("triton") is not None
tl: Any = import_module("triton.language") if _found else None
jit: Any = import_module("triton").jit if _found else (lambda kernel: kernel)


class Blocks(NamedTuple):
    """The size of one program: rows (pixels, or channels of x) by outs, summed in pieces of `inner`."""

    rows: int
    inner: int
    warps: int
    stages: int


CONVOLVE = {"tf32": Blocks(256, 32, 8, 3), "tf32x3": Blocks(128, 32, 8, 3)}
CORRELATE = {"tf32": Blocks(64, 32, 4, 4), "tf32x3": Blocks(64, 32, 4, 3)}
_LAY = Blocks(64, 32, 4, 1)


def convolve(x: Tensor, w: Tensor, blocks: Blocks | None = None, precision: str | None = None) -> Tensor:
    """Return y (batch, o, H, W) for x (batch, c, H, W) and w (batch, o, c, k, k)."""
    precision = precision or _precision()
    blocks = blocks or CONVOLVE[precision]
    (batch, c, height, width), o, k = x.shape, w.shape[1], w.shape[-1]
    y, laid = x.new_empty(batch, o, height, width), lay(x, k)
    kernels = w.permute(0, 1, 3, 4, 2)
    if more := laid.shape[-1] - c:
        kernels = F.pad(kernels, (0, more))
    outs = _power(o)
    programs = batch * _pieces(height * width, blocks.rows) * _pieces(o, outs)
    sizes = (laid.shape[-1], o, height, width, k, outs, blocks.rows, blocks.inner, precision)
    _launch(_convolve, (programs,), (laid, kernels.contiguous(), y), sizes, blocks)
    return y


def correlate(y: Tensor, x: Tensor, k: int, blocks: Blocks | None = None, precision: str | None = None) -> Tensor:
    """Return the gradient of w (batch, o, c, k, k) from that of y (batch, o, H, W)."""
    precision = precision or _precision()
    blocks = blocks or CORRELATE[precision]
    (batch, c, height, width), o = x.shape, y.shape[1]
    w = x.new_empty(batch, o, c, k, k)
    rows, outs = min(blocks.rows, _power(c)), _power(o)
    programs = batch * k * k * _pieces(c, rows) * _pieces(o, outs)
    sizes = (c, o, height, width, k, outs, rows, blocks.inner, precision)
    _launch(_correlate, (programs,), (x.contiguous(), y.contiguous(), w), sizes, blocks)
    return w


def lay(x: Tensor, k: int) -> Tensor:
    """Return x with its border of zeros and the channels of a pixel contiguous, (batch, H + k - 1, W + k - 1, C).

    C is c rounded up so that every pixel starts at a multiple of 16 bytes, which can be read at once.
    """
    batch, c, height, width = x.shape
    whole = _pieces(c * x.element_size(), 16) * 16 // x.element_size()
    laid = x.new_empty(batch, height + k - 1, width + k - 1, whole)
    places = laid.shape[1] * laid.shape[2]
    programs = batch * _pieces(places, _LAY.rows) * _pieces(whole, _LAY.inner)
    _launch(_lay, (programs,), (x.contiguous(), laid), (c, whole, height, width, k, _LAY.rows, _LAY.inner), _LAY)
    return laid


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def _power(size: int) -> int:
    """Return the number of channels of one program: a power of 2, from 16 to 64."""
    return min(max(1 << (size - 1).bit_length(), 16), 64)


def _pieces(size: int, piece: int) -> int:
    return -(-size // piece)


def _launch(
    kernel: Any, grid: tuple[int, ...], tensors: Sequence[Tensor], sizes: Sequence[Any], blocks: Blocks
) -> None:
    if 0 not in grid:
        with torch.cuda.device_of(tensors[0]):
            kernel[grid](*tensors, *sizes, num_warps=blocks.warps, num_stages=blocks.stages)


@jit
def _lay(
    x, laid,
    CHANNELS: tl.constexpr, WHOLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    PLACES: tl.constexpr, INNER: tl.constexpr,
) -> None:  # fmt: skip
    WIDE: tl.constexpr = WIDTH + SIDE - 1
    PLANE: tl.constexpr = (HEIGHT + SIDE - 1) * WIDE
    TILES: tl.constexpr = (PLANE + PLACES - 1) // PLACES
    BLOCKS: tl.constexpr = TILES * ((WHOLE + INNER - 1) // INNER)
    program = tl.program_id(0)
    sample, block = (program // BLOCKS).to(tl.int64), program % BLOCKS
    place = (block % TILES) * PLACES + tl.arange(0, PLACES)
    channel = (block // TILES) * INNER + tl.arange(0, INNER)
    x += sample * (CHANNELS * HEIGHT * WIDTH)
    laid += sample * (PLANE * WHOLE)
    i, j = place // WIDE - SIDE // 2, place % WIDE - SIDE // 2
    inside = (i >= 0) & (i < HEIGHT) & (j >= 0) & (j < WIDTH)
    source = x + (channel[:, None] * (HEIGHT * WIDTH) + (i * WIDTH + j)[None, :])
    value = tl.load(source, mask=(channel < CHANNELS)[:, None] & inside[None, :], other=0.0)
    kept = (channel < WHOLE)[:, None] & (place < PLANE)[None, :]
    tl.store(laid + (place[None, :] * WHOLE + channel[:, None]), value, mask=kept)


@jit
def _convolve(
    x, w, y,
    CHANNELS: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    OUTS: tl.constexpr, PIXELS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    WIDE: tl.constexpr = WIDTH + SIDE - 1
    ROW: tl.constexpr = SIDE * CHANNELS
    STEPS: tl.constexpr = (ROW + INNER - 1) // INNER
    TILES: tl.constexpr = (HEIGHT * WIDTH + PIXELS - 1) // PIXELS
    BLOCKS: tl.constexpr = TILES * ((FILTERS + OUTS - 1) // OUTS)
    program = tl.program_id(0)
    sample, block = (program // BLOCKS).to(tl.int64), program % BLOCKS
    pixel = (block % TILES) * PIXELS + tl.arange(0, PIXELS)
    out = (block // TILES) * OUTS + tl.arange(0, OUTS)
    x += sample * ((HEIGHT + SIDE - 1) * WIDE * CHANNELS)
    w += sample * (FILTERS * SIDE * ROW)
    y += sample * (FILTERS * HEIGHT * WIDTH)
    place = (pixel // WIDTH * WIDE + pixel % WIDTH) * CHANNELS
    total = tl.zeros((PIXELS, OUTS), dtype=tl.float32)
    for step in range(0, SIDE * STEPS):
        down = step // STEPS
        s = (step % STEPS) * INNER + tl.arange(0, INNER)
        seen = (pixel < HEIGHT * WIDTH)[:, None] & (s < ROW)[None, :]
        image = tl.load(x + (place[:, None] + (down * (WIDE * CHANNELS) + s)[None, :]), mask=seen, other=0.0)
        known = (s < ROW)[:, None] & (out < FILTERS)[None, :]
        kernel = tl.load(w + ((down * ROW + s)[:, None] + out[None, :] * (SIDE * ROW)), mask=known, other=0.0)
        total = tl.dot(image, kernel, total, input_precision=PRECISION)
    kept = (pixel < HEIGHT * WIDTH)[:, None] & (out < FILTERS)[None, :]
    tl.store(y + (out[None, :] * (HEIGHT * WIDTH) + pixel[:, None]), total.to(y.dtype.element_ty), mask=kept)


@jit
def _correlate(
    x, y, w,
    CHANNELS: tl.constexpr, FILTERS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    OUTS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    PIXELS: tl.constexpr = HEIGHT * WIDTH
    TAPS: tl.constexpr = SIDE * SIDE
    TILES: tl.constexpr = TAPS * ((CHANNELS + ROWS - 1) // ROWS)
    BLOCKS: tl.constexpr = TILES * ((FILTERS + OUTS - 1) // OUTS)
    program = tl.program_id(0)
    sample, block = (program // BLOCKS).to(tl.int64), program % BLOCKS
    tap = block % TAPS
    channel = (block % TILES) // TAPS * ROWS + tl.arange(0, ROWS)
    out = (block // TILES) * OUTS + tl.arange(0, OUTS)
    x += sample * (CHANNELS * PIXELS)
    y += sample * (FILTERS * PIXELS)
    w += sample * (FILTERS * CHANNELS * TAPS)
    down, right = tap // SIDE - SIDE // 2, tap % SIDE - SIDE // 2
    total = tl.zeros((ROWS, OUTS), dtype=tl.float32)
    for first in range(0, PIXELS, INNER):
        pixel = first + tl.arange(0, INNER)
        i, j = pixel // WIDTH + down, pixel % WIDTH + right
        inside = (pixel < PIXELS) & (i >= 0) & (i < HEIGHT) & (j >= 0) & (j < WIDTH)
        seen = (channel < CHANNELS)[:, None] & inside[None, :]
        moved = pixel + (down * WIDTH + right)
        image = tl.load(x + (channel[:, None] * PIXELS + moved[None, :]), mask=seen, other=0.0)
        known = (pixel < PIXELS)[:, None] & (out < FILTERS)[None, :]
        slope = tl.load(y + (pixel[:, None] + out[None, :] * PIXELS), mask=known, other=0.0)
        total = tl.dot(image, slope, total, input_precision=PRECISION)
    kept = (channel < CHANNELS)[:, None] & (out < FILTERS)[None, :]
    target = w + ((out[None, :] * CHANNELS + channel[:, None]) * TAPS + tap)
    tl.store(target, total.to(w.dtype.element_ty), mask=kept)
